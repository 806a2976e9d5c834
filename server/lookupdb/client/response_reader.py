"""Reads HTTP/1.1 answers from the bytes of a connection, strictly: what could be read two ways is an error.

It knows what routers send, and what proxies before them make of it: a body with a length, or in chunks. It knows no
body that ends with the connection, because such a one may have lost its end unseen.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lookupdb.errors import InvalidAnswer
from lookupdb.redis_port import REDIS_HINT, begins_redis_reply

MAX_HEAD_BYTES: Final = 32 << 10
_MAX_TRAILER_BYTES: Final = 4 << 10
_MAX_INTERIM: Final = 8
"""Answers 1xx before the real one."""
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
"""Fields of proxies that may stand there twice. All others may not: two lengths or two generations are none."""
_EMPTY_STATUSES: Final = frozenset((204, 304))
_NO_ROUTER: Final = "is there a lookupdb router, or a proxy that changes what it answers?"


class Response(NamedTuple):
    """One whole answer."""

    status: int
    fields: dict[bytes, bytes]
    """By their names in lower case; the length is that of the body."""
    body: bytes | bytearray
    keeps_open: bool
    """Whether the connection may be used again."""


class ResponseReader:
    """Reads one answer after another."""

    __slots__ = (
        "_body",
        "_fields",
        "_held",
        "_interim",
        "_is_chunked",
        "_keeps_open",
        "_lacks_line_end",
        "_max_body",
        "_missing",
        "_repeated",
        "_status",
    )

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._repeated = b"", 0, _NO_FIELDS, False
        """The last head up to its Content-Length, if that was its end, with its status, its other fields, and whether
        it keeps the connection open. A router's heads differ in nothing else for a second."""
        self._reset()

    def _reset(self) -> None:
        self._held = b""
        self._status = 0
        """0 until the head has come."""
        self._interim = 0
        self._body = bytearray()
        """What has come of a body that did not come at once."""
        self._missing = 0
        """Bytes of the body, or of the chunk, that have not come yet."""
        self._is_chunked = False
        self._lacks_line_end = False
        """That behind a chunk."""

    @property
    def has_begun(self) -> bool:
        """Whether a byte of the next answer has come."""
        return bool(self._status or self._held or self._interim)

    def feed(self, data: bytes) -> Response | None:
        """Take bytes, and return the answer once it is whole. Raises InvalidAnswer; the connection is then of no use.

        Bytes behind the answer are an error, too: nothing was asked yet that they could answer.
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
            raise _fault("goes on behind its Content-Length")
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
        """What follows the head; None while it is not whole."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if not data.startswith(_BEGINNING[: len(data)]):  # of Redis' protocol, say: its end would not come
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
                self._set_length(length)
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
                raise _fault(f"has the status {status}, for which nobody asked")
            self._held = data

    def _begin_body(self, *, is_http_1_1: bool) -> None:
        fields = self._fields
        connection = fields.get(b"connection", b"").lower()
        options = {option.strip() for option in connection.split(b",")}
        self._keeps_open = b"close" not in options if is_http_1_1 else b"keep-alive" in options
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _fault(f"has the Content-Encoding {fields[b'content-encoding'][:20]!r}, for which nobody asked")
        length = fields.get(b"content-length")
        if b"transfer-encoding" in fields:
            if length is not None or not is_http_1_1 or fields[b"transfer-encoding"].lower() != b"chunked":
                raise _fault("has a Transfer-Encoding that is not chunked, or a Content-Length beside it")
            self._is_chunked = True
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise _fault(f"has the Content-Length {length[:20]!r}")
            self._set_length(length)
        else:
            raise _fault("has neither a Content-Length nor chunks: its end cannot be told")
        if self._status in _EMPTY_STATUSES:
            raise _fault(f"has the status {self._status}, for which nobody asked")

    def _set_length(self, length: bytes) -> None:
        self._missing = int(length)
        self._check_size(self._missing)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise _fault(f"has more than {self._max_body} bytes")

    def _read_chunks(self, data: bytes) -> Response | None:
        """Take ``data``, which is what was held and what has come."""
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
            self._missing = int(size_line[1], 16)
            if not self._missing:
                return self._read_trailers(data, position, end + 2)
            position = end + 2
            self._check_size(self._missing + len(self._body))
        self._held = data[position:]
        if len(self._held) > _MAX_CHUNK_LINE_BYTES:
            raise _fault("has a chunk's size line that is too long")
        return None

    def _read_trailers(self, data: bytes, start: int, position: int) -> Response | None:
        """Read to the end of the body, or hold all from the last chunk's line position ``start`` on."""
        while (end := data.find(b"\r\n", position)) >= 0:
            if end == position:
                if len(data) > end + 2:
                    raise _fault("goes on behind its last chunk")
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
