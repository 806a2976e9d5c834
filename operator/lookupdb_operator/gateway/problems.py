"""What a request is refused with: problem details (RFC 9457) whose ``kind`` tells the client what to make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
from aiohttp import web

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.store.gateway_wire import ErrorKind

CONTENT_TYPE: Final = "application/problem+json"
RETRY_SECONDS: Final = 1
"""After which a client that found no room may ask again."""

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
    """A request is refused, or could not be done."""

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
        """The response that tells of it."""
        body = {"title": _TITLES[self.kind], "status": self.status, "detail": self.detail, "kind": self.kind}
        headers = {"Cache-Control": "no-store", **self.headers}
        return web.Response(status=self.status, body=orjson.dumps(body), content_type=CONTENT_TYPE, headers=headers)


class BrokenOff(Exception):
    """A response ended early; the connection must be closed so that the client sees it."""


class Unauthenticated(RequestProblem):
    """Who asks is not known. ``reason`` is a word for metrics."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(ErrorKind.UNAUTHENTICATED, detail)
        self.reason = reason


def invalid(detail: str) -> RequestProblem:
    """A request that nobody may send."""
    return RequestProblem(ErrorKind.INVALID, detail)


def too_large(detail: str) -> RequestProblem:
    """More than a limit allows."""
    return RequestProblem(ErrorKind.TOO_LARGE, detail)


def busy(detail: str) -> RequestProblem:
    """No room now, but perhaps soon."""
    return RequestProblem(ErrorKind.BUSY, detail)


def missing(path: str) -> RequestProblem:
    """There is no object at ``path``."""
    return RequestProblem(ErrorKind.MISSING, f"there is no object {path}")


def from_store(error: StoreError) -> RequestProblem:
    """What the store's error means to a client, who may repeat the message word for word."""
    match error:
        case StoreDenied():
            kind = ErrorKind.STORE_DENIED
        case StoreUnreachable():
            kind = ErrorKind.STORE_UNREACHABLE
        case _:
            kind = ErrorKind.STORE_FAILED
    return RequestProblem(kind, error.message)
