"""Parse a request's method and target into an operation and a path.

The target is decoded once, here; exactly the result is checked and sent to the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote

import orjson
from aiohttp import web

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.store.gateway_wire import COPY_PATH, DELETE_PATH, LIST_PATH, OBJECT_PATH, ErrorKind, is_object_path

# Refusals: problem details (RFC 9457) with a ``kind`` for clients.


CONTENT_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 1
"""Seconds after which a client that found no room may retry."""

_TITLES: Final = {
    ErrorKind.UNAUTHENTICATED: "The token is not accepted",
    ErrorKind.FORBIDDEN: "This part of the store is not the caller's",
    ErrorKind.MISSING: "There is no such object",
    ErrorKind.PRECONDITION: "The object is not as the request wants it",
    ErrorKind.TOO_LARGE: "The request is too large",
    ErrorKind.INVALID: "The request is not valid",
    ErrorKind.BUSY: "The gateway has no room now",
    ErrorKind.STORE_DENIED: "The store refuses the gateway's credentials",
    ErrorKind.STORE_UNREACHABLE: "The store does not answer",
    ErrorKind.STORE_FAILED: "The store failed",
}
_STATUSES: Final = {
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.MISSING: 404,
    ErrorKind.PRECONDITION: 412,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.INVALID: 400,
    ErrorKind.BUSY: 503,
    ErrorKind.STORE_DENIED: 502,
    ErrorKind.STORE_UNREACHABLE: 503,
    ErrorKind.STORE_FAILED: 502,
}


class RequestProblem(Exception):
    """A request is refused or failed."""

    def __init__(
        self, kind: ErrorKind, detail: str, *, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.status = status or _STATUSES[kind]
        self.headers = dict(headers or {})
        if self.status == 503:
            self.headers["Retry-After"] = str(RETRY_SECONDS)
        if kind is ErrorKind.UNAUTHENTICATED:
            self.headers["WWW-Authenticate"] = "Bearer"

    def render(self) -> web.Response:
        """Return the response for the problem."""
        body = {"title": _TITLES[self.kind], "status": self.status, "detail": self.detail, "kind": self.kind}
        headers = {"Cache-Control": "no-store", **self.headers}
        return web.Response(status=self.status, body=orjson.dumps(body), content_type=CONTENT_TYPE, headers=headers)


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
    """Return the problem of a request without room now."""
    return RequestProblem(ErrorKind.BUSY, detail)


def missing(path: str) -> RequestProblem:
    """Return the problem of a missing object ``path``."""
    return RequestProblem(ErrorKind.MISSING, f"there is no object {path}")


def from_store(error: StoreError) -> RequestProblem:
    """Return the problem for the store's error. Clients may repeat its message."""
    match error:
        case StoreDenied():
            kind = ErrorKind.STORE_DENIED
        case StoreUnreachable():
            kind = ErrorKind.STORE_UNREACHABLE
        case _:
            kind = ErrorKind.STORE_FAILED
    return RequestProblem(kind, error.message)


_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
_FIELDS: Final = 2
"""Most fields of a listing's query."""
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
_WITH_BODIES: Final = {COPY_PATH: Operation.COPY, DELETE_PATH: Operation.DELETE}
"""Operations whose body names the objects."""


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
    if path.startswith(OBJECT_PATH):
        operation = _check_method(method, _OF_OBJECTS)
        _check_no_query(query)
        return RequestTarget(operation, _parse_path(path.removeprefix(OBJECT_PATH)))
    if path == LIST_PATH:
        return _parse_listing(_check_method(method, {"GET": Operation.LIST}), query)
    if path in _WITH_BODIES:
        operation = _check_method(method, {"POST": _WITH_BODIES[path]})
        _check_no_query(query)
        return RequestTarget(operation)
    raise invalid(f"expected a path that is {OBJECT_PATH}…, {LIST_PATH}, {COPY_PATH} or {DELETE_PATH}")


def _check_method(method: str, operations: dict[str, Operation]) -> Operation:
    if method not in operations:
        allowed = ", ".join(operations)
        raise RequestProblem(
            ErrorKind.INVALID, f"expected {allowed} of this path", status=405, headers={"Allow": allowed}
        )
    return operations[method]


def _check_no_query(query: str) -> None:
    if query:
        raise invalid("this path takes no query")


def _parse_path(encoded: str) -> str:
    # A proxy in front may treat an encoded slash as part of a name; clients need none.
    if _ENCODED_SLASH.search(encoded):
        raise invalid(f"the path has an encoded slash; {_EXPECTED_PATH}")
    return check_path(unquote(encoded))


def check_path(path: str) -> str:
    """Return ``path`` if it is a valid path of an object or folder. Raises RequestProblem."""
    if not is_object_path(path):
        raise invalid(f"{path[:100]!r} is no object's path; {_EXPECTED_PATH}")
    return path


def _parse_listing(operation: Operation, query: str) -> RequestTarget:
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
    return RequestTarget(operation, check_path(values["prefix"]), folders_only=bool(delimiter))
