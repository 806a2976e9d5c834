"""Parse a request's method and target into an operation and a path, and check that the caller may access it.

The target is decoded only here. What is checked is exactly what is sent to the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote

import orjson

from lookupdb.account_tokens import Caller
from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.manifest import ANNOUNCEMENT_NOTE
from lookupdb.store.dataset import INBOX, StoreAddress
from lookupdb.store.objects import COPY_PATH, DELETE_PATH, LIST_PATH, OBJECT_PATH, ErrorKind, is_object_path

# Refusals: problem details (RFC 9457) with a ``kind`` for clients.


CONTENT_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 1
"""Seconds after which a client that found no room may retry."""

_KINDS: Final = {
    ErrorKind.UNAUTHENTICATED: (401, "The token is not accepted"),
    ErrorKind.FORBIDDEN: (403, "This part of the store is not the caller's"),
    ErrorKind.MISSING: (404, "There is no such object"),
    ErrorKind.PRECONDITION: (412, "The object does not meet the request's condition"),
    ErrorKind.TOO_LARGE: (413, "The request is too large"),
    ErrorKind.INVALID: (400, "The request is not valid"),
    ErrorKind.BUSY: (503, "The gateway has no room now"),
    ErrorKind.STORE_DENIED: (502, "The store refuses the gateway's credentials"),
    ErrorKind.STORE_UNREACHABLE: (503, "The store does not answer"),
    ErrorKind.STORE_FAILED: (502, "The store failed"),
}
"""Kind → HTTP status and title."""


class RequestProblem(Exception):
    """A request is refused or failed."""

    def __init__(
        self, kind: ErrorKind, detail: str, *, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        known_status, self._title = _KINDS[kind]
        self.status = status or known_status
        self.headers = {"Cache-Control": "no-store", **(headers or {})}
        if self.status == 503:
            self.headers["Retry-After"] = str(RETRY_SECONDS)
        if kind is ErrorKind.UNAUTHENTICATED:
            self.headers["WWW-Authenticate"] = "Bearer"

    def render(self) -> bytes:
        """Return the body of the response."""
        body = {"title": self._title, "status": self.status, "detail": self.detail, "kind": self.kind}
        return orjson.dumps(body)


class BrokenOff(Exception):
    """A response ended early; the connection must be closed so that the client sees it."""


class Unauthenticated(RequestProblem):
    """The caller is unknown. ``reason`` is a word for metrics."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(ErrorKind.UNAUTHENTICATED, detail)
        self.reason = reason


def invalid(detail: str) -> RequestProblem:
    """Return the problem of an invalid request."""
    return RequestProblem(ErrorKind.INVALID, detail)


def too_large(detail: str) -> RequestProblem:
    """Return the problem of a request beyond a limit."""
    return RequestProblem(ErrorKind.TOO_LARGE, detail)


def busy(detail: str) -> RequestProblem:
    """Return the problem of a request that there is no room for now."""
    return RequestProblem(ErrorKind.BUSY, detail)


def from_store(error: StoreError) -> RequestProblem:
    """Return the problem for the store's error, with its message for the client."""
    kind = ErrorKind.STORE_FAILED
    if isinstance(error, StoreDenied):
        kind = ErrorKind.STORE_DENIED
    elif isinstance(error, StoreUnreachable):
        kind = ErrorKind.STORE_UNREACHABLE
    return RequestProblem(kind, error.message)


_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
_FIELDS: Final = 2
"""Maximum number of fields in a listing's query."""
_EXPECTED_PATH: Final = "expected segments of A-Z, a-z, 0-9 and . _ - with / between them, at most 1,024 bytes"


class Operation(StrEnum):
    """An operation; also a label of metrics."""

    READ = "read"
    HEAD = "head"
    WRITE = "write"
    COPY = "copy"
    DELETE = "delete"
    LIST = "list"


_OF_OBJECTS: Final = {"GET": Operation.READ, "HEAD": Operation.HEAD, "PUT": Operation.WRITE}
_OPERATIONS: Final = {
    LIST_PATH: {"GET": Operation.LIST},
    COPY_PATH: {"POST": Operation.COPY},
    DELETE_PATH: {"POST": Operation.DELETE},
}
"""Operations whose body or query names the objects."""


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """An operation on ``path``: an object or, in a listing, a folder; empty for a deletion or copy."""

    operation: Operation
    path: str = ""
    folders_only: bool = False
    """True to list only the folders directly below ``path``."""


def parse_target(method: str, target: str) -> RequestTarget:
    """Parse ``method`` and ``target``. Raises RequestProblem."""
    path, _, query = target.partition("?")
    is_object = path.startswith(OBJECT_PATH)
    operations = _OF_OBJECTS if is_object else _OPERATIONS.get(path)
    if operations is None:
        raise invalid(f"expected a path that is {OBJECT_PATH}…, {LIST_PATH}, {COPY_PATH} or {DELETE_PATH}")
    if method not in operations:
        allowed = ", ".join(operations)
        raise RequestProblem(
            ErrorKind.INVALID, f"expected {allowed} for this path", status=405, headers={"Allow": allowed}
        )
    if path == LIST_PATH:
        return _parse_listing(query)
    if query:
        raise invalid("this path takes no query")
    if not is_object:
        return RequestTarget(operations[method])
    encoded = path.removeprefix(OBJECT_PATH)
    # A proxy in front may treat an encoded slash as part of a name; clients need none.
    if _ENCODED_SLASH.search(encoded):
        raise invalid(f"the path has an encoded slash; {_EXPECTED_PATH}")
    return RequestTarget(operations[method], check_path(unquote(encoded)))


def check_path(path: str) -> str:
    """Return ``path`` if it is a valid path of an object or folder. Raises RequestProblem."""
    if not is_object_path(path):
        raise invalid(f"{path[:100]!r} is not an object's path; {_EXPECTED_PATH}")
    return path


def _parse_listing(query: str) -> RequestTarget:
    try:
        fields = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=_FIELDS)
    except ValueError as error:
        raise invalid("expected the query prefix=FOLDER, and perhaps delimiter=1") from error
    values = dict(fields)
    delimiter = values.get("delimiter", "")
    if len(values) < len(fields) or not {"prefix"} <= values.keys() <= {"prefix", "delimiter"}:
        raise invalid("expected the query prefix=FOLDER, and perhaps delimiter=1, each once")
    if delimiter not in ("", "1"):
        raise invalid("expected delimiter=1, or none")
    return RequestTarget(Operation.LIST, check_path(values["prefix"]), folders_only=bool(delimiter))


# Access to parts of the store, by path segments.
#
# A namespace owns ``<cluster id>/<namespace>/…``. Announcements there (``active.json`` of a dataset) say what the
# cluster's routers confirmed, so the namespace only reads them. The announcer, the operator's service account, may
# write them in all namespaces, and access nothing else.
#
# The service account ``<dataset>-pusher`` of a namespace is for pushers to that dataset, perhaps from outside of the
# cluster. It may access pushes to datasets of that name, and nothing else.


_ANNOUNCEMENT_SEGMENTS: Final = 4
_PUSHER: Final = "-pusher"


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions of callers in ``cluster``'s part of the store."""

    cluster: str
    announcer: Caller | None = None

    def may_read(self, path: str, caller: Caller) -> bool:
        """Return whether ``caller`` may read the object ``path``."""
        if caller == self.announcer:
            return self.is_announcement(path)
        return owns_object(path, self.cluster, caller.namespace) and self._is_within_reach(path, caller)

    def may_write(self, path: str, caller: Caller) -> bool:
        """Return whether ``caller`` may put, replace or delete the object ``path``."""
        if caller == self.announcer:
            return self.is_announcement(path)
        return self.may_read(path, caller) and not self.is_announcement(path)

    def may_list(self, path: str, caller: Caller, *, folders_only: bool) -> bool:
        """Return whether ``caller`` may list the folder ``path``. In the cluster's folder, callers see only their own
        namespace."""
        if caller == self.announcer:
            return False
        is_own = owns_folder(path, self.cluster, caller.namespace) and self._is_within_reach(path, caller)
        return (folders_only and path == self.cluster) or is_own

    def _is_within_reach(self, path: str, caller: Caller) -> bool:
        """Return whether the caller may access ``path`` in its namespace. A pusher may access only pushes."""
        dataset = caller.account.removesuffix(_PUSHER)
        if dataset == caller.account:
            return True
        segments = path.split("/")
        if len(segments) < _ANNOUNCEMENT_SEGMENTS or segments[3] != INBOX:
            return False
        address = StoreAddress.parse(self.cluster, caller.namespace, segments[2])
        return address is not None and address.name == dataset

    def explain_refusal(self, path: str, caller: Caller) -> str:
        """Return why ``caller`` may not access ``path``."""
        if caller == self.announcer:
            return f"{path} is not the announcement of a dataset, and the announcer may access nothing else"
        if owns_folder(path, self.cluster, caller.namespace) and self.is_announcement(path):
            return f"{path} says what routers have confirmed: only the operator may write it"
        if not self._is_within_reach(path, caller):
            return f"{path} is not in the only folder that service account {caller.account} may access: its pushes"
        return f"{path} is not in {self.cluster}/{caller.namespace}/"

    def is_announcement(self, path: str) -> bool:
        """Return whether ``path`` is the announcement of a dataset of this cluster."""
        segments = path.split("/")
        if not is_object_path(path) or len(segments) != _ANNOUNCEMENT_SEGMENTS:
            return False
        cluster, namespace, folder, name = segments
        is_named = cluster == self.cluster and name == ANNOUNCEMENT_NOTE
        return is_named and StoreAddress.parse(cluster, namespace, folder) is not None


def owns_object(path: str, cluster: str, namespace: str) -> bool:
    """Return whether ``path`` is an object in the folder of ``namespace``."""
    segments = path.split("/")
    return is_object_path(path) and len(segments) > 2 and segments[:2] == [cluster, namespace]


def owns_folder(path: str, cluster: str, namespace: str) -> bool:
    """Return whether ``path`` is the folder of ``namespace``, or inside it."""
    return is_object_path(path) and path.split("/")[:2] == [cluster, namespace]
