"""Reads requests out of what a client sends. No I/O: bytes go in, requests and refusals come out.

llhttp, the parser within httptools, refuses by itself: two lengths, a length beside chunks, lengths and chunk sizes
that are not plain numbers or overflow, white space before a colon, folded lines, bare CR and LF, NUL and other
control characters. Added here is what it lets pass: other transfer codings than ``chunked``, chunks in HTTP/1.0,
HTTP/0.9 and 2.0, CONNECT, a missing or repeated Host, endless heads and chunk extensions, trailers taken for header
fields, and a body that goes unread because its request also asks for an upgrade: to ask for one changes nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

import httptools

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.router.http import problems
from lookupdb.router.http.problems import (
    CLOSE,
    JSON,
    KEEP_ALIVE,
    MAX_CHUNK_OVERHEAD_BYTES,
    MAX_HEAD_BYTES,
    MAX_REMEMBERED_HOST_BYTES,
    MAX_TARGET_BYTES,
    OCTETS,
    PERSISTENT,
    SLICE_BYTES,
    HttpProblem,
    ProblemType,
)

# The Accept header field: which media types a client accepts (RFC 9110, 12.5.1).


ANYTHING: Final = b"*/*"

_MAX_CACHED_BYTES: Final = 256


class AcceptField:
    """The media types that a client accepts, among the two that values have, and of a batch's answer."""

    __slots__ = ("_accepted", "_names_frames")

    def __init__(self, field: bytes) -> None:
        ranges = [_parse_range(part) for part in field.decode("latin-1").lower().split(",") if part.strip()]
        self._accepted = frozenset(media_type for media_type in (JSON, OCTETS) if _find_quality(media_type, ranges) > 0)
        self._names_frames = dict(ranges).get(FRAMES, 0) > 0

    def allows(self, media_type: str) -> bool:
        """Whether the client accepts ``media_type``, which is JSON or OCTETS."""
        return media_type in self._accepted

    def allows_batch(self) -> bool:
        """Whether the client accepts one of the two media types of a batch's answer."""
        return self._names_frames or JSON in self._accepted

    def prefers_frames(self, value_format: str) -> bool:
        """Whether a batch of such values is to be answered as frames: for who names these, if the values are raw, or if
        JSON is ruled out."""
        return self._names_frames and (value_format == "raw" or JSON not in self._accepted)


def parse_accept(field: bytes | None) -> AcceptField | None:
    """The parsed field; None if the client accepts anything."""
    if field is None or field == ANYTHING or not field.strip():
        return None
    return _parse_cached(field) if len(field) <= _MAX_CACHED_BYTES else AcceptField(field)


@lru_cache(maxsize=256)
def _parse_cached(field: bytes) -> AcceptField:
    return AcceptField(field)


def _parse_range(part: str) -> tuple[str, float]:
    """A media range and its quality; one that cannot be read counts as 1, so that nobody is refused for it."""
    media_range, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, float(value)
            except ValueError:
                return media_range, 1.0
    return media_range, 1.0


def _find_quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """The quality that the most specific range gives ``media_type``; 0 when none fits it."""
    qualities = dict(ranges)
    for media_range in (media_type, media_type.split("/")[0] + "/*", "*/*"):
        if media_range in qualities:
            return qualities[media_range]
    return 0.0


# The request target: which resource it names, and which key, percent-decoded exactly once.
#
# In a path everything after ``/v1/lookup/`` is the key: a ``/`` or a ``+`` is itself, escaped or not. In a query
# ``?key=…`` is read as HTML forms write it: ``+`` is a space. What could be read two ways is refused, never guessed:
# a wrong answer is worse than no answer. Other parameters, which proxies and tracers add, are ignored. A part of the
# query that is no ``name=value`` is refused where the target has a key, because it may be the rest of that key.


LOOKUP: Final = b"/v1/lookup"
LOOKUP_KEY: Final = b"/v1/lookup/"
DATASET: Final = b"/v1/dataset"
HEALTHZ: Final = b"/healthz"
READYZ: Final = b"/readyz"
PROBES: Final = (HEALTHZ, READYZ)
SERVER: Final = b"*"
"""``OPTIONS *`` asks about the server as a whole."""

_MAX_SHOWN: Final = 40
"""Characters of a parameter in a message."""
_PERCENT, _QUESTION, _HASH = b"%?#"
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def to_origin_form(target: bytes) -> bytes:
    """``target`` without scheme and authority, which clients send to proxies and servers have to take."""
    absolute = _ABSOLUTE.match(target)
    if not absolute:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def names_probe(target: bytes) -> bool:
    """Return whether ``target`` is ``/healthz`` or ``/readyz``."""
    return to_origin_form(target).partition(b"?")[0] in PROBES


def decode_key_in_path(raw: bytes) -> str:
    """The key that ``raw``, what follows ``/v1/lookup/``, stands for. Raises HttpProblem.

    ``raw`` is ASCII: the parser refuses a target with any other byte.
    """
    # A byte is sought in a quarter of the time that a bytes object of length one is.
    if _QUESTION in raw or _HASH in raw:
        raw, _, query = raw.partition(b"?")
        refuse_fragment(raw)
        if _read_keys(query, "? or &, write it as %3F or %26"):
            raise HttpProblem(
                problems.INVALID_TARGET,
                "the path holds a key and the query another one; leave one of them out, or write ? as %3F if it "
                "belongs to the key",
            )
    return _decode(raw) if _PERCENT in raw else raw.decode()


def decode_key_in_query(query: bytes) -> str:
    """The key that ``query``, what follows ``/v1/lookup?``, stands for. Raises HttpProblem."""
    if not query:
        raise HttpProblem(
            problems.INVALID_TARGET, "expected a key, as /v1/lookup/{key} or /v1/lookup?key=…; the target holds none"
        )
    keys = _read_keys(query, "&, write it as %26")
    if len(keys) > 1:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the query holds {len(keys)} keys, expected one; POST looks several up"
        )
    if not keys:
        found = ", ".join(repr(name.decode("latin-1")) for name, _, _ in _split(query))[:_MAX_SHOWN]
        raise HttpProblem(problems.INVALID_TARGET, f"expected the parameter key, as /v1/lookup?key=…, found {found}")
    return _decode(keys[0].replace(b"+", b" "))


def refuse_key_in_query(query: bytes, why: str) -> None:
    """Raise HttpProblem if ``query`` holds a key where none belongs. ``why`` says where one does."""
    if any(name == b"key" for name, _, _ in _split(query)):
        raise HttpProblem(problems.INVALID_TARGET, f"the query holds a key, and {why}")


def refuse_fragment(target: bytes) -> None:
    """Raise HttpProblem if ``target`` holds a ``#``, which no client sends unless it belongs to a key."""
    if _HASH in target:
        raise HttpProblem(problems.INVALID_TARGET, "the target holds #; if it belongs to the key, write it as %23")


def _read_keys(query: bytes, escape: str) -> list[bytes]:
    """Return the values of the parameters ``key``, as they are written. Other parameters are ignored.

    What may be a part of a key that was not escaped is refused, and ``escape`` says what to do about it. Raises
    HttpProblem.
    """
    refuse_fragment(query)
    parameters = _split(query)
    for name, equals, _ in parameters:
        if not (name and equals):
            found = repr(name.decode("latin-1")[:_MAX_SHOWN]) if name else "an empty one"
            raise HttpProblem(
                problems.INVALID_TARGET,
                f"expected parameters name=value in the query, found {found}; if the key holds {escape}, "
                "else leave it out",
            )
    keys = [value for name, _, value in parameters if name == b"key"]
    if b";" in query and len(keys) != sum(name == b"key" for name, _, _ in _split(query.replace(b";", b"&"))):
        raise HttpProblem(
            problems.INVALID_TARGET,
            "the query holds another key behind a semicolon; write ; as %3B if it belongs to the key, or & if it "
            "separates parameters",
        )
    return keys


def _split(query: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return the name, decoded, of each parameter, its ``=`` if it has one, and its value, as it is written."""
    parameters = (parameter.partition(b"=") for parameter in query.split(b"&"))
    return [(unquote_to_bytes(name.replace(b"+", b" ")), equals, value) for name, equals, value in parameters]


def _decode(raw: bytes) -> str:
    broken = _BROKEN_ESCAPE.search(raw)
    if broken:
        raise HttpProblem(
            problems.INVALID_TARGET,
            f"% at byte {broken.start()} of the key is not followed by two hexadecimal digits; write % as %25",
        )
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise HttpProblem(
            problems.INVALID_TARGET, f"the key is not UTF-8: {error.reason} at byte {error.start}"
        ) from None


log = logging.getLogger(__name__)

HOST: Final = "host"
AUTHORIZATION: Final = "authorization"
ACCEPT: Final = "accept"
CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"
CONTENT_LENGTH: Final = "content-length"
CONNECTION: Final = "connection"
GENERATION: Final = "lookupdb-generation"
DEADLINE: Final = "lookupdb-deadline-ms"
IF_NONE_MATCH: Final = "if-none-match"
_CODING: Final = "transfer-encoding"
_EXPECT: Final = "expect"
_UPGRADE: Final = "upgrade"

_LISTS: Final = frozenset((ACCEPT, CONNECTION, _UPGRADE, CONTENT_ENCODING, DEADLINE, IF_NONE_MATCH))
"""Fields that may be repeated: the values are then one list. No deadline is one, and a list is ignored as such."""

_LOWER: Final = {
    name.encode(): name
    for name in (
        *(HOST, ACCEPT, CONTENT_TYPE, CONTENT_ENCODING, GENERATION, DEADLINE, AUTHORIZATION, IF_NONE_MATCH),
        *(CONTENT_LENGTH, _CODING, _EXPECT, CONNECTION, _UPGRADE, "proxy-connection"),
    )
}
_IGNORED: Final = (
    "User-Agent",
    "Accept-Encoding",
    "Accept-Language",
    "Cache-Control",
    "X-Request-Id",
    "X-Forwarded-For",
)
_FIELDS: Final = (
    _LOWER
    | {name.title().encode(): name for name in _LOWER.values()}
    | {spelling.encode(): "" for name in _IGNORED for spelling in (name, name.lower())}
)
"""The fields that matter here, as they are usually spelled, and common ones that do not ("")."""

_SLASH: Final = ord("/")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class Request:
    """One request: what of its head matters, and its body. ``connection_field`` is its answer's ``Connection``."""

    __slots__ = ("accepts_anything", "body", "connection_field", "fields", "is_plain", "method", "refusal", "target")

    def __init__(self, target: bytes) -> None:
        self.method = b""
        self.target = target
        self.fields: dict[str, bytes] = {}
        """Name in lower case → value, for the fields above only."""
        self.body = b""
        self.connection_field = PERSISTENT
        self.refusal: HttpProblem | None = None
        """Who asks may not: with what the request is answered, whatever it asks."""
        self.accepts_anything = False
        """A first Accept field that says so and no more, as many clients send, is not kept."""
        self.is_plain = True
        """HTTP/1.1 that keeps the connection open, without a body, and with no field but Host."""


class RequestReader:
    """Cuts the bytes of one connection into requests.

    ``on_request`` is called with each request once it is whole, ``on_continue`` when a client waits for leave to
    send its body. ``authorize``, where only some may ask, says of the Authorization field (None: there is none) with
    which problem its request is answered; a body that nobody may send is not read. None of them may raise.
    ``is_partial`` tells whether a request has begun and is not whole.
    """

    __slots__ = (
        "_authorize",
        "_body",
        "_body_bytes",
        "_is_body_skipped",
        "_is_ended",
        "_is_in_body",
        "_known_host",
        "_max_body_bytes",
        "_on_continue",
        "_on_request",
        "_parser",
        "_received_bytes",
        "_request",
        "is_partial",
    )

    def __init__(
        self,
        max_body_bytes: int,
        on_request: Callable[[Request], None],
        on_continue: Callable[[], None],
        authorize: Callable[[bytes | None], HttpProblem | None] | None = None,
    ) -> None:
        self.is_partial = False
        self._authorize = authorize
        self._max_body_bytes = max_body_bytes
        self._on_request = on_request
        self._on_continue = on_continue
        self._known_host: bytes | None = None
        """The last valid Host."""
        self._request: Request | None = None
        self._is_in_body = False
        """The head is whole: header fields from now on are trailers."""
        self._body = bytearray()
        self._body_bytes = 0
        self._is_body_skipped = False
        """The parser has passed over the body of a request that asked for an upgrade."""
        self._received_bytes = 0
        """Bytes of the unfinished request, to within a slice."""
        self._is_ended = False
        self._parser = httptools.HttpRequestParser(self)

    # What the connection calls

    def feed(self, data: bytes | memoryview) -> None:
        """Read on. Raises HttpProblem when the bytes hold no further request: answer it and close.

        What follows a request that closes the connection is dropped.
        """
        self.is_partial = True
        size = len(data)
        if size > SLICE_BYTES:
            view = memoryview(data)
            for start in range(0, size, SLICE_BYTES):
                self.feed(view[start : start + SLICE_BYTES])
            return
        while True:
            try:
                if self._is_body_skipped:
                    self._read_skipped_body()
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Declined by not answering it. What follows is read out here: an error's context is its cause.
                data = data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as error:
                self._raise_failure(error)
            break
        if self.is_partial:
            self._check_bounds(size)

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept of the unfinished request."""
        return self._received_bytes

    def forget_empty_lines(self) -> None:
        """What has come since the last request was nothing else, and begins none: it counts for nothing."""
        self.is_partial = False
        self._received_bytes = 0

    def close(self) -> None:
        """Let go of the parser and the callbacks, which refer back here: nothing waits for the garbage collector."""
        self.is_partial = False
        del self._parser, self._on_request, self._on_continue, self._authorize

    def _raise_failure(self, error: httptools.HttpParserError) -> None:
        """Raise what the parser, or one of its calls below, found. After a request that closes, that is nothing."""
        cause = error.__context__
        if isinstance(cause, HttpProblem):
            raise cause
        if self._is_ended:
            return
        self._is_ended = True
        if cause is not None:
            log.error("a request could not be read", exc_info=cause)
            raise HttpProblem(problems.INTERNAL, "the router failed to read the request")
        raise HttpProblem(problems.MALFORMED, str(error))

    def _read_skipped_body(self) -> None:
        """Read the body of a request that also asked for an upgrade.

        The parser takes what follows such a head for the other protocol; here it is the body (Java's HTTP client
        asks for an upgrade whatever it sends). A new parser reads the head again, without the upgrade.
        """
        self._is_body_skipped = False
        request = self._present_request()
        target, request.target = request.target, b""
        coded = _CODING in request.fields
        framing = b"Transfer-Encoding: chunked" if coded else b"Content-Length: " + request.fields[CONTENT_LENGTH]
        method, version = request.method, self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        head = b"%b %b HTTP/%b\r\n%b\r\n%b\r\n" % (method, target, version, framing, request.connection_field)
        self._parser.feed_data(head)

    def _check_bounds(self, size: int) -> None:
        """Keep what is collected of an unfinished head or body within bounds."""
        self._received_bytes += size
        if self._is_in_body:
            if self._received_bytes - 17 * self._body_bytes > MAX_CHUNK_OVERHEAD_BYTES + MAX_HEAD_BYTES:
                raise self._refuse(problems.HEAD_TOO_LARGE, "chunk extensions or trailers are too large")
        elif self._received_bytes > MAX_HEAD_BYTES:
            if self._request is not None and len(self._request.target) > MAX_TARGET_BYTES:
                raise self._target_too_long()
            raise self._refuse(
                problems.HEAD_TOO_LARGE,
                f"request line and header fields are larger than {MAX_HEAD_BYTES} bytes",
            )

    def _refuse(self, kind: ProblemType, detail: str) -> HttpProblem:
        self._is_ended = True
        return HttpProblem(kind, detail)

    def _target_too_long(self) -> HttpProblem:
        return self._refuse(problems.TARGET_TOO_LONG, f"the request target is longer than {MAX_TARGET_BYTES} bytes")

    def _body_too_large(self) -> HttpProblem:
        return self._refuse(problems.BODY_TOO_LARGE, f"the request body is larger than {self._max_body_bytes} bytes")

    def _present_request(self) -> Request:
        assert self._request is not None
        return self._request

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins, perhaps right behind an earlier one: its first byte is part of it."""
        self.is_partial = True

    def on_url(self, target: bytes) -> None:
        """A piece of the request target."""
        request = self._request
        if request is None:
            self._request = Request(target)
        else:
            request.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer, which means nothing here."""
        field = _FIELDS.get(name)
        if field is None:
            field = _LOWER.get(name.lower())
        if not field or self._is_in_body or (field is AUTHORIZATION and self._authorize is None):
            return
        request = self._present_request()
        fields = request.fields
        if field not in fields:
            if field is ACCEPT:
                self._begin_accept(request, value)
            else:
                fields[field] = value
        elif field in _LISTS:
            fields[field] += b", " + value
        else:
            raise self._refuse(problems.MALFORMED, f"the header field {field} is repeated")

    def _begin_accept(self, request: Request, value: bytes) -> None:
        if request.accepts_anything:
            request.fields[ACCEPT] = b"*/*, " + value
        elif value == b"*/*":
            request.accepts_anything = True
        else:
            request.fields[ACCEPT] = value

    def on_headers_complete(self) -> None:
        """The head is whole: see that it may be read as HTTP/1.1 or 1.0, and who closes the connection."""
        self._is_in_body = True
        request = self._present_request()
        request.method = self._parser.get_method()
        fields = request.fields
        target = request.target
        if len(target) > MAX_TARGET_BYTES:
            raise self._target_too_long()
        host = fields.get(HOST)
        if host is None or host != self._known_host:
            self._check_host(host)
        if self._authorize is not None and not _is_probe(request):
            self._check_authorization(request, self._authorize(fields.get(AUTHORIZATION)))
        if request.method == b"CONNECT":
            raise self._refuse(problems.MALFORMED, "the router is no proxy: it does not know CONNECT")
        if len(fields) != 1 or host is None or target[0] != _SLASH or not self._parser.should_keep_alive():
            request.is_plain = False
            self._check_head(request)

    def _check_authorization(self, request: Request, problem: HttpProblem | None) -> None:
        """Answer ``problem``, if there is one; before a body that who asks may not send is read."""
        if problem is None:
            return
        if _has_body(request.fields):
            self._is_ended = True
            raise problem
        request.refusal = problem
        request.is_plain = False

    def _check_host(self, host: bytes | None) -> None:
        if host is None:
            if self._parser.get_http_version() == "1.1":
                raise self._refuse(problems.MALFORMED, "the header field Host is missing")
            return
        if not _HOST.fullmatch(host):
            raise self._refuse(problems.MALFORMED, "the header field Host is not a host and a port")
        if len(host) <= MAX_REMEMBERED_HOST_BYTES:
            self._known_host = host

    def _check_head(self, request: Request) -> None:
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._refuse(problems.VERSION, f"expected HTTP/1.1 or HTTP/1.0, found HTTP/{version}")
        if not self._parser.should_keep_alive():
            request.connection_field = CLOSE
        elif version == "1.0":
            request.connection_field = KEEP_ALIVE
        self._check_body(request.fields, version)

    def _check_body(self, fields: dict[str, bytes], version: str) -> None:
        coding = fields.get(_CODING)
        if coding is not None and version == "1.0":
            raise self._refuse(problems.MALFORMED, "HTTP/1.0 knows no Transfer-Encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise self._refuse(problems.MALFORMED, "the only transfer coding known here is chunked")
        if int(fields.get(CONTENT_LENGTH, b"0")) > self._max_body_bytes:
            raise self._body_too_large()
        expect = fields.get(_EXPECT)
        if expect is None or version == "1.0":
            return
        if expect.strip().lower() != b"100-continue":
            raise self._refuse(problems.EXPECTATION_FAILED, "the only expectation known here is 100-continue")
        if _has_body(fields) and not self._asks_for_upgrade(fields):
            self._on_continue()

    def _asks_for_upgrade(self, fields: dict[str, bytes]) -> bool:
        return _UPGRADE in fields and bool(self._parser.should_upgrade())

    def on_body(self, piece: bytes) -> None:
        """A piece of the body, its chunks taken apart."""
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            raise self._body_too_large()
        self._body += piece

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = self._present_request()
        if not request.is_plain:
            if _has_body(request.fields) and self._asks_for_upgrade(request.fields):
                self._is_body_skipped = True
                return
            self._is_ended = request.connection_field is CLOSE
            request.body = bytes(self._body)
            self._body = bytearray()
            self._body_bytes = 0
        self.is_partial = self._is_in_body = False
        self._request = None
        self._received_bytes = 0
        self._on_request(request)


def _is_probe(request: Request) -> bool:
    """Return whether load balancers ask so: anybody may."""
    return names_probe(request.target) and request.method in (b"GET", b"HEAD") and not _has_body(request.fields)


def _has_body(fields: dict[str, bytes]) -> bool:
    return _CODING in fields or int(fields.get(CONTENT_LENGTH, b"0")) > 0
