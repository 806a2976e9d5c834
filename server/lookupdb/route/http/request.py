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
from typing import Final

import httptools

from lookupdb.route.http import problems
from lookupdb.route.http.answers import CLOSE, KEEP_ALIVE, PERSISTENT
from lookupdb.route.http.limits import (
    MAX_CHUNK_OVERHEAD_BYTES,
    MAX_HEAD_BYTES,
    MAX_REMEMBERED_HOST_BYTES,
    MAX_TARGET_BYTES,
    SLICE_BYTES,
)
from lookupdb.route.http.problems import HttpProblem, ProblemType
from lookupdb.route.http.target import names_probe

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
