"""What an answer of a gateway that is no success means to its client. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable
from lookupdb.store.gateway_wire import ErrorKind

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
