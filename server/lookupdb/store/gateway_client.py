"""Requests to a gateway over HTTP: connections, the token, timeouts, retries."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from lookupdb.authorities import trust_also
from lookupdb.store.credentials import identify_store
from lookupdb.store.gateway_answer import CHUNK_BYTES, GatewayAnswer, transport_errors
from lookupdb.store.gateway_problem import TransientFailure, absent_error
from lookupdb.store.gateway_token import TokenFile
from lookupdb.store.gateway_wire import CA_FILE_VARIABLE, TOKEN_FILE_VARIABLE
from lookupdb.store.object_store import MAX_BACKOFF_SECONDS, PROBE_CONNECT_SECONDS, PROBE_SECONDS

T = TypeVar("T")

# A gateway has replicas, and one may be on a node that is lost: until the cluster has seen that, every other connection
# leads there. So each try is short, and another connection is made for the next.
CONNECT_SECONDS: Final = 3
SILENCE_SECONDS: Final = 15
RETRY_SECONDS: Final = 60
UPLOAD_SILENCE_SECONDS: Final = 300
"""A gateway takes the bytes of an upload when it has room for them, and answers when the store has the last part."""
_FIRST_BACKOFF_SECONDS: Final = 0.1
_CONNECTIONS: Final = 4
"""That are kept: a builder uploads, and renews its claim beside."""
_UNACKNOWLEDGED_SECONDS: Final = 60
"""After which a peer that takes no byte, or does not say that it is there, is gone: also while it may be silent."""
_SOCKET_OPTIONS: Final = (
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_SECONDS * 1000),
)
CLAIM_SILENCE_SECONDS: Final = 5
"""A builder whose claim does not change for bucket.LEASE_SECONDS is taken for dead: it must have time to try again."""
REQUEST_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
CLAIM_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=CLAIM_SILENCE_SECONDS)
UPLOAD_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=UPLOAD_SILENCE_SECONDS)
PROBE_TIMEOUT: Final = urllib3.Timeout(connect=PROBE_CONNECT_SECONDS, read=PROBE_SECONDS)


class _SlowReceiver:
    """urllib3 sends with the timeout for connecting, which is too short for a receiver that has no room."""

    def send(self: Any, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(UPLOAD_SILENCE_SECONDS)
        super().send(data)  # type: ignore[misc]


class _PlainConnection(_SlowReceiver, HTTPConnection):
    pass


class _SecureConnection(_SlowReceiver, HTTPSConnection):
    pass


class GatewayClient:
    """The client of the gateway at ``url``."""

    def __init__(self, url: str, retries: int) -> None:
        """Raises UsageError if the environment lacks the token's file, or names a wrong authority."""
        self.url = url
        self._host = urlsplit(url).netloc
        self._retries = retries
        self._token = TokenFile(url)
        self.identity: Final = identify_store(url, {TOKEN_FILE_VARIABLE: str(self._token.path)})
        is_secure = urlsplit(url).scheme == "https"
        settings: dict[str, Any] = (
            {"ssl_context": trust_also(os.environ.get(CA_FILE_VARIABLE), CA_FILE_VARIABLE)} if is_secure else {}
        )
        self._pool = urllib3.connection_from_url(
            url, maxsize=_CONNECTIONS, blocksize=CHUNK_BYTES, socket_options=_SOCKET_OPTIONS, **settings
        )
        self._pool.ConnectionCls = _SecureConnection if is_secure else _PlainConnection
        self._redirects = urllib3.PoolManager(num_pools=1, maxsize=_CONNECTIONS)

    def describe(self, action: str) -> str:
        """The beginning of what is said of a request that failed."""
        return f"cannot {action} {self.url}"

    def send(
        self,
        action: str,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
        timeout: urllib3.Timeout | None = None,
    ) -> GatewayAnswer:
        """The head of the answer; whoever takes it closes it. Raises TransientFailure, StoreError."""
        message = self.describe(action)
        fields = {"Authorization": f"Bearer {self._token.read()}", "Accept-Encoding": "identity", **(headers or {})}
        with transport_errors(message, self._host):
            response = self._pool.urlopen(
                method,
                target,
                body=body,
                headers=fields,
                timeout=timeout or REQUEST_TIMEOUT,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        return GatewayAnswer(response, message, self._host, has_body=method != "HEAD")

    @contextmanager
    def exchange(self, action: str, method: str, target: str, **settings: Any) -> Iterator[GatewayAnswer]:
        """The same for an answer that is read within the block."""
        answer = self.send(action, method, target, **settings)
        try:
            yield answer
        finally:
            answer.close()

    def follow(self, action: str, url: str, headers: Mapping[str, str]) -> GatewayAnswer:
        """GET what a gateway has redirected to, and show it no token. That URL is a secret: no error has more of it
        than the host. Raises TransientFailure whatever goes wrong: the gateway can be asked again."""
        message = self.describe(action)
        host = _find_host(url)
        if not host:
            raise TransientFailure(absent_error(f"{message}: it redirects to what is no URL"))
        message = f"{message}: it redirects to {host}"
        try:
            response = self._redirects.urlopen(
                "GET",
                url,
                headers={"Accept-Encoding": "identity", **headers},
                timeout=REQUEST_TIMEOUT,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            raise TransientFailure(absent_error(f"{message}, which does not answer")) from None  # it may have the URL
        answer = GatewayAnswer(response, message, host)
        if answer.status not in (200, 206):
            answer.close()
            raise TransientFailure(absent_error(f"{message}, which answers with status {answer.status}"))
        return answer

    def retry(self, attempt: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
        """Return what ``attempt`` returns; repeat it for ``seconds`` while it raises TransientFailure. Raises the
        StoreError of the last one."""
        deadline = time.monotonic() + seconds
        backoff = _FIRST_BACKOFF_SECONDS
        for retries_left in range(self._retries, -1, -1):
            try:
                return attempt()
            except TransientFailure as failure:
                pause = max(failure.pause, backoff * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load
                if not retries_left or time.monotonic() + pause > deadline:
                    raise failure.error from failure
            time.sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
        raise AssertionError("the last attempt returns or raises")


def _find_host(url: str) -> str | None:
    """The host of a URL that can be asked."""
    try:
        parts = urllib3.util.parse_url(url)
    except urllib3.exceptions.LocationParseError:
        return None
    return parts.host if parts.scheme in ("http", "https") else None
