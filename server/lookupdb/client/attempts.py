"""How often a request is sent: what failed with a connection may be sent again on another one, for lookups change
nothing. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lookupdb.client.refusals import make_unavailable
from lookupdb.errors import LookupFailed, RequestRefused

DEADLINE: Final = "Deadline"
UNREACHABLE: Final = "RouterUnreachable"
CONNECTION_LOST: Final = "ConnectionLost"
TOO_MANY_CONNECTIONS: Final = "TooManyConnections"


class ConnectionFailure(Exception):
    """A request was not answered, for a reason of its connection."""

    def __init__(self, reason: str, detail: str, *, is_stale: bool = False, refusal_hint: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_stale = is_stale
        """The connection had been used before, and was closed before a byte of the answer: most likely the router
        closed it while it was idle."""
        self.refusal_hint = refusal_hint
        """What to do if no later attempt can do better: certificates do not fit. Files are replaced, so that another
        connection, which reads them anew, is tried all the same."""

    def to_error(self, keys: Sequence[str]) -> LookupFailed:
        """The error of ``keys``."""
        if self.refusal_hint is not None:
            return RequestRefused(self.detail, hint=self.refusal_hint)
        return make_unavailable(tuple(keys), self.reason, self.detail)


def deadline_failure(seconds: float) -> ConnectionFailure:
    """The failure of a call that has taken as long as it may."""
    return ConnectionFailure(DEADLINE, f"the call has taken longer than its timeout of {seconds:g} s")


class Attempts:
    """Counts the attempts of one request."""

    __slots__ = ("_has_met_stale", "_left", "_may_refresh_token")

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._has_met_stale = False
        self._may_refresh_token = True

    def allow_another(self, failure: ConnectionFailure) -> bool:
        """Whether the request is sent again after ``failure``. A stale connection does not count, but only once."""
        if failure.reason == DEADLINE:
            return False
        if failure.is_stale and not self._has_met_stale:
            self._has_met_stale = True
            return True
        self._left -= 1
        return self._left >= 0

    def allow_new_token(self) -> bool:
        """Whether a token that was not accepted may be looked at again: once."""
        may_refresh, self._may_refresh_token = self._may_refresh_token, False
        return may_refresh
