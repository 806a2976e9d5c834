"""A router's HTTP/1.1: requests as bytes, bytes as answers, and what an answer means. No I/O.

``RequestRenderer`` renders requests, with equal heads for consecutive ones where possible. ``ResponseReader`` takes
pieces of bytes until an answer is whole. It is strict: anything ambiguous is an error. It reads what routers and the
proxies before them send, bodies with a length or in chunks. It refuses bodies that end with the connection, because
their end may be lost unnoticed.

A ``Response`` becomes a ``KeyAnswer`` or ``KeysAnswer``, in which each requested key is found, missing or unavailable,
with the generations that answered. Any other answer becomes an error, by its problem details or its status
(``refusal``). Callers get ``Lookup``, ``LookupResults`` and ``DatasetDescription``.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lookupdb import records
from lookupdb.client.settings import RouterAddress
from lookupdb.errors import (
    REDIS_HINT,
    InvalidAnswer,
    LookupFailed,
    RequestRefused,
    Unavailable,
    UnknownGeneration,
    UsageError,
    begins_redis_reply,
)
from lookupdb.records import InvalidFrames, Key, UnusableColumn, join_key

Decode = Callable[[bytes | bytearray], Any]  # parses JSON
Render = Callable[[bytes], bytes]  # renders a request, with additional lines in its head
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", re.ASCII)  # keys that need no escapes
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPES: Final = tuple(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256))
_OF_BATCH: Final = f"Accept: application/json, {records.FRAMES}\r\nContent-Type: application/json\r\n".encode()
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
"""Fields that proxies may repeat. Any other repeated field is an error."""
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
            raise TypeError(f"a key must be a str, found {type(key).__name__}: {key!r:.60}")
        key = str.__str__(key)
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a key must be Unicode text, found half a surrogate pair in {key!r:.60}") from error
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
    """Return the head's line that makes the router answer within ``seconds``, less a share for the network. Keys
    without an answer by then are unavailable."""
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
        """The last head up to its Content-Length, if that was its last field; its status, its other fields, and
        whether the connection stays open. Within a second, a router's heads differ only in their length."""
        self._reset()

    def _reset(self) -> None:
        self._held = b""
        self._status = 0  # 0 until the head is complete
        self._interim = 0
        self._body = bytearray()  # the received part of a body
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
        """Read to the body's end; until then, keep everything from ``start``, where the last chunk's line begins."""
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


# The meaning of an answer.

GENERATION: Final = b"lookupdb-generation"
_VALUE_FORMAT: Final = b"lookupdb-value-format"
_GENERATIONS: Final = re.compile(rb"g[1-9][0-9]{0,8}(?:, g[1-9][0-9]{0,8})*")
_JSON: Final = b"application/json"
_OCTETS: Final = b"application/octet-stream"
_FRAMES: Final = records.FRAMES.encode()
_TYPE_PREFIX: Final = "https://lookupdb.dev/problems/"
_MAX_PROBLEM_BYTES: Final = 1 << 16
_MAX_CHARACTERS: Final = 1000
_PARTIAL_OF_HTTP: Final = 'with "partial": true'
"""A part of the router's advice for a batch with unavailable keys. Callers of this client see ``partial=True``
instead.
"""
_HINTS: Final = {
    "unauthenticated": "give the client a valid token, by token= or token_file=",
    "forbidden": "let spec.router.auth of the dataset name this service account",
    "no-such-resource": "check that the URL has the router's public port, and either no path or /v1/datasets/NAME",
    "answer-too-large": "request fewer keys at once, or a large value alone",
}


class _Missing:
    """The value of a missing key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Lookup(NamedTuple):
    """The result of a lookup of one key."""

    value: Any
    """None if the key is missing; but None may also be a value: see ``is_found``."""
    is_found: bool
    generation: str | None
    """The generation that answered. None for a key that no record can have, while the dataset is rolled out shard by
    shard."""


class LookupResults(NamedTuple):
    """The result of a lookup of many keys. Each requested key is in exactly one of ``found``, ``missing`` and
    ``unavailable``, once, in the order of the request."""

    found: dict[Any, Any]
    """Key, as requested → value."""
    missing: list[Any]
    """Keys that no record has."""
    unavailable: list[Any]
    """Keys that cannot be looked up now. Empty without ``partial``."""
    generation: str | None
    """The generation that answered; None if several did, while the dataset is rolled out shard by shard."""
    generations: tuple[str, ...]
    """The generations that answered, in the order of their numbers."""

    def of_columns(self, texts: Mapping[Key, str]) -> LookupResults:
        """Return these results for the keys that are joined to ``texts``."""
        missing, unavailable = {*self.missing}, {*self.unavailable}
        return self._replace(
            found={key: self.found[text] for key, text in texts.items() if text in self.found},
            missing=[key for key, text in texts.items() if text in missing],
            unavailable=[key for key, text in texts.items() if text in unavailable],
        )

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise TypeError(f"results have three parts, and no keys of their own: write results.found[{place!r:.60}]")
        return tuple.__getitem__(self, place)


class KeyColumns(NamedTuple):
    """The columns of a key, and what joins them."""

    columns: tuple[str, ...]
    separator: str

    def join(self, key: Key) -> str:
        """Return the text of ``key``. If no record can have it, return an empty text, which no record has either."""
        if not isinstance(key, tuple):
            return key
        try:
            return join_key(self.columns, key, self.separator)
        except UnusableColumn:
            return ""


class DatasetDescription(NamedTuple):
    """The dataset that a router serves."""

    namespace: str
    name: str
    generation: str
    """The active generation; during a rollout shard by shard, the new one."""
    records: int
    """Number of records of ``generation``."""
    shards: int
    built_at: str
    """When ``generation`` was built, ISO 8601, UTC; if several serve, when the oldest was."""
    age_seconds: float
    """Seconds since ``built_at``."""
    candidates: tuple[str, ...]
    """Other generations for ``at``."""
    shard_generations: Mapping[str, int]
    """During a rollout shard by shard: generation → number of shards that it serves. Else empty."""
    keys: Mapping[str, KeyColumns] = {}
    """Generation → the columns of its keys, if these have several."""


def decode_json(text: bytes | bytearray) -> Any:
    """Parse JSON as ``records.decode_json`` does. Raises InvalidAnswer."""
    try:
        return records.decode_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not valid JSON: {error}") from error


class ProblemDetails(NamedTuple):
    """A router's problem details (RFC 9457); empty if the answer has none."""

    name: str = ""
    detail: str = ""
    members: Mapping[str, Any] = {}


def read_problem(response: Response) -> ProblemDetails:
    """Return the answer's problem details."""
    if _media_type(response) != b"application/problem+json" or len(response.body) > _MAX_PROBLEM_BYTES:
        return ProblemDetails()
    try:
        members = decode_json(response.body)
    except InvalidAnswer:
        return ProblemDetails()
    if not isinstance(members, dict):
        return ProblemDetails()
    name = _printable(members.get("type"))
    is_ours = name.startswith(_TYPE_PREFIX)
    return ProblemDetails(name[len(_TYPE_PREFIX) :] if is_ours else "", _printable(members.get("detail")), members)


def is_of_the_connection(response: Response) -> bool:
    """Return whether the answer concerns only this connection: the request may be sent over another one."""
    if response.status == 503:
        return read_problem(response).name == "too-many-connections"
    return response.status == 408


def refusal(response: Response, keys: tuple[str, ...], expected: str | None = None) -> LookupFailed:
    """Return the error for an answer other than 200. ``expected`` is the generation that was requested by name."""
    status, problem = response.status, read_problem(response)
    if status >= 500:  # from a router or a proxy: whatever the cause, the keys are unavailable
        camel_case = "".join(map(str.capitalize, problem.name.split("-")))
        reason = _printable(problem.members.get("reason")) or camel_case or f"Status{status}"
        detail = problem.detail.replace(_PARTIAL_OF_HTTP, "with partial=True")
        shard = problem.members.get("shard")
        detail = detail or f"the answer was {status}, not from a router"
        return make_unavailable(keys, reason, detail, shard if isinstance(shard, int) else None)
    answered = f"the router answered {status}"
    if not problem.name:
        if status in (404, 405) or status < 400:  # 405: an admin port's answer to a batch
            return InvalidAnswer(f"{answered}, not as a router does", hint=_HINTS["no-such-resource"])
        return RequestRefused(f"{answered} without saying why", status=status)
    text = f"{answered} {problem.name}: {problem.detail}"
    if status == 412:
        active = problem.members.get("active")
        names = tuple(map(_printable, active)) if isinstance(active, list) else ()
        named = f"; active is {', '.join(names)}" if names else ""
        text = text.partition("; leave Lookupdb-Generation")[0]
        return UnknownGeneration(f"{text}{named}", generation=expected or "", active=names)
    limit = problem.members.get("limit")
    limit = limit if isinstance(limit, int) and limit > 0 else None
    return RequestRefused(text, hint=_HINTS.get(problem.name), status=status, problem=problem.name, limit=limit)


def make_unavailable(keys: tuple[str, ...], reason: str, detail: str, shard: int | None = None) -> Unavailable:
    """Return the error for ``keys``, at least one of which cannot be looked up now."""
    shown = ", ".join(repr(key[:60]) for key in keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    what = f"unavailable now: {shown}" if keys else "unavailable now"
    return Unavailable(f"{what} ({reason}): {detail}", keys=keys, reason=reason, detail=detail, shard=shard)


def _printable(value: object) -> str:
    """Return ``value``, if it is text, as one line without control characters."""
    if not isinstance(value, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in value[:_MAX_CHARACTERS])


class KeyAnswer(NamedTuple):
    """The answer for one key."""

    value: Any  # the value, or MISSING
    generation: str | None  # None if several generations answered the key's batch, or no record can have the key

    @property
    def is_found(self) -> bool:
        """True if a record has the key."""
        return self.value is not MISSING


class KeysAnswer(NamedTuple):
    """The answer for many keys. Each key is in one of the three parts, in the requested order."""

    found: dict[str, Any]
    missing: dict[str, Any]
    unavailable: dict[str, Any]
    generations: tuple[str, ...]

    @property
    def generation(self) -> str | None:
        """The only generation that answered, or None."""
        return self.generations[0] if len(self.generations) == 1 else None

    def to_results(self) -> LookupResults:
        """Return the result of a call."""
        generation = self.generation
        return LookupResults(self.found, [*self.missing], [*self.unavailable], generation, self.generations)


def read_key_answer(response: Response, key: str, expected: str | None, decode: Decode = decode_json) -> KeyAnswer:
    """Read the answer to ``RequestRenderer.lookup``, from the generation ``expected`` if one was requested. Raises
    LookupFailed."""
    is_missing = response.status == 404 and GENERATION in response.fields and read_problem(response).name == "missing"
    if response.status != 200 and not is_missing:
        raise refusal(response, (key,), expected)
    generations = _read_generations(response, expected)
    generation = generations[0] if len(generations) == 1 else None
    if is_missing:
        return KeyAnswer(MISSING, generation)
    kind = _media_type(response)
    if kind not in (_JSON, _OCTETS):
        raise InvalidAnswer(f"expected a value as JSON or octets, found the Content-Type {kind[:60]!r}")
    return KeyAnswer(decode(response.body) if kind == _JSON else bytes(response.body), generation)


def read_batch_answer(
    response: Response, keys: Sequence[str], expected: str | None, *, partial: bool, decode: Decode = decode_json
) -> KeysAnswer:
    """Read the answer to ``RequestRenderer.batch`` for ``keys``, which are distinct; without ``partial`` it must cover
    all of them. ``decode`` parses JSON. Raises LookupFailed."""
    if response.status != 200:
        raise refusal(response, tuple(keys), expected)
    media_type, value_format = _media_type(response), response.fields.get(_VALUE_FORMAT)
    document = decode(response.body) if media_type == _JSON else None
    if media_type != _FRAMES and not isinstance(document, dict):
        raise InvalidAnswer(
            f"expected a JSON object or frames as the answer to a batch, found {bytes(response.body[:60])!r}"
            f" with the Content-Type {media_type[:60]!r}",
            hint=_NO_ROUTER,
        )
    if value_format not in (b"json", b"raw"):
        raise InvalidAnswer(
            "the answer does not say by Lookupdb-Value-Format whether its values are JSON or raw",
            hint="is the router older than this client, or does a proxy remove header fields?",
        )
    found: dict[str, Any]
    if document is None:
        try:
            frames, missing, unavailable = records.decode_frames(response.body, keys)
        except InvalidFrames as error:
            raise InvalidAnswer(f"the answer to a batch is malformed: {error}") from error
        found = frames if value_format == b"raw" else {key: decode(value) for key, value in frames.items()}
        absent, unknown = dict.fromkeys(missing), dict.fromkeys(unavailable)
    else:
        members = document.get("found"), document.get("missing"), document.get("unavailable", [])
        if [*map(type, members)] != [dict, list, list]:
            raise InvalidAnswer("the answer to a batch says neither what was found nor what is missing")
        found, absent, unknown = _arrange(*members, keys)
        if value_format == b"raw":
            try:
                found = {key: binascii.a2b_base64(text, strict_mode=True) for key, text in found.items()}
            except (ValueError, TypeError) as error:
                raise InvalidAnswer(f"a raw value of the answer is not base64: {error}") from error
    if unknown and not partial:
        raise InvalidAnswer("the answer to a batch leaves keys unanswered, although the request did not allow that")
    generations = _read_generations(response, expected)
    if document is not None:
        told = [document.get("generation")] if len(generations) == 1 else document.get("generations")
        if told != list(generations):
            raise InvalidAnswer(f"the answer's head names {', '.join(generations)}, its body {told!r:.60}")
    return KeysAnswer(found, absent, unknown, generations)


def _arrange(
    found: dict[str, Any], missing: list[Any], unavailable: list[Any], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the three parts in the order of ``keys``. Raises InvalidAnswer unless each key is in one: an omitted key
    is not a missing key."""
    if not (missing or unavailable) and [*found] == [*keys]:  # routers keep their order
        return found, {}, {}
    try:
        is_whole = {*found, *missing, *unavailable} == {*keys}
    except TypeError:  # not text
        is_whole = False
    if not is_whole or len(found) + len(missing) + len(unavailable) != len(keys):
        raise InvalidAnswer("the answer to a batch does not list exactly the requested keys, each once")
    parts = found, dict.fromkeys(missing), dict.fromkeys(unavailable)
    found, absent, unknown = ({key: part[key] for key in keys if key in part} if part else {} for part in parts)
    return found, absent, unknown


def read_dataset(response: Response) -> DatasetDescription:
    """Read the answer to ``RequestRenderer.dataset``. Raises LookupFailed."""
    if response.status != 200:
        raise refusal(response, ())
    document = decode_json(response.body)
    try:
        return DatasetDescription(
            namespace=_text(document["namespace"]),
            name=_text(document["name"]),
            generation=_text(document["generation"]),
            records=int(document["records"]),
            shards=int(document["shards"]),
            built_at=_text(document["builtAt"]),
            age_seconds=float(document["ageSeconds"]),
            candidates=tuple(map(_text, document["candidates"])),
            shard_generations={_text(name): int(count) for name, count in document.get("shardGenerations", {}).items()},
            keys={
                _text(name): KeyColumns(tuple(map(_text, key["columns"])), _text(key["separator"]))
                for name, key in document.get("keys", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidAnswer(f"the answer does not describe a dataset as a router does: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def _media_type(response: Response) -> bytes:
    return response.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _read_generations(response: Response, expected: str | None) -> tuple[str, ...]:
    field = response.fields.get(GENERATION, b"")
    if not _GENERATIONS.fullmatch(field):
        raise InvalidAnswer(
            f"expected generations in Lookupdb-Generation, found {field[:60]!r}",
            hint="check that a lookupdb router listens there, on its public port",
        )
    if expected is not None and field != expected.encode():
        raise InvalidAnswer(
            f"generation {expected} was requested, but {field.decode()} answered",
            hint="does a proxy remove the header field Lookupdb-Generation?",
        )
    return tuple(field.decode().split(", "))
