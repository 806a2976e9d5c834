"""Looking for secrets where none may show: as they are, and as base64, URLs and hexadecimal have them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import quote

_ACCOUNT_TOKEN = re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}")
"""A token of a service account, whosever it is: three parts, the first two JSON objects."""
_LEAST_BYTES = 12
"""Of what is looked for within something else's base64: less is found by chance."""


def find_planted(text: str, planted: Mapping[str, str | bytes]) -> list[str]:
    """Names of the secrets that ``text`` shows."""
    return [name for name, secret in planted.items() if any(form in text for form in list_forms(secret))]


def find_account_tokens(text: str) -> list[str]:
    """How tokens of service accounts begin that ``text`` shows."""
    return [token[:40] for token in _ACCOUNT_TOKEN.findall(text)]


def list_forms(secret: str | bytes) -> set[str]:
    """How ``secret`` may be written. Text alone stands for itself."""
    raw = secret.encode() if isinstance(secret, str) else secret
    forms = {raw.hex(), raw.hex().upper(), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    forms |= {_encode_within(raw, offset) for offset in range(3 if len(raw) >= _LEAST_BYTES else 1)}
    if isinstance(secret, str):
        forms |= {secret, quote(secret, safe=""), secret.replace("/", "\\/")}
    return forms


def _encode_within(raw: bytes, offset: int) -> str:
    """The base64 that stays the same whatever ``offset`` bytes stand before ``raw``, and whatever follows it."""
    encoded = base64.b64encode(bytes(offset) + raw).decode()
    first, last = (4 if offset else 0), 4 * ((offset + len(raw)) // 3)
    return encoded[first:last]
