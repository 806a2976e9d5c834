"""The errors of the public API, as problem details (RFC 9457). The one place where an error becomes a status.

400 malformed-request      not HTTP as RFC 9112 has it; the connection is closed
400 invalid-target         the target holds no key, two, or one that cannot be decoded
400 invalid-body           a batch that is not the JSON it should be
401 unauthenticated        no token, or none that is accepted; the connection is closed if the request has a body
403 forbidden              the service account may not look up in this dataset; the same of its connection
404 missing                no record has the key
404 no-such-resource       no resource has this path
405 method-not-allowed     the resource is there, the method is not
406 not-acceptable         the value is of a media type that Accept rules out
408 request-timeout        the request did not arrive in time; the connection is closed
412 unknown-generation     the generation asked for is not served here, or not whole
413 body-too-large         the connection is closed
413 too-many-keys          in one batch
413 answer-too-large       of one batch
414 target-too-long        the connection is closed
415 unsupported-media-type a batch is sent as application/json
417 expectation-failed     only 100-continue is known; the connection is closed
431 head-too-large         the connection is closed
500 internal-error         a bug; the connection is closed
503 unavailable            a shard cannot be reached: the key may or may not exist
503 too-many-connections   the connection is closed
505 version-not-supported  neither HTTP/1.1 nor HTTP/1.0; the connection is closed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

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
