"""Reads requests out of what a client sends. No I/O: bytes go in, requests and refusals come out.

llhttp, the parser within httptools, refuses by itself: two lengths, a length beside chunks, lengths and chunk sizes
that are not plain numbers or overflow, white space before a colon, folded lines, bare CR and LF, NUL and other
control characters. Added here is what it lets pass: other transfer codings than ``chunked``, chunks in HTTP/1.0,
HTTP/0.9 and 2.0, a missing or repeated Host, endless heads and chunk extensions, trailers taken for header fields,
and a body that goes unread because its request also asks for an upgrade.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

import httptools

from lookupdb.route import http_problems as problems
from lookupdb.route.http_answers import CLOSE, KEEP_ALIVE, STAY
from lookupdb.route.http_limits import (
    MAX_CHUNK_OVERHEAD_BYTES,
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    SLICE_BYTES,
)
from lookupdb.route.http_problems import HttpProblem, ProblemType

log = logging.getLogger(__name__)

HOST: Final = "host"
ACCEPT: Final = "accept"
CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"
GENERATION: Final = "lookupdb-generation"
_LENGTH: Final = "content-length"
_CODING: Final = "transfer-encoding"
_EXPECT: Final = "expect"
_CONNECTION: Final = "connection"
_UPGRADE: Final = "upgrade"

_LISTS: Final = frozenset((ACCEPT, _CONNECTION, _UPGRADE, CONTENT_ENCODING))
"""Fields that may be repeated: the values are then one list."""

_LOWER: Final = {
    name.encode(): name
    for name in (
        *(HOST, ACCEPT, CONTENT_TYPE, CONTENT_ENCODING, GENERATION),
        *(_LENGTH, _CODING, _EXPECT, _CONNECTION, _UPGRADE, "proxy-connection"),
    )
}
_FIELDS: Final = _LOWER | {name.title().encode(): name for name in _LOWER.values()}
"""The fields that matter here, as they are usually spelled; all others are dropped unread."""

_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


class Request:
    """One whole request. ``line`` is the ``Connection`` field that its answer gets."""

    __slots__ = ("body", "fields", "line", "method", "target")

    def __init__(self, method: bytes, target: bytes, fields: dict[str, bytes], body: bytes, line: bytes) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.body = body
        self.line = line


class RequestReader:
    """Cuts the bytes of one connection into requests.

    ``on_request`` is called with each request once it is whole, ``on_continue`` when a client waits for leave to
    send its body. Both must not raise. ``partial`` tells whether a request has begun and is not whole.
    """

    def __init__(
        self,
        max_body_bytes: int,
        on_request: Callable[[Request], None],
        on_continue: Callable[[], None],
    ) -> None:
        self.partial = False
        self._max_body_bytes = max_body_bytes
        self._deliver = on_request
        self._on_continue = on_continue
        self._known_host: bytes | None = None
        self._ended = False
        self._reset()
        self._parser = httptools.HttpRequestParser(self)

    def _reset(self) -> None:
        self._target = b""
        self._fields: dict[str, bytes] = {}
        self._line = STAY
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._received = 0
        self._in_body = False
        self._body_skipped = False
        self._plain = True

    # What the connection calls

    def feed(self, data: bytes) -> None:
        """Read on. Raises HttpProblem when no further request can be told from the bytes: answer it and close.

        What follows a request that closes the connection is dropped.
        """
        if self._ended:
            return
        self.partial = True
        if len(data) <= SLICE_BYTES:
            self._feed(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), SLICE_BYTES):
                self._feed(view[start : start + SLICE_BYTES])

    def _feed(self, data: bytes | memoryview) -> None:
        rest = data
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                if self._body_skipped:
                    self._read_skipped_body()
                continue
            except httptools.HttpParserError as error:
                self._stop(error)
            break
        if self.partial:
            self._bound(len(data))

    def _stop(self, error: httptools.HttpParserError) -> None:
        """Raise what the parser, or one of its calls below, found. After a request that closes, that is nothing."""
        cause = error.__context__
        if isinstance(cause, HttpProblem):
            raise cause
        if self._ended:
            return
        self._ended = True
        if cause is not None:
            log.error("a request could not be read", exc_info=cause)
            raise HttpProblem(problems.INTERNAL, "the router failed to read the request")
        raise HttpProblem(problems.MALFORMED, str(error))

    def _read_skipped_body(self) -> None:
        """Go on with the body of a request that also asked for an upgrade, which is declined by not answering it.

        The parser takes what follows such a head for the other protocol; here it is the body (Java's HTTP client
        asks to upgrade whatever it sends). A new parser is told of the head again, without the wish to upgrade.
        """
        self._body_skipped = False
        target, self._target = self._target, b""
        coded = _CODING in self._fields
        framing = b"Transfer-Encoding: chunked" if coded else b"Content-Length: " + self._fields[_LENGTH]
        del self._fields[_UPGRADE]
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n%b\r\n" % (method, target, version, framing, self._line))

    def _bound(self, size: int) -> None:
        """Keep what is collected of an unfinished head or body within bounds."""
        self._received += size
        if self._in_body:
            overhead = self._received - 17 * self._body_bytes
            if overhead > MAX_CHUNK_OVERHEAD_BYTES + MAX_HEAD_BYTES:
                raise self._refuse(problems.HEAD_TOO_LARGE, "chunk extensions or trailers are too large")
        elif self._received > MAX_HEAD_BYTES:
            if not self._fields and len(self._target) > MAX_TARGET_BYTES:
                raise self._target_too_long()
            raise self._refuse(
                problems.HEAD_TOO_LARGE,
                f"request line and header fields are larger than {MAX_HEAD_BYTES} bytes",
            )

    def _refuse(self, kind: ProblemType, detail: str) -> HttpProblem:
        self._ended = True
        return HttpProblem(kind, detail)

    def _target_too_long(self) -> HttpProblem:
        return self._refuse(problems.TARGET_TOO_LONG, f"the request target is longer than {MAX_TARGET_BYTES} bytes")

    # What the parser calls

    def on_url(self, target: bytes) -> None:
        """A piece of the request target."""
        self.partial = True
        self._target = self._target + target if self._target else target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer, which means nothing here."""
        field = _FIELDS.get(name) or _LOWER.get(name.lower())
        if field is None or self._in_body:
            return
        fields = self._fields
        if field not in fields:
            fields[field] = value
        elif field in _LISTS:
            fields[field] += b", " + value
        else:
            raise self._refuse(problems.MALFORMED, f"the header field {field} is repeated")
        if field is not HOST and field is not ACCEPT:
            self._plain = False

    def on_headers_complete(self) -> None:
        """The head is whole: see that it may be read as HTTP/1.1 or 1.0, and who closes the connection."""
        if len(self._target) > MAX_TARGET_BYTES:
            raise self._target_too_long()
        if self._parser.get_method() == b"CONNECT":
            raise self._refuse(problems.MALFORMED, "the router is no proxy: it does not know CONNECT")
        if self._fields.get(HOST) != self._known_host or self._known_host is None:
            self._check_host()
        if not self._plain or not self._parser.should_keep_alive():
            self._check_head()
        self._in_body = True

    def _check_host(self) -> None:
        host = self._fields.get(HOST)
        if host is None:
            if self._parser.get_http_version() == "1.1":
                raise self._refuse(problems.MALFORMED, "the header field Host is missing")
            return
        if not _HOST.fullmatch(host):
            raise self._refuse(problems.MALFORMED, "the header field Host is not a host and a port")
        self._known_host = host

    def _check_head(self) -> None:
        self._plain = False
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._refuse(problems.VERSION, f"expected HTTP/1.1 or HTTP/1.0, found HTTP/{version}")
        if not self._parser.should_keep_alive():
            self._line = CLOSE
        elif version == "1.0":
            self._line = KEEP_ALIVE
        self._check_coding(version)
        if int(self._fields.get(_LENGTH, b"0")) > self._max_body_bytes:
            raise self._body_too_large()
        self._check_expectation(version)

    def _check_coding(self, version: str) -> None:
        coding = self._fields.get(_CODING)
        if coding is None:
            return
        if version == "1.0":
            raise self._refuse(problems.MALFORMED, "HTTP/1.0 knows no Transfer-Encoding")
        if coding.strip().lower() != b"chunked":
            raise self._refuse(problems.MALFORMED, "the only transfer coding known here is chunked")

    def _has_body(self) -> bool:
        return _CODING in self._fields or int(self._fields.get(_LENGTH, b"0")) > 0

    def _check_expectation(self, version: str) -> None:
        expect = self._fields.get(_EXPECT)
        if expect is None or version == "1.0":
            return
        if expect.strip().lower() != b"100-continue":
            raise self._refuse(problems.EXPECTATION_FAILED, "the only expectation known here is 100-continue")
        if self._has_body() and not (_UPGRADE in self._fields and self._parser.should_upgrade()):
            self._on_continue()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body, in the clear."""
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            raise self._body_too_large()
        self._body.append(piece)

    def _body_too_large(self) -> HttpProblem:
        return self._refuse(problems.BODY_TOO_LARGE, f"the request body is larger than {self._max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._plain:
            request = Request(self._parser.get_method(), self._target, self._fields, b"", STAY)
        elif _UPGRADE in self._fields and self._parser.should_upgrade() and self._has_body():
            self._body_skipped = True
            return
        else:
            body = b"".join(self._body)
            request = Request(self._parser.get_method(), self._target, self._fields, body, self._line)
            self._ended = self._line is CLOSE
        self.partial = False
        self._reset()
        self._deliver(request)
