"""What a gateway and its clients say to one another over HTTP, version 1: paths, headers, kinds of errors, limits.

A gateway stands before a store and is the only one that has its credentials. Clients show a token; the namespace in it
says which part of the store is theirs. docs/concepts/architecture.md tells the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable

TOKEN_FILE_VARIABLE: Final = "LOOKUPDB_STORE_TOKEN_FILE"  # noqa: S105 - the name of a variable
"""Names the file with the token, which is read at each request, because it is replaced before it expires."""
CA_FILE_VARIABLE: Final = "LOOKUPDB_STORE_CA_FILE"
"""Names the file with the authority of a gateway's certificate, if the system does not know it."""

OBJECT_PATH: Final = "/v1/object/"
"""And the object's path, percent-encoded: GET, HEAD, PUT."""
LIST_PATH: Final = "/v1/list"
DELETE_PATH: Final = "/v1/delete"
COPY_PATH: Final = "/v1/copy"
"""POST of {"from": path, "to": path}: a shard file, to where nothing is."""

VERSION_HEADER: Final = "Lookupdb-Version"
"""Of an object that is answered: {"e_tag": …, "version": …}, without what the store does not say."""
MODE_HEADER: Final = "Lookupdb-Mode"
"""Of a put on a condition: ``create``, or the version to replace, as in ``VERSION_HEADER``."""
CREATE: Final = "create"

MAX_PATH_BYTES: Final = 1024
MAX_CONDITIONAL_BYTES: Final = 16 << 20
"""Of an object that is put on a condition: manifests and claims."""
MAX_DELETED_PATHS: Final = 1000
"""Of one request."""
MAX_DELETE_BYTES: Final = MAX_DELETED_PATHS * (MAX_PATH_BYTES + 16)
MAX_COPY_REQUEST_BYTES: Final = 4 << 10
LISTING_TYPE: Final = "application/x-ndjson"
END: Final = "end"
"""The member of a listing's last line. Without that line a listing is not whole."""
STREAM_HEADER: Final = "Lookupdb-Stream"
"""Asks for the bytes themselves, where the gateway would redirect: the client could not read what it was sent to."""
REDIRECTED_SUFFIX: Final = ".lmdb"
"""Only shard files are worth a second request."""

_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class ErrorKind(StrEnum):
    """The member ``kind`` of a problem: what the client makes of it."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MISSING = "missing"
    PRECONDITION = "precondition"
    TOO_LARGE = "too-large"
    INVALID = "invalid"
    BUSY = "busy"
    STORE_DENIED = "store-denied"
    STORE_UNREACHABLE = "store-unreachable"
    STORE_FAILED = "store-failed"


def is_object_path(path: str) -> bool:
    """Whether ``path`` can name an object: plain segments, none of which leads elsewhere."""
    return len(path) <= MAX_PATH_BYTES and _PATH.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))


# What an answer of a gateway that is no success means to its client. No I/O.


_MAX_DETAIL: Final = 2000
_MAX_PAUSE_SECONDS: Final = 10.0
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]+")
_DENIALS: Final = {
    ErrorKind.UNAUTHENTICATED: "check that the token is of a service account of this cluster, and for this gateway",
    ErrorKind.FORBIDDEN: "a token reaches the part of its own cluster and namespace: check --cluster-id and --dataset",
    ErrorKind.STORE_DENIED: "check the credentials of the store that the gateway has, and what they may do",
}
_TRANSIENT: Final = (ErrorKind.BUSY, ErrorKind.STORE_UNREACHABLE)
_ABSENT_HINT: Final = "check that the gateway and its store run, its address, and what is between it and here"


class TransientFailure(Exception):
    """A request that failed so that it may succeed a little later."""

    def __init__(self, error: StoreError, pause: float = 0.0) -> None:
        super().__init__()
        self.error = error
        """What to raise if it does not."""
        self.pause = pause
        """The seconds that the gateway asks for."""


@dataclass(frozen=True, slots=True)
class GatewayProblem:
    """An answer that is no success."""

    status: int
    kind: ErrorKind | None
    """None if the answer is not one of a gateway."""
    detail: str
    pause: float = 0.0

    @property
    def is_transient(self) -> bool:
        """Whether it may pass. What stands between a gateway and here answers 5xx in its own words."""
        return self.kind in _TRANSIENT or (self.kind is None and self.status >= 500)

    def error(self, message: str) -> StoreError:
        """The error for a user; ``message`` says what could not be done."""
        if self.kind in _DENIALS:
            return StoreDenied(f"{message}: {self.detail}", hint=_DENIALS[self.kind])
        if self.is_transient:
            return StoreUnreachable(f"{message}: {self.detail}", hint=_ABSENT_HINT)
        if self.kind is None:
            return no_gateway_error(message, f"it answers with status {self.status}")
        return StoreError(f"{message}: {self.detail}", hint="look at the gateway's log, and its store")


_KINDS: Final = {
    401: ErrorKind.UNAUTHENTICATED,
    403: ErrorKind.FORBIDDEN,
    404: ErrorKind.MISSING,
    502: ErrorKind.STORE_FAILED,
    503: ErrorKind.BUSY,
}
"""Of an answer to HEAD, of which only the status can say what is wrong."""


def parse_problem(status: int, content_type: str, body: bytes | None, retry_after: str) -> GatewayProblem:
    """Read an answer that is no success; it has no ``kind`` unless all of it is as a gateway would say it. ``body`` is
    None if the answer can have none."""
    pause = min(float(retry_after), _MAX_PAUSE_SECONDS) if re.fullmatch(r"[0-9]{1,6}", retry_after) else 0.0
    is_problem = content_type.partition(";")[0].strip().lower() == "application/problem+json"
    if is_problem and body is None:
        return GatewayProblem(status, _KINDS.get(status), f"it answers with status {status}", pause)
    members = _parse_members(body) if is_problem and body else {}
    kind, detail = members.get("kind"), members.get("detail") or members.get("title")
    if not isinstance(kind, str) or kind not in set(ErrorKind):
        return GatewayProblem(status, None, f"it answers with status {status}", pause)
    text = _UNPRINTABLE.sub(" ", detail) if isinstance(detail, str) else f"{kind}, with status {status}"
    return GatewayProblem(status, ErrorKind(kind), text[:_MAX_DETAIL], pause)


def _parse_members(body: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def absent_error(message: str) -> StoreUnreachable:
    """The error for a gateway that does not answer, or not to the end."""
    return StoreUnreachable(message, hint=_ABSENT_HINT)


def no_gateway_error(message: str, reason: str) -> StoreError:
    """The error for a server that answers as no gateway does."""
    return StoreError(
        f"{message}: that is no lookupdb gateway: {reason}",
        hint="check the URL: a store behind http is a gateway of this version, a bucket is s3://, gs:// or az://",
    )
