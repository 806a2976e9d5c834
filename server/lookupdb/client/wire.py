"""Requests as bytes, and bytes as answers: HTTP/1.1 as a router speaks it. No I/O.

A lookup leaves as what ``RequestRenderer`` makes of its key, whose head is the same from one request to the next
wherever it can be. What comes back goes to ``ResponseReader``, piece by piece, until an answer is whole. It is strict:
what could be read two ways is an error. It knows what routers send, and what proxies before them make of it: a body
with a length, or in chunks. It knows no body that ends with the connection, because such a one may have lost its end
unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.client.settings import RouterAddress
from lookupdb.errors import InvalidAnswer, UsageError
from lookupdb.shard_name import REDIS_HINT, begins_redis_reply

Render = Callable[[bytes], bytes]
"""Makes a request, given further lines of its head."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)
"""Keys that no client and no proxy would write in another way."""
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPES: Final = tuple(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256))
_OF_BATCH: Final = f"Accept: application/json, {FRAMES}\r\nContent-Type: application/json\r\n".encode()
"""Raw values then come as the bytes that they are; a router that does not know these frames sends JSON."""
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
        import orjson  # by the first request: its import takes half of what that of the whole client would

        body = orjson.dumps({"keys": keys, "partial": True} if partial else {"keys": keys})
        parts = self._prefix, self._fields, fields, _OF_BATCH, len(body), body
        return b"POST %blookup%b%b%bContent-Length: %d\r\n\r\n%b" % parts

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
        *("_body", "_fields", "_held", "_interim", "_is_chunked", "_keeps_open"),
        *("_lacks_line_end", "_max_body", "_missing", "_repeated", "_status"),
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
            self._expect(int(length))
        else:
            raise _fault("has neither a Content-Length nor chunks: its end cannot be told")
        if self._status in _EMPTY_STATUSES:
            raise _fault(f"has the status {self._status}, for which nobody asked")

    def _expect(self, size: int) -> None:
        """Have so many bytes follow, of the body or of its next chunk."""
        self._missing = size
        if size + len(self._body) > self._max_body:
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
            self._expect(int(size_line[1], 16))
            if not self._missing:
                return self._read_trailers(data, position, end + 2)
            position = end + 2
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
