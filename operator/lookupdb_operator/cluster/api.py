"""What an API server answers: media types and errors. The server is a cluster's, or the local one of `lookupdb up`,
whose client loads neither aiohttp nor kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

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

    async def close(self) -> None:
        """Close all connections."""


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


class ByteStream(Protocol):
    """The body of an answer that arrives."""

    async def read(self, n: int, /) -> bytes:
        """Return at most ``n`` of the bytes that have arrived; none at the end."""


async def read_at_most(stream: ByteStream, limit: int) -> bytes:
    """Return the bytes of ``stream`` up to its end, or the first ``limit``."""
    body = bytearray()
    while len(body) < limit and (chunk := await stream.read(limit - len(body))):
        body += chunk
    return bytes(body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An unparsed answer, from the API server or from what it is a proxy for."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def make_error(self, subject: str) -> ApiError:
        """Return the error that it means if it is from the API server itself."""
        return make_error(subject, self.status, self.headers, self.body)


def _parse_members(text: bytes) -> Mapping[str, Any]:
    """Return the JSON object of an error response; any other text becomes its message."""
    try:
        answer = orjson.loads(text) if text else {}
    except ValueError:
        return {"message": text[:500].decode(errors="replace").strip()}
    return answer if isinstance(answer, dict) else {}


def make_error(subject: str, status: int, headers: Mapping[str, str], text: bytes) -> ApiError:
    """Return the error for an answer with the body ``text``."""
    answer = _parse_members(text)
    seconds = headers.get("Retry-After") or ""
    retry_after = min(float(seconds), _RETRY_AFTER_AT_MOST) if seconds.isdecimal() else None
    message = str(answer.get("message") or f"the API server answers {status}")
    match status:
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
        case _ if status >= 500 and not message.startswith("failed to create typed patch object"):
            return Unreachable(subject, message, retry_after)
    details = answer.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating":
            return NamespaceTerminating(subject, message)
    return Refused(subject, message)
