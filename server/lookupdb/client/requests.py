"""Requests as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.client.address import RouterAddress
from lookupdb.client.json_values import encode_texts
from lookupdb.errors import UsageError

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)
"""Keys that no client and no proxy would write in another way."""
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPES: Final = tuple(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256))
_OF_BATCH: Final = f"Accept: application/json, {FRAMES}\r\nContent-Type: application/json\r\n".encode()
"""Raw values then come as the bytes that they are; a router that does not know these frames sends JSON."""
_TRACE: Final = re.compile(r"[0-9A-Za-z-]{1,512}", re.ASCII)
MAX_TARGET_CHARACTERS: Final = 511
"""Of a key in a request's target, which routers and proxies bound. Longer ones, which few normalisations make short
enough for a record, are asked for in a body."""
_PLAIN: Final = {str}
_ROUTER_SHARE: Final = 0.85
"""Of what is left of a call's timeout."""
_MAX_DEADLINE_MS: Final = 600_000
_KEPT_BITS: Final = 4
"""The others of a deadline become 0: a request that has all of its time has the same head as the one before, which a
router recognises."""
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}", re.ASCII)


class RequestRenderer:
    """The requests to one router, for the active generation or the one that is named."""

    __slots__ = ("_fields", "_prefix", "generation")

    def __init__(self, address: RouterAddress, generation: str | None = None) -> None:
        """Raises UsageError if ``generation`` is no generation's name, TypeError if it is no text."""
        self._prefix = f"{address.prefix}/v1/".encode()
        fields = f" HTTP/1.1\r\nHost: {address.authority}\r\n"
        if generation is not None:
            if not isinstance(generation, str):
                raise TypeError(f"a generation's name is text like 'g12', found {type(generation).__name__}")
            if not _GENERATION.fullmatch(generation):
                raise UsageError(f"a generation's name is like g12, found {generation[:40]!r}")
            fields += f"Lookupdb-Generation: {generation}\r\n"
        self._fields = fields.encode()
        self.generation = generation

    def lookup(self, key: str, fields: bytes) -> bytes:
        """Of one key. ``fields`` are further lines of the head."""
        if _PLAIN_KEY.fullmatch(key):
            target = f"lookup/{key}"
        else:
            target = "lookup?key=" + "".join(map(_ESCAPES.__getitem__, key.encode()))
        return b"GET %b%b%b%b\r\n" % (self._prefix, target.encode(), self._fields, fields)

    def batch(self, keys: Sequence[str], fields: bytes, *, partial: bool) -> bytes:
        """Of many, which are encodable (``check_keys``)."""
        body = encode_texts({"keys": keys, "partial": True} if partial else {"keys": keys})
        return b"POST %blookup%b%b%bContent-Length: %d\r\n\r\n%b" % (
            self._prefix,
            self._fields,
            fields,
            _OF_BATCH,
            len(body),
            body,
        )

    def dataset(self, fields: bytes) -> bytes:
        """What the router serves."""
        return b"GET %bdataset%b%b\r\n" % (self._prefix, self._fields, fields)


def check_key(key: object) -> str:
    """``key`` as plain text: a subclass of str may say that it is something else, as members of an Enum do. Raises
    TypeError or ValueError if no request can have it."""
    if type(key) is not str:
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, found {type(key).__name__}: {key!r:.60}")
        key = str.__str__(key)
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a key is Unicode text, found half a surrogate pair in {key!r:.60}") from error
    return key


def check_keys(keys: Iterable[object]) -> tuple[list[str], int]:
    """The same of each of ``keys``, each once; and how many characters they have together."""
    listed: list[Any] = [*keys]
    if not {*map(type, listed)} <= _PLAIN:
        listed = [*map(check_key, listed)]
    distinct: list[str] = listed if len({*listed}) == len(listed) else [*dict.fromkeys(listed)]
    text = "".join(distinct)
    if not text.isascii():
        for key in distinct:
            check_key(key)
    return distinct, len(text)


def render_deadline(seconds: float) -> bytes:
    """The line of the head by which the router answers before ``seconds`` have passed: what it knows by then it tells,
    and of the rest that nothing can be said. It is given less, for the way there and back."""
    milliseconds = max(1, min(int(seconds * _ROUTER_SHARE * 1000), _MAX_DEADLINE_MS))
    lost_bits = max(0, milliseconds.bit_length() - _KEPT_BITS)
    return b"Lookupdb-Deadline-Ms: %d\r\n" % (milliseconds >> lost_bits << lost_bits)


def render_trace(traceparent: str | None) -> bytes:
    """The line of the head that hands a trace on; none for what is no ``traceparent`` of W3C's Trace Context."""
    if traceparent is None or not _TRACE.fullmatch(traceparent):
        return b""
    return f"traceparent: {traceparent}\r\n".encode()
