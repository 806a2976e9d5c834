"""HTTP answers and problems as bytes, and the limits of the router's HTTP.

Heads that all lookups of a generation share are encoded once a second. Each head ends before the ``Connection`` field,
which depends on the connection: ``b""``, ``CLOSE`` or ``KEEP_ALIVE``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from lookupdb.records import FRAMES
from lookupdb.router.counters import CODES
from lookupdb.router.lookups import ServedGeneration

# Limits of HTTP that no dataset sets, in bytes. ``budget.RouterLimits`` has those that a dataset sets, ``clients``
# those of all protocols.


MAX_TARGET_BYTES: Final = 8192
"""Request target: five times the longest key with each byte percent-encoded. A longer one is answered 414."""

MAX_HEAD_BYTES: Final = 32 * 1024
"""Request line and header fields, counted in steps of ``SLICE_BYTES``. Larger ones are answered 431."""

SLICE_BYTES: Final = 8 * 1024
"""The parser gets a head in slices of this size, so that a large head is noticed early."""

MAX_CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Limit of a body's chunk sizes, extensions and trailers, in addition to 16 bytes for each byte of the body. More is
answered 431.
"""

MAX_PIPELINE: Final = 64
"""Limit of pending requests of one connection; a batch is pending alone. Others wait, and nothing is read meanwhile."""

MAX_HELD_ANSWERS_BYTES: Final = 256 * 1024
"""Limit of answers that wait for an earlier one. Beyond it, no request of the connection begins or is read."""

MAX_REPEATED_HEAD_BYTES: Final = 2 * 1024
"""A request with a longer head is not remembered, so its repeats are parsed."""

MAX_REMEMBERED_HOST_BYTES: Final = 256

MAX_HEADS: Final = 1024
"""Encoded heads per generation, one for each size of value."""

MAX_GENERATIONS: Final = 64
"""Generations and combinations of generations whose heads are kept encoded."""


# The errors of the public API as problem details (RFC 9457). Only this module turns an error into a status.
# docs/reference/http-api.md says which of them close the connection.

TYPE_PREFIX: Final = "https://lookupdb.dev/problems/"
"""Problem types are names, compared as text; there is nothing to fetch."""

REASONS: Final = {code: HTTPStatus(code).phrase for code in CODES} | {413: "Content Too Large", 414: "URI Too Long"}
"""Python before 3.13 has the former names of these two."""

RETRY_SECONDS: Final = 1
"""``Retry-After`` of a 503. The router retries several times within that second."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem: its status, the last part of its type URI, and its title."""

    status: int
    name: str
    title: str


MALFORMED: Final = ProblemType(400, "malformed-request", "The request is not well-formed HTTP")
INVALID_TARGET: Final = ProblemType(400, "invalid-target", "The request target is not as expected")
INVALID_BODY: Final = ProblemType(400, "invalid-body", "The request body is not a batch")
UNAUTHENTICATED: Final = ProblemType(401, "unauthenticated", "The request has no accepted token")
FORBIDDEN: Final = ProblemType(403, "forbidden", "The service account may not look up in this dataset")
MISSING: Final = ProblemType(404, "missing", "No record has this key")
NO_SUCH_RESOURCE: Final = ProblemType(404, "no-such-resource", "There is no such resource")
METHOD_NOT_ALLOWED: Final = ProblemType(405, "method-not-allowed", "The resource does not support this method")
NOT_ACCEPTABLE: Final = ProblemType(406, "not-acceptable", "Accept rules out the media type of the value")
TIMEOUT: Final = ProblemType(408, "request-timeout", "The request did not arrive in time")
UNKNOWN_GENERATION: Final = ProblemType(412, "unknown-generation", "This generation is not served")
BODY_TOO_LARGE: Final = ProblemType(413, "body-too-large", "The request body is too large")
TOO_MANY_KEYS: Final = ProblemType(413, "too-many-keys", "The batch has too many keys")
ANSWER_TOO_LARGE: Final = ProblemType(413, "answer-too-large", "The values of this batch are too large together")
TARGET_TOO_LONG: Final = ProblemType(414, "target-too-long", "The request target is too long")
UNSUPPORTED_MEDIA_TYPE: Final = ProblemType(415, "unsupported-media-type", "The request body is not JSON")
EXPECTATION_FAILED: Final = ProblemType(417, "expectation-failed", "The expectation is not supported")
HEAD_TOO_LARGE: Final = ProblemType(431, "head-too-large", "The request's header fields are too large")
INTERNAL: Final = ProblemType(500, "internal-error", "The router has a bug")
UNAVAILABLE: Final = ProblemType(503, "unavailable", "The key may or may not exist: it cannot be looked up now")
TOO_MANY_CONNECTIONS: Final = ProblemType(503, "too-many-connections", "The router has too many connections")
VERSION: Final = ProblemType(505, "version-not-supported", "The router supports HTTP/1.1 and HTTP/1.0")


class HttpProblem(Exception):
    """A request that is answered with a problem. ``fields`` are header fields, ``members`` additional JSON members."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        fields: dict[str, str] | None = None,
        members: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.fields = fields or {}
        self.members = members or {}
        if kind.status == 503:
            self.fields.setdefault("Retry-After", str(RETRY_SECONDS))

    def body(self) -> bytes:
        """Return the problem as JSON."""
        return _problem_body(self.kind, self.detail, self.members)


def _problem_body(kind: ProblemType, detail: str, members: dict[str, Any] | None = None) -> bytes:
    """Return a problem of ``kind`` as JSON."""
    document = {
        "type": TYPE_PREFIX + kind.name,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        **(members or {}),
    }
    return orjson.dumps(document)


PERSISTENT: Final = b""
"""HTTP/1.1 connections persist by default."""
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
PROBLEM: Final = "application/problem+json"


class AnswerHeads:
    """The encoded heads of one generation's answers, valid for one second because they contain the date."""

    __slots__ = (
        *("batch", "etag", "found", "found_by_size", "frames", "media_type", "missing", "missing_body"),
        "not_modified",
    )

    def __init__(self, generation: ServedGeneration, date: str, cache_fields: dict[str, str]) -> None:
        common = {"Date": date, "Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation"}
        of_lookup = {**common, **cache_fields}
        tagged = {**of_lookup, "ETag": generation.etag} if generation.etag else of_lookup
        self.etag = generation.etag.encode()
        self.media_type = JSON if generation.value_format == "json" else OCTETS
        self.found = _encode_open_head(200, {**tagged, "Content-Type": self.media_type})
        self.not_modified = _encode_head(304, tagged)
        self.found_by_size: dict[int, bytes] = {}
        """The complete head for each size of value, on a connection that stays open (``PERSISTENT``)."""
        of_batch = {**common, "Lookupdb-Value-Format": generation.value_format, "Vary": "Lookupdb-Generation, Accept"}
        self.batch = _encode_open_head(200, {**of_batch, "Content-Type": JSON})
        self.frames = _encode_open_head(200, {**of_batch, "Content-Type": FRAMES})
        self.missing_body = _problem_body(MISSING, missing_detail(generation))
        self.missing = b"%b%d\r\n" % (
            _encode_open_head(404, {**of_lookup, "Content-Type": PROBLEM}),
            len(self.missing_body),
        )


def missing_detail(generation: ServedGeneration) -> str:
    """Return the sentence about a missing key."""
    holds = "generations {} hold" if len(generation.names) > 1 else "generation {} holds"
    return f"{holds.format(generation.name)} no record with this key"


class Answers:
    """The answers of one worker. Call ``tick`` at least once a second to keep the date current. ``cache_control``, if
    any, goes with the answers to single lookups, found or missing."""

    def __init__(self, cache_control: str | None = None) -> None:
        self.cache_fields = {} if cache_control is None else {"Cache-Control": cache_control}
        self._second = 0
        self.tick()

    def tick(self) -> None:
        """Use the current second for the ``Date`` of new answers."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))
            self.known_heads: dict[ServedGeneration, AnswerHeads] = {}
            """The heads of this second. The hot path looks here before it calls ``heads``."""

    def heads(self, generation: ServedGeneration) -> AnswerHeads:
        """Return the heads of answers from ``generation``."""
        heads = self.known_heads.get(generation)
        if heads is None:
            if len(self.known_heads) >= MAX_GENERATIONS:
                self.known_heads.clear()
            heads = self.known_heads[generation] = AnswerHeads(generation, self._date, self.cache_fields)
        return heads

    def encode_head(self, status: int, fields: dict[str, str], size: int | None, connection_field: bytes) -> bytes:
        """Return the head of an answer with a body of ``size`` bytes, or without one."""
        head = _encode_head(status, {"Date": self._date, **fields})
        length = b"" if size is None else b"Content-Length: %d\r\n" % size
        return b"%b%b%b\r\n" % (head, length, connection_field)

    def encode_problem(self, problem: HttpProblem, connection_field: bytes) -> tuple[bytes, bytes]:
        """Return head and body of the answer with ``problem``."""
        body = problem.body()
        fields = {"Content-Type": PROBLEM, **problem.fields}
        return self.encode_head(problem.kind.status, fields, len(body), connection_field), body


def _encode_head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in fields.items()), ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def _encode_open_head(status: int, fields: dict[str, str]) -> bytes:
    """Return a head up to the value of Content-Length, which the caller appends."""
    return _encode_head(status, fields) + b"Content-Length: "
