"""HTTP/1.1 between a client and a router: requests as bytes, and bytes as answers. No I/O.

``RequestRenderer`` renders requests, with equal heads for consecutive ones where possible. ``ResponseReader`` takes
pieces of bytes until an answer is whole. It is strict: anything ambiguous is an error. It reads what routers and the
proxies before them send, bodies with a length or in chunks. It refuses bodies that end with the connection, because
their end may be lost unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.client.settings import RouterAddress
from lookupdb.errors import InvalidAnswer, UsageError
from lookupdb.tls_failures import REDIS_HINT, begins_redis_reply

Render = Callable[[bytes], bytes]  # renders a request with additional lines of its head
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)  # keys that need no escapes
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPES: Final = tuple(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256))
_OF_BATCH: Final = f"Accept: application/json, {FRAMES}\r\nContent-Type: application/json\r\n".encode()
"""Frames hold raw values as they are; a router that does not know frames sends JSON."""
MAX_TARGET_CHARACTERS: Final = 511
"""The longest key in a request's target, which routers and proxies limit. A longer one, which normalisation may still
shorten, goes into a body."""
_PLAIN: Final = {str}
_ROUTER_SHARE: Final = 0.85  # the router's share of the time left in a call
_MAX_DEADLINE_MS: Final = 600_000
_KEPT_BITS: Final = 4
"""Significant bits of a deadline, so that consecutive requests have equal heads, which a router recognises."""
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}", re.ASCII)
MAX_HEAD_BYTES: Final = 32 << 10
_MAX_TRAILER_BYTES: Final = 4 << 10
_MAX_INTERIM: Final = 8  # the most 1xx answers before the real one
_MAX_CHUNK_LINE_BYTES: Final = 1 << 10
_BEGINNING: Final = b"HTTP/1."
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_TOKEN_BYTES: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROL_BYTES: Final = bytes(byte for byte in range(0x20) if byte != 0x09) + b"\x7f"
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_LENGTH_FIELD: Final = b"\r\nContent-Length: "
_NO_FIELDS: Final[dict[bytes, bytes]] = {}
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_REPEATABLE: Final = frozenset(
    (b"vary", b"via", b"server-timing", b"set-cookie", b"warning", b"cache-control", b"allow")
)
"""Fields of proxies that may occur twice. Any other field that does is an error."""
_EMPTY_STATUSES: Final = frozenset((204, 304))
_NO_ROUTER: Final = "check that a lookupdb router listens there, and that no proxy changes its answers"


class RequestRenderer:
    """Render requests to one router, for the active or a named generation."""

    __slots__ = ("_fields", "_prefix", "generation")

    def __init__(self, address: RouterAddress, generation: str | None = None) -> None:
        """Raises UsageError if ``generation`` is not a generation's name, TypeError if it is not text."""
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
        """Return the request for one key. ``fields`` are additional lines of the head."""
        if _PLAIN_KEY.fullmatch(key):
            target = f"lookup/{key}"
        else:
            target = "lookup?key=" + "".join(map(_ESCAPES.__getitem__, key.encode()))
        return b"GET %b%b%b%b\r\n" % (self._prefix, target.encode(), self._fields, fields)

    def batch(self, keys: Sequence[str], fields: bytes, *, partial: bool) -> bytes:
        """Return the request for many keys, which ``check_keys`` has checked."""
        import orjson  # imported with the first batch: it takes half of the client's import time

        body = orjson.dumps({"keys": keys, "partial": True} if partial else {"keys": keys})
        parts = self._prefix, self._fields, fields, _OF_BATCH, len(body), body
        return b"POST %blookup%b%b%bContent-Length: %d\r\n\r\n%b" % parts

    def dataset(self, fields: bytes) -> bytes:
        """Return the request for the description of the dataset."""
        return b"GET %bdataset%b%b\r\n" % (self._prefix, self._fields, fields)


def check_key(key: object) -> str:
    """Return ``key`` as plain text: a subclass of str, such as a member of an Enum, may render differently. Raises
    TypeError or ValueError if it cannot be sent."""
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
    """Return the distinct ``keys`` as plain text, and the number of their characters. Raises as ``check_key``."""
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
    """Return the head's line that makes the router answer within ``seconds``, less a share for the network. Keys that
    it has not found by then are unavailable."""
    milliseconds = max(1, min(int(seconds * _ROUTER_SHARE * 1000), _MAX_DEADLINE_MS))
    lost_bits = max(0, milliseconds.bit_length() - _KEPT_BITS)
    return b"Lookupdb-Deadline-Ms: %d\r\n" % (milliseconds >> lost_bits << lost_bits)


class Response(NamedTuple):
    """One whole answer."""

    status: int
    fields: dict[bytes, bytes]  # name in lower case → value
    body: bytes | bytearray
    keeps_open: bool  # True if the connection may be used again


class ResponseReader:
    """Read one answer after another."""

    __slots__ = (
        *("_body", "_fields", "_held", "_interim", "_is_chunked", "_keeps_open"),
        *("_lacks_line_end", "_max_body", "_missing", "_repeated", "_status"),
    )

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._repeated = b"", 0, _NO_FIELDS, False
        """The last head before its Content-Length, if that was its last field; its status, its other fields, and
        whether the connection stays open. Within a second, a router's heads differ only in their length."""
        self._reset()

    def _reset(self) -> None:
        self._held = b""
        self._status = 0  # 0 until the head is complete
        self._interim = 0
        self._body = bytearray()  # the part of an incomplete body
        self._missing = 0  # missing bytes of the body or the chunk
        self._is_chunked = False
        self._lacks_line_end = False  # True if the line end after a chunk is missing

    @property
    def has_begun(self) -> bool:
        """True once a byte of the next answer has arrived."""
        return bool(self._status or self._held or self._interim)

    def feed(self, data: bytes) -> Response | None:
        """Take bytes, and return the answer once it is whole. Raises InvalidAnswer: then close the connection.

        Bytes after the answer are an error, too, because no request is pending.
        """
        if not self._status:
            data = self._held + data if self._held else data
            rest = self._read_head(data)
            if rest is None:
                return None
            data, self._held = rest, b""
        if self._is_chunked:
            return self._read_chunks(self._held + data if self._held else data)
        if len(data) > self._missing:
            raise _fault("continues after its Content-Length")
        self._missing -= len(data)
        if self._missing:
            self._body += data
            return None
        return self._finish(data)

    def _finish(self, last: bytes) -> Response:
        if self._body:
            self._body += last
        response = Response(self._status, self._fields, self._body or last, self._keeps_open)
        self._reset()
        return response

    def _read_head(self, data: bytes) -> bytes | None:
        """Read the head, and return the bytes after it; None while it is incomplete."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if not data.startswith(
                    _BEGINNING[: len(data)]
                ):  # not HTTP, for example RESP, in which no end of a head would arrive
                    raise _beginning_fault(data)
                if len(data) > MAX_HEAD_BYTES:
                    raise _fault(f"has a head of more than {MAX_HEAD_BYTES} bytes")
                self._held = data
                return None
            if end > MAX_HEAD_BYTES:
                raise _fault(f"has a head of more than {MAX_HEAD_BYTES} bytes")
            beginning, _, length = data[:end].rpartition(_LENGTH_FIELD)
            if beginning and beginning == self._repeated[0] and _LENGTH.fullmatch(length):
                _, self._status, self._fields, self._keeps_open = self._repeated
                self._expect(int(length))
                return data[end + 4 :]
            lines, data = data[:end].split(b"\r\n"), data[end + 4 :]
            status_line = _STATUS_LINE.fullmatch(lines[0])
            if status_line is None:
                raise _beginning_fault(lines[0])
            status = int(status_line[2])
            if status >= 200:
                self._status = status
                self._fields = _parse_fields(lines)
                self._begin_body(is_http_1_1=status_line[1] == b"1")
                if _LENGTH.fullmatch(length):
                    self._repeated = beginning, status, self._fields, self._keeps_open
                return data
            self._interim += 1
            if status == 101 or self._interim > _MAX_INTERIM:
                raise _fault(f"has the status {status}, which was not requested")
            self._held = data

    def _begin_body(self, *, is_http_1_1: bool) -> None:
        fields = self._fields
        connection = fields.get(b"connection", b"").lower()
        options = {option.strip() for option in connection.split(b",")}
        self._keeps_open = b"close" not in options if is_http_1_1 else b"keep-alive" in options
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _fault(f"has the Content-Encoding {fields[b'content-encoding'][:20]!r}, which was not requested")
        length = fields.get(b"content-length")
        if b"transfer-encoding" in fields:
            if length is not None or not is_http_1_1 or fields[b"transfer-encoding"].lower() != b"chunked":
                raise _fault("has a Transfer-Encoding that is not chunked, or a Content-Length beside it")
            self._is_chunked = True
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise _fault(f"has the Content-Length {length[:20]!r}")
            self._expect(int(length))
        else:
            raise _fault("has neither a Content-Length nor chunks: its end cannot be determined")
        if self._status in _EMPTY_STATUSES:
            raise _fault(f"has the status {self._status}, which was not requested")

    def _expect(self, size: int) -> None:
        """Expect ``size`` more bytes of the body or its next chunk."""
        self._missing = size
        if size + len(self._body) > self._max_body:
            raise _fault(f"has more than {self._max_body} bytes")

    def _read_chunks(self, data: bytes) -> Response | None:
        """Read chunks from ``data``: held bytes and new ones."""
        position = 0
        while True:
            if self._missing:
                piece = data[position : position + self._missing]
                self._body += piece
                self._missing -= len(piece)
                self._lacks_line_end = True
                position += len(piece)
                if self._missing:
                    break
            if self._lacks_line_end:
                if len(data) - position < 2:
                    break
                if data[position : position + 2] != b"\r\n":
                    raise _fault("has a chunk that is longer than its size")
                self._lacks_line_end = False
                position += 2
            end = data.find(b"\r\n", position)
            if end < 0:
                break
            if end - position > _MAX_CHUNK_LINE_BYTES:
                raise _fault("has a chunk's size line that is too long")
            size_line = _CHUNK_SIZE.fullmatch(data, position, end)
            if size_line is None:
                raise _fault("has a chunk without a size")
            self._expect(int(size_line[1], 16))
            if not self._missing:
                return self._read_trailers(data, position, end + 2)
            position = end + 2
        self._held = data[position:]
        if len(self._held) > _MAX_CHUNK_LINE_BYTES:
            raise _fault("has a chunk's size line that is too long")
        return None

    def _read_trailers(self, data: bytes, start: int, position: int) -> Response | None:
        """Read to the end of the body, or hold everything from ``start``, the last chunk's line, on."""
        while (end := data.find(b"\r\n", position)) >= 0:
            if end == position:
                if len(data) > end + 2:
                    raise _fault("continues after its last chunk")
                return self._finish(b"")
            position = end + 2
        self._held = data[start:]
        if len(self._held) > _MAX_TRAILER_BYTES:
            raise _fault("has trailers that are too long")
        return None


def _parse_fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, _TOKEN_BYTES):
            raise _fault(f"has a header field without a name: {line[:60]!r}")
        value = value.strip(b" \t")
        if len(value.translate(None, _CONTROL_BYTES)) != len(value):
            raise _fault(f"has control characters in the header field {name[:40]!r}")
        name = name.lower()
        if name in fields:
            if name not in _REPEATABLE:
                raise _fault(f"has the header field {name[:40]!r} twice")
            value = fields[name] + b", " + value
        fields[name] = value
    return fields


def _beginning_fault(data: bytes) -> InvalidAnswer:
    line = data.partition(b"\r\n")[0]
    what = f"begins with {line[:60]!r}, not as HTTP/1.1 does"
    return _fault(what, REDIS_HINT) if begins_redis_reply(data) else _fault(what)


def _fault(what: str, hint: str = _NO_ROUTER) -> InvalidAnswer:
    return InvalidAnswer(f"the answer {what}", hint=hint)
