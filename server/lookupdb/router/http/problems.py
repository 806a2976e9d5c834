"""HTTP answers as bytes. What is the same for every lookup of a generation is encoded once a second, not once a lookup.

Each head ends before the ``Connection`` field, which depends on the connection: ``b""``, ``CLOSE`` or ``KEEP_ALIVE``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb.batch_frames import MEDIA_TYPE as FRAMES
from lookupdb.router.lookups import ServedGeneration

# The bounds of the router's HTTP that no dataset sets. ``route.limits`` has those that a dataset sets,
# ``clients.limits`` those that hold in any protocol. In bytes.


MAX_TARGET_BYTES: Final = 8192
"""Request target: five times the longest key with each byte percent-encoded. More: 414."""

MAX_HEAD_BYTES: Final = 32 * 1024
"""Request line and header fields, counted in steps of ``SLICE_BYTES``. More: 431."""

SLICE_BYTES: Final = 8 * 1024
"""What the parser is fed at once while it reads a head, so that a long head is noticed before it is collected."""

MAX_CHUNK_OVERHEAD_BYTES: Final = 16 * 1024
"""Chunk sizes, extensions and trailers of one body, beyond 16 bytes for each byte of the body itself. More: 431."""

MAX_PIPELINE: Final = 64
"""Requests of one connection that are looked up at once; a batch alone. More wait, and nothing is read meanwhile."""

MAX_HELD_ANSWERS_BYTES: Final = 256 * 1024
"""Answers that wait for that to an earlier request. More: no further request of the connection is begun or read."""

MAX_REPEATED_HEAD_BYTES: Final = 2 * 1024
"""A request with a longer head is not remembered, so its repeats are parsed in full."""

MAX_REMEMBERED_HOST_BYTES: Final = 256

MAX_HEADS: Final = 1024
"""Encoded heads a generation, one for each size of a value."""

MAX_GENERATIONS: Final = 64
"""Generations, and combinations of them, of which heads are kept encoded."""


# The errors of the public API, as problem details (RFC 9457). The one place where an error becomes a status.
#
# 400 malformed-request      not HTTP as RFC 9112 has it; the connection is closed
# 400 invalid-target         the target holds no key, two, or one that cannot be decoded
# 400 invalid-body           a batch that is not the JSON it should be
# 401 unauthenticated        no token, or none that is accepted; the connection is closed if the request has a body
# 403 forbidden              the service account may not look up in this dataset; the same of its connection
# 404 missing                no record has the key
# 404 no-such-resource       no resource has this path
# 405 method-not-allowed     the resource is there, the method is not
# 406 not-acceptable         the value is of a media type that Accept rules out
# 408 request-timeout        the request did not arrive in time; the connection is closed
# 412 unknown-generation     the generation asked for is not served here, or not whole
# 413 body-too-large         the connection is closed
# 413 too-many-keys          in one batch
# 413 answer-too-large       of one batch
# 414 target-too-long        the connection is closed
# 415 unsupported-media-type a batch is sent as application/json
# 417 expectation-failed     only 100-continue is known; the connection is closed
# 431 head-too-large         the connection is closed
# 500 internal-error         a bug; the connection is closed
# 503 unavailable            a shard cannot be reached: the key may or may not exist
# 503 too-many-connections   the connection is closed
# 505 version-not-supported  neither HTTP/1.1 nor HTTP/1.0; the connection is closed


TYPE_PREFIX: Final = "https://lookupdb.dev/problems/"
"""Problem types are names, compared as text; nothing needs to be fetched from there."""

REASONS: Final = {
    200: "OK",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    412: "Precondition Failed",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

RETRY_SECONDS: Final = 1
"""``Retry-After`` of a 503. The router itself tries several times within it."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem: its status, the last part of its type's URI, and its title."""

    status: int
    name: str
    title: str


MALFORMED: Final = ProblemType(400, "malformed-request", "The request is not well-formed HTTP")
INVALID_TARGET: Final = ProblemType(400, "invalid-target", "The request target is not as expected")
INVALID_BODY: Final = ProblemType(400, "invalid-body", "The request body is not a batch")
UNAUTHENTICATED: Final = ProblemType(401, "unauthenticated", "The request shows no token that is accepted")
FORBIDDEN: Final = ProblemType(403, "forbidden", "Who asks may not look up in this dataset")
MISSING: Final = ProblemType(404, "missing", "No record has this key")
NO_SUCH_RESOURCE: Final = ProblemType(404, "no-such-resource", "There is no such resource")
METHOD_NOT_ALLOWED: Final = ProblemType(405, "method-not-allowed", "The resource does not know this method")
NOT_ACCEPTABLE: Final = ProblemType(406, "not-acceptable", "The value is of another media type than asked for")
TIMEOUT: Final = ProblemType(408, "request-timeout", "The request did not arrive in time")
UNKNOWN_GENERATION: Final = ProblemType(412, "unknown-generation", "This generation is not served")
BODY_TOO_LARGE: Final = ProblemType(413, "body-too-large", "The request body is too large")
TOO_MANY_KEYS: Final = ProblemType(413, "too-many-keys", "The batch has too many keys")
ANSWER_TOO_LARGE: Final = ProblemType(413, "answer-too-large", "The values of this batch are too large together")
TARGET_TOO_LONG: Final = ProblemType(414, "target-too-long", "The request target is too long")
UNSUPPORTED_MEDIA_TYPE: Final = ProblemType(
    415, "unsupported-media-type", "The request body is of another media type than JSON"
)
EXPECTATION_FAILED: Final = ProblemType(417, "expectation-failed", "The expectation is not known")
HEAD_TOO_LARGE: Final = ProblemType(431, "head-too-large", "The request's header fields are too large")
INTERNAL: Final = ProblemType(500, "internal-error", "The router has a bug")
UNAVAILABLE: Final = ProblemType(503, "unavailable", "The key may or may not exist: it cannot be looked up now")
TOO_MANY_CONNECTIONS: Final = ProblemType(503, "too-many-connections", "The router has too many connections")
VERSION: Final = ProblemType(505, "version-not-supported", "The router speaks HTTP/1.1 and HTTP/1.0")

ALL: Final = tuple(kind for kind in list(globals().values()) if isinstance(kind, ProblemType))
"""Every kind of problem there is: the OpenAPI document has them all."""


class HttpProblem(Exception):
    """A request that is answered with a problem. ``fields`` are header fields, ``members`` further JSON members."""

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
        """The problem as JSON."""
        return problem_body(self.kind, self.detail, self.members)


def problem_body(kind: ProblemType, detail: str, members: dict[str, Any] | None = None) -> bytes:
    """A problem of ``kind`` as JSON."""
    document = {
        "type": TYPE_PREFIX + kind.name,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        **(members or {}),
    }
    return orjson.dumps(document)


PERSISTENT: Final = b""
"""HTTP/1.1 connections persist unless one side says otherwise."""
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
PROBLEM: Final = "application/problem+json"


class AnswerHeads:
    """The encoded heads of one generation's answers, good for one second (they tell the date)."""

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
        """Size of a value → the whole head of an answer with it on a connection that stays open (``PERSISTENT``)."""
        of_batch = {**common, "Lookupdb-Value-Format": generation.value_format, "Vary": "Lookupdb-Generation, Accept"}
        self.batch = _encode_open_head(200, {**of_batch, "Content-Type": JSON})
        self.frames = _encode_open_head(200, {**of_batch, "Content-Type": FRAMES})
        self.missing_body = problem_body(MISSING, missing_detail(generation))
        self.missing = b"%b%d\r\n" % (
            _encode_open_head(404, {**of_lookup, "Content-Type": PROBLEM}),
            len(self.missing_body),
        )

    def add_found_head(self, size: int) -> bytes:
        """The new entry of ``found_by_size`` for values of ``size`` bytes."""
        if len(self.found_by_size) >= MAX_HEADS:
            self.found_by_size.clear()
        head = self.found_by_size[size] = b"%b%d\r\n\r\n" % (self.found, size)
        return head


def missing_detail(generation: ServedGeneration) -> str:
    """The sentence about a key that is missing."""
    holds = "generations {} hold" if len(generation.names) > 1 else "generation {} holds"
    return f"{holds.format(generation.name)} no record with this key"


class Answers:
    """The answers of one worker. ``tick()`` at least once a second keeps their date. ``cache_control`` goes with the
    answers to lookups of one key, found or missing; None: none does."""

    __slots__ = ("_cache_fields", "_date", "_second", "known_heads")

    def __init__(self, cache_control: str | None = None) -> None:
        self._cache_fields = {} if cache_control is None else {"Cache-Control": cache_control}
        self._second = 0
        self.tick()

    def tick(self) -> None:
        """Take the present second for the ``Date`` of answers from now on."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))
            self.known_heads: dict[ServedGeneration, AnswerHeads] = {}
            """Those of this second: where each lookup counts, look here before calling ``heads``."""

    def heads(self, generation: ServedGeneration) -> AnswerHeads:
        """The heads of answers out of ``generation``."""
        heads = self.known_heads.get(generation)
        if heads is None:
            if len(self.known_heads) >= MAX_GENERATIONS:
                self.known_heads.clear()
            heads = self.known_heads[generation] = AnswerHeads(generation, self._date, self._cache_fields)
        return heads

    def lookup_fields(self, generation: ServedGeneration) -> dict[str, str]:
        """Return the fields of the answer that a key is missing in ``generation``."""
        return {"Lookupdb-Generation": generation.name, "Vary": "Lookupdb-Generation", **self._cache_fields}

    def encode_document(
        self, media_type: str, body: bytes, connection_field: bytes, fields: dict[str, str]
    ) -> tuple[bytes, bytes]:
        """Head and body of a 200."""
        head = _encode_open_head(200, {"Date": self._date, "Content-Type": media_type, **fields})
        return b"%b%d\r\n%b\r\n" % (head, len(body), connection_field), body

    def encode_probe_head(self, status: int, size: int, connection_field: bytes) -> bytes:
        """Return the head of the answer to a probe, with a text of ``size`` bytes. No cache may keep it."""
        fields = {"Date": self._date, "Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"}
        return b"%b%d\r\n%b\r\n" % (_encode_open_head(status, fields), size, connection_field)

    def encode_options(self, methods: str, connection_field: bytes) -> bytes:
        """The answer to OPTIONS."""
        head = _encode_head(204, {"Date": self._date, "Allow": methods})
        return b"%b%b\r\n" % (head, connection_field)

    def encode_problem(self, problem: HttpProblem, connection_field: bytes) -> tuple[bytes, bytes]:
        """Head and body of the answer that tells ``problem``."""
        body = problem.body()
        fields = {"Date": self._date, "Content-Type": PROBLEM, **problem.fields}
        head = _encode_open_head(problem.kind.status, fields)
        return b"%b%d\r\n%b\r\n" % (head, len(body), connection_field), body


def _encode_head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in fields.items()), ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def _encode_open_head(status: int, fields: dict[str, str]) -> bytes:
    """A head that goes on with the number of bytes of its body."""
    return _encode_head(status, fields) + b"Content-Length: "
