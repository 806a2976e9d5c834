"""One connection to the API server: requests by path, and what can go wrong with them.

Credentials, certificates and kubeconfig are the kubernetes client's (a service account's token is read again every
minute, as the kubelet rotates it). Nothing is repeated here: whoever asked looks again, later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Self

import aiohttp
import orjson
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from lookupdb import __version__
from lookupdb_operator import names

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""Of a list: names, uids and owners, without the objects, at a hundredth of the bytes."""

TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
_CONNECTIONS: Final = 16
_RETRY_AFTER_AT_MOST: Final = 60.0
_AUTHENTICATION: Final = ["BearerToken"]


class ApiError(Exception):
    """The API server did not do what it was asked. ``what`` names the object, ``message`` is the server's."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what
        self.message = message


class NotFound(ApiError):
    """There is no such object, or no such namespace."""


class Conflict(ApiError):
    """Somebody else wrote it, or it is another object of that name now."""


class AlreadyExists(Conflict):
    """An object of that name exists."""


class Refused(ApiError):
    """The API server will not take it, now or as it is: quota, permissions, admission, validation."""


class Unreachable(ApiError):
    """The API server cannot be asked, or cannot answer, at the moment."""

    def __init__(self, what: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(what, message)
        self.retry_after = retry_after
        """Seconds that the server asks us to wait."""


class Api:
    """Sends requests. One for the whole operator."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._client = ApiClient(configuration)
        self._client.user_agent = f"{names.FIELD_MANAGER}/{__version__}"

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """As the pod's service account, or as a kubeconfig says (``kubeconfig``, $KUBECONFIG, ~/.kube/config).

        Raises Unreachable when there are neither.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=kubeconfig, client_configuration=configuration
                )
        except (config.ConfigException, OSError) as error:
            raise Unreachable(
                "the cluster",
                f"there are no credentials for it: {error}; run in a pod with a service account, or set KUBECONFIG",
            ) from error
        return cls(configuration)

    async def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """The JSON that the API server answers to ``method`` on ``path``. ``what`` names the object in errors.

        Raises NotFound, Conflict, Refused or Unreachable.
        """
        try:
            status, headers, text = await self._exchange(method, path, query, body, content_type, accept)
        except (aiohttp.ClientError, config.ConfigException, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(what, f"the API server does not answer: {reason}") from error
        try:
            answer = orjson.loads(text) if text else {}
        except ValueError as error:
            if status < 300:
                raise Unreachable(what, "the API server's answer is not JSON") from error
            answer = {"message": text[:500].decode(errors="replace").strip()}
        if status < 300:
            return answer
        raise _error(what, status, answer if isinstance(answer, dict) else {}, headers.get("Retry-After"))

    async def _exchange(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str, accept: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        serialized = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=_AUTHENTICATION,
        )
        response = await self._client.call_api(*serialized, _request_timeout=TIMEOUT)
        return response.status, response.headers, await response.read()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]


def _error(what: str, status: int, answer: Mapping[str, Any], retry_after: str | None) -> ApiError:
    message = str(answer.get("message") or f"the API server answers {status}")
    match status:
        case 404:
            return NotFound(what, message)
        case 409 if answer.get("reason") == "AlreadyExists":
            return AlreadyExists(what, message)
        case 409:
            return Conflict(what, message)
        case 401:
            return Unreachable(what, f"the API server does not accept the operator's credentials: {message}")
        case 408 | 410 | 429:
            return Unreachable(what, message, _seconds(retry_after))
        # An apply whose fields are of the wrong type: the API server calls that its own fault (seen with 1.34).
        case _ if status >= 500 and not message.startswith("failed to create typed patch object"):
            return Unreachable(what, message, _seconds(retry_after))
    return Refused(what, message)


def _seconds(retry_after: str | None) -> float | None:
    if not retry_after or not retry_after.isdecimal():
        return None
    return min(float(retry_after), _RETRY_AFTER_AT_MOST)
