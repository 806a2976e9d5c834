"""The connection to the API server, and the public keys of service accounts, which are read through it.

The kubernetes client provides credentials, certificates and kubeconfig; it rereads a rotated service account token
every minute. Nothing is retried here. After a ``Retry-After``, all requests wait.

``Keys`` reads the keys for the gateway and the console, which check tokens themselves, and for routers, which never
call the API server: the operator passes the text on.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final, Self

import aiohttp
import orjson
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from lookupdb import __version__
from lookupdb.account_tokens import VerificationKey, parse_keys
from lookupdb.errors import UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.api import JSON, Answer, ApiError, Unreachable

log = logging.getLogger(__name__)

TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
_CONNECTIONS: Final = 16
_JITTER: Final = 0.2
_MESSAGE_AT_MOST: Final = 1 << 16
_LINE_AT_MOST: Final = 1 << 25
"""Maximum bytes of one event: etcd takes objects of 1.5 MiB, which can be a few times larger as JSON."""
_AUTHENTICATION: Final = ["BearerToken"]
_NO_ANSWER: Final = (aiohttp.ClientError, config.ConfigException, TimeoutError, OSError)


class Api:
    """Sends requests; the whole operator uses one object."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._client = _make_client(configuration)
        streaming = copy.copy(configuration)
        streaming.connection_pool_maxsize = 0  # unlimited: the watch of each kind keeps a connection
        self._streaming = _make_client(streaming)
        self._allowed_at = 0.0
        """When the API server accepts requests again, by the event loop's clock."""

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Connect as the pod's service account, or by a kubeconfig (``kubeconfig``, $KUBECONFIG, ~/.kube/config) in its
        current context or ``context``. Raises Unreachable if there is neither."""
        configuration = Configuration()
        try:
            if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=kubeconfig, context=context, client_configuration=configuration
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
        subject: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Return the JSON answer to ``method`` on ``path``. ``subject`` names the object in errors.

        Raises NotFound, Conflict, Refused or Unreachable.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        answer = await self._exchange(method, path, subject, query or {}, headers, body)
        if answer.status < 300:
            try:
                return orjson.loads(answer.body) if answer.body else {}
            except ValueError as error:
                raise Unreachable(subject, "the API server's answer is not JSON") from error
        raise self._note_retry_after(answer.make_error(subject))

    async def fetch(
        self,
        path: str,
        *,
        subject: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to GET ``path``, whatever its status. Raises Unreachable if there is none."""
        return await self._exchange("GET", path, subject, query or {}, {"Accept": "*/*", **(headers or {})}, None)

    async def _exchange(
        self, method: str, path: str, subject: str, query: Mapping[str, str], headers: dict[str, str], body: Any
    ) -> Answer:
        await self._wait_until_allowed()
        try:
            response = await _send(self._client, method, path, query, headers, body, TIMEOUT)
            return Answer(response.status, response.headers, await response.read())
        except _NO_ANSWER as error:
            raise _unreachable(subject, error) from error

    async def stream(
        self, path: str, *, subject: str, query: Mapping[str, str], accept: str = JSON, silence_at_most: float
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of the answer as they arrive. Raises like ``request``, and Unreachable after
        ``silence_at_most`` seconds without data."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT.sock_connect, sock_read=silence_at_most)
        await self._wait_until_allowed()
        response = None
        try:
            response = await _send(self._streaming, "GET", path, query, {"Accept": accept}, None, timeout)
            if response.status >= 300:
                text = await response.content.read(_MESSAGE_AT_MOST)
                raise self._note_retry_after(Answer(response.status, response.headers, text).make_error(subject))
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_AT_MOST:
                    raise Unreachable(subject, f"it sent a line of more than {_LINE_AT_MOST} bytes")
                if lines := [line for line in lines if line]:
                    yield lines
        except _NO_ANSWER as error:
            raise _unreachable(subject, error) from error
        finally:
            if response is not None:
                response.close()

    async def _wait_until_allowed(self) -> None:
        seconds = self._allowed_at - asyncio.get_running_loop().time()
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _note_retry_after(self, error: ApiError) -> ApiError:
        """Return ``error``. If it has a ``Retry-After``, all requests wait for that time plus jitter."""
        if isinstance(error, Unreachable) and error.retry_after:
            seconds = error.retry_after * random.uniform(1, 1 + _JITTER)  # noqa: S311 - not a secret
            self._allowed_at = max(self._allowed_at, asyncio.get_running_loop().time() + seconds)
        return error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]
        await self._streaming.close()  # type: ignore[no-untyped-call]


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run ``service``, which connects to the cluster, until it ends. Raises UsageError if no cluster is configured."""
    import uvloop  # here, because commands do not need it

    try:
        uvloop.run(service)
    except ApiError as error:
        raise UsageError(str(error)) from error


def _make_client(configuration: Configuration) -> ApiClient:
    client = ApiClient(configuration)
    client.user_agent = f"{names.FIELD_MANAGER}/{__version__}"
    return client


async def _send(
    client: ApiClient,
    method: str,
    path: str,
    query: Mapping[str, str],
    headers: dict[str, str],
    body: Any,
    timeout: aiohttp.ClientTimeout,
) -> aiohttp.ClientResponse:
    serialized = await client.param_serialize(
        method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=_AUTHENTICATION
    )
    answer = await client.call_api(*serialized, _request_timeout=timeout)
    response: aiohttp.ClientResponse = answer.response
    return response


def _unreachable(subject: str, error: Exception) -> Unreachable:
    return Unreachable(subject, f"the API server does not answer: {str(error) or type(error).__name__}")


# The public keys of the cluster's service accounts, which any service account may read.


_JWKS_PATH: Final = "/openid/v1/jwks"
_SUBJECT: Final = "the keys of service accounts"
REFRESH_SECONDS: Final = 60.0
MAX_BYTES: Final = 256 << 10
"""Maximum bytes of the keys: a quarter of what fits into a ConfigMap."""


_KEYS_REREAD_SECONDS: Final = 600.0
UNKNOWN_KEY_SECONDS: Final = 10.0
"""Minimum seconds between two reads for unknown keys."""
MOST_WAITING: Final = 16
"""Maximum number of requests that wait for a read, because anyone can send a false token."""
_RETRY_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0


class Keys:
    """The keys as last read through ``api``; if reading fails, the last ones are kept."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[bool] | None = None
        self._waiting = 0
        self._problem = ""
        self.read_timestamp: float | None = None
        """Seconds since 1970 of the last read; None before the first."""
        self.current: Mapping[str, VerificationKey] = {}
        self.text = ""
        """A JWKS in canonical form; empty until read."""

    @property
    def age(self) -> float | None:
        """Return seconds since the last read; None before the first."""
        return None if self._read_at is None else time.monotonic() - self._read_at

    async def run(self) -> None:
        """Read the keys regularly."""
        while True:
            is_read = await self._read_shared()
            await asyncio.sleep(_KEYS_REREAD_SECONDS if is_read else _RETRY_SECONDS)

    async def refresh(self) -> bool:
        """Read the keys. Return whether they changed."""
        before = self.text
        await self._read_shared()
        return self.text != before

    async def look_again(self) -> bool:
        """Read the keys because one is unknown, unless that was just tried. Return whether the known keys are current;
        False if too many requests wait already."""
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._tried_at is not None:
            age = time.monotonic() - self._tried_at
            if age < UNKNOWN_KEY_SECONDS:
                return self._read_at is not None and self._read_at >= self._tried_at
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            return await self._read_shared()
        finally:
            self._waiting -= 1

    async def _read_shared(self) -> bool:
        """Read the keys, or wait for the read under way. Return whether it succeeded."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="reading keys")
        return await asyncio.shield(self._reading)

    async def _read(self) -> bool:
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                answer = await self._api.fetch(_JWKS_PATH, subject=_SUBJECT)
            if answer.status != 200:
                raise answer.make_error(_SUBJECT)
            if len(answer.body) > MAX_BYTES:
                raise ValueError(f"they have {len(answer.body)} bytes, the limit is {MAX_BYTES}")
            keys = parse_keys(answer.body)
        except (ApiError, TimeoutError, ValueError) as error:
            problem = str(error) or "no answer in time"
            if problem != self._problem:  # once: most datasets need no keys
                log.warning("%s cannot be read, and the last ones stay: %s", _SUBJECT, problem)
            self._problem = problem
            return False
        self._problem, self._read_at, self.read_timestamp = "", time.monotonic(), time.time()
        text = orjson.dumps(orjson.loads(answer.body), option=orjson.OPT_SORT_KEYS).decode() + "\n"
        if text != self.text:
            log.info("read the keys of service accounts", extra={"keys": len(keys)})
            self.current, self.text = keys, text
        return True
