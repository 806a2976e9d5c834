"""The client port: HTTP/1.1 connections, their number and limits. aiohttp parses; its router is not used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import hdrs, web

from lookupdb.account_tokens import Caller, InvalidToken, TokenCache
from lookupdb.process import listeners
from lookupdb.store.gateway_wire import MODE_HEADER, REDIRECTED_SUFFIX, ErrorKind
from lookupdb.tokens import MAX_TOKEN_BYTES
from lookupdb_operator.cluster.client import Keys
from lookupdb_operator.gateway.request import (
    CONTENT_TYPE,
    Access,
    BrokenOff,
    Operation,
    RequestProblem,
    RequestTarget,
    Unauthenticated,
    busy,
    invalid,
    parse_target,
)
from lookupdb_operator.gateway.transfers import BROKEN_OFF, Admission, GatewayMetrics, Reads, Writes

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS: Final = 30.0
"""Seconds until the head of the next request is complete, also on a new connection."""
_LINGER_SECONDS: Final = 5.0
"""Seconds in which the rest of a refused body is read and dropped, so that the client reads the answer."""
_MAX_LINE_BYTES: Final = 4096
_MAX_HEADERS: Final = 64
_ABORT_SECONDS: Final = 5.0
"""Seconds for aborting the uploads of disconnected clients."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _render(problem: RequestProblem, *, closes: bool = False) -> web.StreamResponse:
    response = web.Response(
        status=problem.status, body=problem.render(), content_type=CONTENT_TYPE, headers=problem.headers
    )
    if closes:
        response.force_close()
    return response


class Connection(web.RequestHandler):
    """One client: its work stops when it disconnects, and anything but HTTP is refused."""

    _scope: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """Cancel the block if the client disconnects. Raises BrokenOff then."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                if self.transport is None or self.transport.is_closing():
                    scope.reschedule(0)
                yield
        except TimeoutError as error:
            if scope.expired():
                raise BrokenOff("the client went away") from error
            raise
        finally:
            self._scope = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the client's work."""
        if self._scope:
            self._scope.reschedule(0)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse a request that is not HTTP or exceeds a limit. It is neither repeated nor logged: it may hold a
        token."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun")
        problem = invalid("the request is not valid HTTP/1.1, or is larger than its limits")
        return _render(problem, closes=True)


class _Request(web.BaseRequest):
    """One request. Its response does not name the library."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)


class _Connections(web.Server):
    """All clients, the longest connected first."""

    def __init__(self, handle: Handle, most: int, **settings: Any) -> None:
        super().__init__(
            self._note_request,
            request_factory=lambda message, payload, protocol, writer, task: _Request(
                message, payload, protocol, writer, task, self._loop
            ),
            access_log=None,
            logger=log,
            **settings,
        )
        self._handle = handle
        self._settings = settings
        self._most = most
        self.busy: set[web.RequestHandler] = set()
        """Clients with a request in flight."""
        self.idle = asyncio.Event()
        """Set if no request is in flight."""
        self.idle.set()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new client."""
        return Connection(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type] # as web.Server gives it
            logger=log,
            **self._settings,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a client. The oldest idle one is closed to make room; if all others are busy, the new one is closed."""
        super().connection_made(handler, transport)
        while len(self._connections) > self._most:
            oldest = next(connection for connection in self.connections if connection not in self.busy)
            oldest.force_close()
            del self._connections[oldest]

    def abort_busy(self) -> None:
        """Disconnect clients with a request in flight."""
        for connection in self.busy & self._connections.keys():
            self._connections[connection].abort()

    async def _note_request(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self.busy.add(connection)
        self.idle.clear()
        try:
            return await self._handle(request)
        finally:
            self.busy.discard(connection)
            if not self.busy:
                self.idle.set()


class Server:
    """Listens and answers by ``handle`` until it is closed."""

    def __init__(
        self,
        handle: Handle,
        *,
        host: str,
        port: int,
        max_connections: int,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        """Binds at once. Raises UsageError if the port is taken."""
        self._listener: socket.socket = listeners.bind(host, port)
        self.port = listeners.bound_port(self._listener)
        self.most_connections = max_connections
        self._connections = _Connections(
            handle,
            max_connections,
            keepalive_timeout=keepalive_seconds,
            lingering_time=_LINGER_SECONDS,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=MAX_TOKEN_BYTES + _MAX_LINE_BYTES,
            max_headers=_MAX_HEADERS,
            auto_decompress=False,  # bodies are taken as sent; no decompression bombs
        )
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Return the number of connected clients."""
        return len(self._connections.connections)

    async def open(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connections, sock=self._listener, backlog=listeners.BACKLOG)

    async def close(self, seconds: float) -> None:
        """Stop accepting connections, and wait up to ``seconds`` for requests in flight. Then abort the rest, and
        undo aborted uploads."""
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        self._connections.pre_shutdown()
        await self._wait_idle(seconds)
        self._connections.abort_busy()
        await self._wait_idle(_ABORT_SECONDS)
        await self._connections.shutdown(1.0)

    async def _wait_idle(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._connections.idle.wait()


_SCHEME: Final = "bearer "
_SINGLE_HEADERS: Final = (
    *("Authorization", "Content-Length", "Content-Encoding", "Expect", "Host", "Range", "Transfer-Encoding"),
    MODE_HEADER,
)
"""Headers that must not be repeated: a proxy and the gateway could read different ones."""
_NO_OPERATION: Final = "none"
"""The label of requests for an unknown operation."""


class Handlers:
    """Answers requests. The order of the checks is fixed: an unknown sender learns nothing else."""

    def __init__(
        self,
        *,
        access: Access,
        keys: Keys,
        tokens: TokenCache,
        admission: Admission,
        reads: Reads,
        writes: Writes,
        metrics: GatewayMetrics,
    ) -> None:
        self._access = access
        self._keys = keys
        self._tokens = tokens
        self._admission = admission
        self._reads = reads
        self._writes = writes
        self._metrics = metrics

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``request``. Raises only a cancellation."""
        operation, status, began = _NO_OPERATION, BROKEN_OFF, time.monotonic()
        try:
            caller = await self._authenticate(request)
            target = parse_target(request.method, request.raw_path)
            operation = target.operation.value
            self._authorize(target, caller)
            with self._admission.admit(caller.namespace, transfers=_transfers_file(target, request)):
                response = await self._dispatch(request, target, caller)
            status = response.status
        except RequestProblem as problem:
            is_unknown, status = isinstance(problem, Unauthenticated), problem.status
            if isinstance(problem, Unauthenticated):
                self._metrics.count_refusal(problem.reason, problem.detail, request.remote)
            elif problem.kind is ErrorKind.FORBIDDEN:
                self._metrics.count_refusal("forbidden", problem.detail, request.remote)
            response = _render(problem, closes=is_unknown)  # each guess of a token costs a connection
        except BrokenOff as error:
            log.warning("a response broke off: %s", error, extra={"operation": operation})
            if request.transport:
                request.transport.abort()  # so that the client does not take a part for the whole
            response = web.StreamResponse(status=BROKEN_OFF)
        except Exception:
            log.exception("a request failed because of a bug in the gateway", extra={"operation": operation})
            status = 500
            response = _render(
                RequestProblem(ErrorKind.STORE_FAILED, "the gateway has a bug; see its log", status=status)
            )
        finally:
            self._metrics.requests[operation, status] += 1
            self._metrics.count_transfer(operation, status, time.monotonic() - began)
        return response

    async def _authenticate(self, request: web.BaseRequest) -> Caller:
        """Return the sender of ``request``. Raises RequestProblem."""
        for name in _SINGLE_HEADERS:
            if len(request.headers.getall(name, ())) > 1:
                raise invalid(f"expected one header {name}")
        header = request.headers.get("Authorization", "")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("absent", "expected a service account's token, as Authorization: Bearer …")
        token = header[len(_SCHEME) :].strip()
        try:
            caller = self._tokens.verify(token)
            if caller is None:
                is_current = await self._keys.look_again()
                caller = self._tokens.verify(token)
                if caller is None and not is_current:
                    raise busy("the keys of this cluster's service accounts cannot be read now")
        except InvalidToken as error:
            raise Unauthenticated(error.reason, error.detail) from error
        if caller is None:
            raise Unauthenticated("key", "the token is signed with a key that is none of this cluster's")
        return caller

    def _authorize(self, target: RequestTarget, caller: Caller) -> None:
        """Raise RequestProblem unless ``target`` is the caller's. Paths in a body are checked later."""
        match target.operation:
            case Operation.DELETE | Operation.COPY:
                return
            case Operation.LIST:
                is_allowed = self._access.may_list(target.path, caller, folders_only=target.folders_only)
            case Operation.WRITE:
                is_allowed = self._access.may_write(target.path, caller)
            case _:
                is_allowed = self._access.may_read(target.path, caller)
        if not is_allowed:
            raise RequestProblem(ErrorKind.FORBIDDEN, self._access.explain_refusal(target.path, caller))

    async def _dispatch(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        match target.operation:
            case Operation.WRITE:
                return await self._writes.put(request, target, caller)
            case Operation.COPY:
                return await self._writes.copy(request, caller)
            case Operation.DELETE:
                return await self._writes.delete(request, caller)
        connection = request.protocol
        assert isinstance(connection, Connection)
        async with connection.lasting():
            match target.operation:
                case Operation.READ:
                    return await self._reads.get(request, target, caller)
                case Operation.HEAD:
                    return await self._reads.head(request, target)
                case _:
                    return await self._reads.list(request, target, caller)


def _transfers_file(target: RequestTarget, request: web.BaseRequest) -> bool:
    """Return whether a file is read, put or copied; all else is short."""
    match target.operation:
        case Operation.READ:
            return target.path.endswith(REDIRECTED_SUFFIX)
        case Operation.WRITE:
            return MODE_HEADER not in request.headers
    return target.operation is Operation.COPY
