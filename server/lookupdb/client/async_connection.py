"""A connection to a router, and the pool of them, for one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final, cast

from lookupdb.client.attempts import CONNECTION_LOST, ConnectionFailure, deadline_failure
from lookupdb.client.certificates import TlsContexts
from lookupdb.client.connection import PIECE_BYTES
from lookupdb.client.connection_pool import NO_CONNECTION
from lookupdb.client.response_reader import Response, ResponseReader
from lookupdb.client.settings import MAX_ANSWER_BYTES, ClientSettings
from lookupdb.client.socket_errors import connecting_error, lost_connection
from lookupdb.errors import InvalidAnswer

_CLOSING_TURNS: Final = 20
CLOSED: Final = "this client is closed"
_CLOSED_DETAIL: Final = "the connection was closed before the answer was whole"


class AsyncConnection(asyncio.Protocol):
    """One connection, for one request after another. That the router closes it is noticed at once.

    No BufferedProtocol: over TLS, such a one is not given what came before the end, once that has come, if it is more
    than its buffer takes.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: ClientSettings, standing: set[AsyncConnection]
    ) -> None:
        """``standing`` has it for as long as its socket is open."""
        self._loop = loop
        self._settings = settings
        self._standing = standing
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._is_answered = False
        """It is whole, whether or not it was told already."""
        self._was_used = False
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False
        """Whether a request may be sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "max_size"):  # of asyncio's own transport of a socket, which does not document it
            transport.max_size = PIECE_BYTES
        self._standing.add(self)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.is_open = False
        self._standing.discard(self)
        is_stale = self._was_used and not self._reader.has_begun
        if exc is not None:
            self._fail(lost_connection(exc, self._settings, is_stale=is_stale))
        else:
            self._fail(ConnectionFailure(CONNECTION_LOST, _CLOSED_DETAIL, is_stale=is_stale))

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer. Bytes that answer nothing end the connection."""
        answer = self._answer
        if answer is None or answer.done() or self._is_answered:
            self.close()
            return
        try:
            response = self._reader.feed(data)
        except InvalidAnswer as error:
            self._fail(error)
            self.close()
            return
        if response is not None:
            self._is_answered = True
            if len(data) < PIECE_BYTES:
                answer.set_result(response)
            else:  # what follows would answer the next request, and comes before that
                self._loop.call_soon(_answer, answer, response)
        elif self._settings.read_timeout is not None:
            self._heard_at = self._loop.time()

    async def exchange(self, request: bytes, deadline: float) -> Response:
        """Send ``request`` and return its answer. Raises ConnectionFailure and InvalidAnswer."""
        assert self._transport is not None
        loop = self._loop
        self.is_open = False
        answer: asyncio.Future[Response] = loop.create_future()
        self._answer = answer
        self._is_answered = False
        self._heard_at = loop.time()
        self._timer = loop.call_at(self._next_look(deadline), self._look, deadline)
        try:
            self._transport.write(request)
            response = await answer
        except BaseException:
            self.close()
            raise
        finally:
            self._timer.cancel()  # the last one that was set: it must not end the next request
            self._answer = None
        self._was_used = True
        self.is_open = response.keeps_open and not self._transport.is_closing()
        return response

    def _next_look(self, deadline: float) -> float:
        seconds = self._settings.read_timeout
        return deadline if seconds is None else min(deadline, self._heard_at + seconds)

    def _look(self, deadline: float) -> None:
        """The answer takes long: too long?"""
        now, due = self._loop.time(), self._next_look(deadline)
        if now < due:
            self._timer = self._loop.call_at(due, self._look, deadline)
        elif due >= deadline:
            self._fail(deadline_failure(self._settings.timeout))
        else:
            seconds = self._settings.read_timeout
            detail = f"the router sent nothing for {seconds:g} s, the read_timeout"
            self._fail(ConnectionFailure(CONNECTION_LOST, detail))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        """Close it at once."""
        self.is_open = False
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and its socket with it
                self._transport.abort()


class AsyncConnectionPool:
    """At most ``max_connections`` connections, the one that was used last first. Who waits for one is served in
    turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: ClientSettings) -> None:
        self._loop = loop
        self._settings = settings
        self._tls = TlsContexts(settings) if settings.address.is_tls else None
        self._idle: list[AsyncConnection] = []
        self._used: set[AsyncConnection] = set()
        self._standing: set[AsyncConnection] = set()
        self._connecting = 0
        self._called = 0
        """Those who have waited, and have been told that they may go on, which they will at the next turn."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def acquire(self, deadline: float, *, is_fresh: bool = False) -> AsyncConnection:
        """A connection, to be released; ``is_fresh``: a new one. Raises ConnectionFailure, and RuntimeError if the pool
        is closed."""
        if self._waiters or not self._has_room():
            await self._wait(deadline)
        if self._is_closed:
            raise RuntimeError(CLOSED)
        if connection := self._pop_idle():
            if not is_fresh:
                self._used.add(connection)
                return connection
            connection.close()  # and take its place
        return await self._connect(deadline)

    def release(self, connection: AsyncConnection) -> None:
        """Give it back. It is closed unless it can be used again."""
        self._used.discard(connection)
        if connection.is_open and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        self._call_next()

    def close(self) -> None:
        """Close all of them. Who waits for one gets RuntimeError."""
        self._is_closed = True
        for connection in [*self._standing]:
            connection.close()
        self._idle.clear()
        with contextlib.suppress(RuntimeError):  # its loop has ended, and those who waited with it
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(RuntimeError(CLOSED))

    async def wait_closed(self) -> None:
        """Wait until their sockets are closed, which takes a turn or two of the loop."""
        for _ in range(_CLOSING_TURNS):
            if not self._standing:
                return
            await asyncio.sleep(0)

    def _has_room(self) -> bool:
        return len(self._used) + self._connecting + self._called < self._settings.max_connections

    def _pop_idle(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, deadline: float) -> AsyncConnection:
        loop, settings = self._loop, self._settings
        address = settings.address
        context = self._tls.context() if self._tls is not None else None
        ends_at = min(deadline, loop.time() + settings.connect_timeout)
        self._connecting += 1
        connection: AsyncConnection | None = None
        try:
            async with asyncio.timeout_at(ends_at):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(loop, settings, self._standing),
                    address.host,
                    address.port,
                    ssl=context,
                    server_hostname=address.host if context is not None else None,
                )
        except OSError as error:
            raise connecting_error(error, settings, is_late=loop.time() >= deadline) from error
        finally:
            self._connecting -= 1
            if connection is None:
                self._call_next()  # whoever waits may try in its place
        self._used.add(connection)
        if self._is_closed:
            self.release(connection)
            raise RuntimeError(CLOSED)
        return connection

    async def _wait(self, deadline: float) -> None:
        """Wait for one's turn."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError as error:
            self._pass_on(waiter)
            most = self._settings.max_connections
            detail = f"all {most} connections were in use until the timeout"
            raise ConnectionFailure(NO_CONNECTION, detail) from error
        except BaseException:
            self._pass_on(waiter)
            raise
        self._called -= 1

    def _call_next(self) -> None:
        while self._waiters and self._has_room():
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._called += 1

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """``waiter`` does not come: if it was called all the same, the next one may."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._called -= 1
            self._call_next()


def _answer(answer: asyncio.Future[Response], response: Response) -> None:
    if not answer.done():
        answer.set_result(response)
