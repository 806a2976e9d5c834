"""What an API server answers: media types and errors. The server is a cluster's, or the local one of `lookupdb up`,
whose client loads neither aiohttp nor kubernetes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

if TYPE_CHECKING:
    from aiohttp import StreamReader

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""For lists: names, uids and owners only, at a hundredth of the size."""
_RETRY_AFTER_AT_MOST: Final = 60.0


class Requests(Protocol):
    """Sends requests to an API server."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        subject: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Return the JSON answer to ``method`` on ``path``. ``subject`` names the object in errors.

        Raises NotFound, Conflict, Refused or Unreachable.
        """


async def read_pages(
    api: Requests, path: str, *, subject: str, query: Mapping[str, str], limit: int, accept: str = JSON
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the pages of a list, each with at most ``limit`` objects. Raises what ``request`` raises."""
    more = ""
    while True:
        asked = {**query, "limit": str(limit)} | ({"continue": more} if more else {})
        page = await api.request("GET", path, subject=subject, query=asked, accept=accept)
        more = str((page.get("metadata") or {}).get("continue") or "")
        yield page
        del page  # before the next one arrives
        if not more:
            return


class ApiError(Exception):
    """A failed request. ``subject`` names the object, ``message`` is the server's."""

    def __init__(self, subject: str, message: str) -> None:
        super().__init__(f"{subject}: {message}")
        self.subject = subject
        self.message = message


class NotFound(ApiError):
    """The object or its namespace does not exist."""


class Conflict(ApiError):
    """Somebody else wrote the object, or another object has its name."""


class AlreadyExists(Conflict):
    """An object of that name exists."""


class Refused(ApiError):
    """The API server rejects the request: quota, permissions, admission, validation."""


class NamespaceTerminating(Refused):
    """The namespace is being deleted: nothing can be created in it."""


class Unreachable(ApiError):
    """The API server cannot be reached, or cannot answer at the moment."""

    def __init__(self, subject: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(subject, message)
        self.retry_after = retry_after
        """Seconds to wait, if the server names them."""


class Unauthorized(Unreachable):
    """The credentials are rejected. A pod's token is replaced now and then, so the operator retries."""


class Expired(Unreachable):
    """A list or watch cannot be continued and must be restarted."""


async def read_at_most(stream: StreamReader, limit: int) -> bytes:
    """Return the bytes of ``stream`` up to its end, or the first ``limit``."""
    body = bytearray()
    while len(body) < limit and (chunk := await stream.read(limit - len(body))):
        body += chunk
    return bytes(body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An unparsed answer, from the API server or from a server behind its proxy."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def make_error(self, subject: str) -> ApiError:
        """Return the error for this answer, assuming that the API server itself sent it."""
        try:
            answer = orjson.loads(self.body) if self.body else {}
        except ValueError:
            answer = {"message": self.body[:500].decode(errors="replace").strip()}
        answer = answer if isinstance(answer, dict) else {}
        seconds = self.headers.get("Retry-After") or ""
        retry_after = min(float(seconds), _RETRY_AFTER_AT_MOST) if seconds.isdecimal() else None
        message = str(answer.get("message") or f"the API server answers {self.status}")
        match self.status:
            case 404:
                return NotFound(subject, message)
            case 409 if answer.get("reason") == "AlreadyExists":
                return AlreadyExists(subject, message)
            case 409:
                return Conflict(subject, message)
            case 401:
                return Unauthorized(subject, f"the API server does not accept these credentials: {message}")
            case 410:
                return Expired(subject, message)
            case 408 | 429:
                return Unreachable(subject, message, retry_after)
            # The API server reports an apply with wrongly typed fields as its own fault (seen with 1.34).
            case status if status >= 500 and not message.startswith("failed to create typed patch object"):
                return Unreachable(subject, message, retry_after)
        details = answer.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        for cause in causes if isinstance(causes, list) else ():
            if isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating":
                return NamespaceTerminating(subject, message)
        return Refused(subject, message)
