"""What a client shows: the header field Authorization with a bearer token (RFC 6750, 2.1), or a token alone. No I/O.

What is refused is never repeated in a message.
"""

from __future__ import annotations

import re
from typing import Final

from lookupdb.tokens import MAX_TOKEN_BYTES

MIN_TOKEN_BYTES: Final = 20
"""Shorter ones may be guessed from their hashes: what people call a password is no token."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_CREDENTIALS: Final = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?: +([A-Za-z0-9._~+/-]+=*))?[ \t]*")


class NoToken(Exception):
    """The field holds no token that may be looked at. The message shows nothing of it."""


def read_bearer_token(field: bytes | None) -> bytes:
    """The token of the field's value; None is a request without the field. Raises NoToken."""
    if field is None:
        raise NoToken("expected a token, as Authorization: Bearer …")
    if len(field) > MAX_TOKEN_BYTES:
        raise NoToken(f"the header field Authorization has more than {MAX_TOKEN_BYTES} bytes")
    credentials = _CREDENTIALS.fullmatch(field)
    if credentials is None or credentials[1].lower() != b"bearer":
        raise NoToken("expected Authorization: Bearer and one token, found something else")
    token: bytes = credentials[2] or b""
    return _check_length(token)


def check_token(token: bytes) -> bytes:
    """``token``, which a client showed as such, without a header. Raises NoToken."""
    if len(token) > MAX_TOKEN_BYTES:
        raise NoToken(f"the token has more than {MAX_TOKEN_BYTES} bytes")
    if _TOKEN.fullmatch(token) is None:
        raise NoToken("expected a token of A-Z a-z 0-9 - . _ ~ + /, found something else")
    return _check_length(token)


def _check_length(token: bytes) -> bytes:
    if len(token) < MIN_TOKEN_BYTES:
        raise NoToken(f"the token has fewer than {MIN_TOKEN_BYTES} bytes")
    return token
