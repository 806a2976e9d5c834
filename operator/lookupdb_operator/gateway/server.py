"""The port: HTTP/1.1 connections, their number and their limits. aiohttp parses; no router of its looks at paths."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import hdrs, web

from lookupdb.runtime import listeners
from lookupdb.tokens import MAX_TOKEN_BYTES
from lookupdb_operator.gateway.connection import Connection

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS: Final = 30.0
"""Until the head of the next request is whole, also on a new connection."""
_LINGER_SECONDS: Final = 5.0
"""For which the rest of a refused request's body is read and dropped, so that the client reads the answer."""
_MAX_LINE_BYTES: Final = 4096
_MAX_HEADERS: Final = 64
_ABORT_SECONDS: Final = 5.0
"""In which uploads whose clients were cut off are taken back."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Request(web.BaseRequest):
    """One request. Its answer does not tell which version of what library it comes from."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)


class _Connections(web.Server):
    """All clients, the longest connected first."""

    def __init__(self, handle: Handle, most: int, **settings: Any) -> None:
        super().__init__(self._note_request, request_factory=_make_request, access_log=None, logger=log, **settings)
        self._handle = handle
        self._settings = settings
        self._most = most
        self.busy: set[web.RequestHandler] = set()
        """Those with a request in flight."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new client."""
        return Connection(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type] # as web.Server gives it
            logger=log,
            **self._settings,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count a client; the oldest idle one makes room, and that is the new one where all others are busy."""
        super().connection_made(handler, transport)
        while len(self._connections) > self._most:
            oldest = next(connection for connection in self.connections if connection not in self.busy)
            oldest.force_close()
            del self._connections[oldest]

    def abort_busy(self) -> None:
        """Cut off who has a request in flight."""
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


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    return _Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


class Server:
    """Listens, and answers by ``handle``, until it is closed."""

    def __init__(
        self,
        handle: Handle,
        *,
        host: str,
        port: int,
        max_connections: int,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        """Binds at once. Raises UsageError when the port is taken."""
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
            auto_decompress=False,  # a body is what it is, and no bomb
        )
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections.connections)

    async def open(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connections, sock=self._listener, backlog=listeners.BACKLOG)

    async def close(self, seconds: float) -> None:
        """Accept nobody any more, finish what is in flight within ``seconds``, and cut off what is not finished then:
        an upload whose client is cut off is taken back."""
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
