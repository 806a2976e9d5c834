"""Batches and connections of a client in an event loop.

A lookup of one key joins an ``AsyncCombiner``, whose task requests all waiting keys. The task sends the request by
``AsyncRouterLink.exchange``, which takes an ``AsyncConnection`` from the ``AsyncConnectionPool``, in turn, and returns
it afterwards. All of them belong to one event loop; another loop or a forked process gets its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from lookupdb.client import core
from lookupdb.client.core import ClientCore, ConnectionFailure, SharedAnswer
from lookupdb.client.settings import MAX_ANSWER_BYTES, PROCESS, ClientSettings, TlsContexts
from lookupdb.client.wire import Render, Response, ResponseReader
from lookupdb.errors import InvalidAnswer

_CLOSED: Final = "this client is closed"
_CLOSING_TURNS: Final = 20
_left_behind: list[object] = []
"""Connections of a parent's event loop, kept alive: a forked process must not even close them, because the parent's
loop uses the same selector and would lose them."""


class AsyncRouterLink:
    """The connections and batches of a client in one event loop; another loop or a forked process gets its own."""

    def __init__(self, settings: ClientSettings) -> None:
        self.core = ClientCore(settings)
        self.combiners: dict[str | None, AsyncCombiner] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: AsyncConnectionPool | None = None
        self._epoch = PROCESS.epoch
        self._is_closed = False

    def enter(self) -> float:
        """Bind the connections to the running loop. Return the deadline of a call. Raises RuntimeError if the client is
        closed, or their loop still runs in another thread."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._epoch is not PROCESS.epoch:
            with PROCESS.lock:
                if self._epoch is not PROCESS.epoch:
                    _left_behind.append((self._pool, self._loop, dict(self.combiners)))
                    self.core.begin()
                elif self._loop is not None and self._loop.is_running():
                    raise RuntimeError(
                        "an AsyncClient belongs to one event loop at a time, and the loop of this one still runs in"
                        " another thread; make one client for each loop"
                    )
                elif self._pool is not None:
                    self._pool.close()
                self._loop = loop
                self._pool = AsyncConnectionPool(loop, self.core.settings)
                self.combiners = {}
                self._epoch = PROCESS.epoch
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        return loop.time() + self.core.settings.timeout

    async def exchange(
        self, render: Render, token: bytes, deadline: float, answer_by: float | None, *, is_fresh: bool
    ) -> Response:
        """Send the request that ``render`` makes, over a new connection if ``is_fresh``, and return the answer. Raises
        ConnectionFailure, InvalidAnswer, and RuntimeError once the client is closed."""
        pool, loop = self._pool, self._loop
        assert pool is not None
        assert loop is not None
        try:
            connection = await pool.acquire(deadline, is_fresh=is_fresh)
            try:
                fields = self.core.render_fields(token, loop.time(), deadline, answer_by)
                return await connection.exchange(render(fields), deadline)
            finally:
                pool.release(connection)
        except ConnectionFailure as error:
            if self._is_closed:
                raise RuntimeError(_CLOSED) from error
            raise

    async def close(self) -> None:
        """Close the connections, and end pending lookups."""
        self._is_closed = True
        if self._loop is asyncio.get_running_loop() and self._epoch is PROCESS.epoch:
            for combiner in [*self.combiners.values()]:
                await combiner.close()
            if self._pool is not None:
                self._pool.close()
                await self._pool.wait_closed()


class AsyncConnection(asyncio.Protocol):
    """One connection, for one request after another. It notices at once when the router closes it.

    It is not a BufferedProtocol: over TLS, one loses final bytes that do not fit into its buffer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: ClientSettings, standing: set[AsyncConnection]
    ) -> None:
        """``standing`` holds the connection while its socket is open."""
        self._loop = loop
        self._settings = settings
        self._standing = standing
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._is_answered = False  # True once the answer is complete, reported or not
        self._was_used = False
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False  # True if a request may be sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open connection."""
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "max_size"):  # an undocumented attribute of asyncio's own socket transport
            transport.max_size = core.PIECE_BYTES
        self._standing.add(self)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the pending request with the connection."""
        self.is_open = False
        self._standing.discard(self)
        is_stale = self._was_used and not self._reader.has_begun
        self._fail(core.lost_connection(exc, self._settings, is_stale=is_stale))

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer. Bytes without a request end the connection."""
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
            if len(data) < core.PIECE_BYTES:
                answer.set_result(response)
            else:  # more bytes would answer a request that was not sent yet
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
            self._timer.cancel()  # cancel the last timer: it must not end the next request
            self._answer = None
        self._was_used = True
        self.is_open = response.keeps_open and not self._transport.is_closing()
        return response

    def _next_look(self, deadline: float) -> float:
        seconds = self._settings.read_timeout
        return deadline if seconds is None else min(deadline, self._heard_at + seconds)

    def _look(self, deadline: float) -> None:
        """End the request if its time is over, else set the timer again."""
        now, due = self._loop.time(), self._next_look(deadline)
        if now < due:
            self._timer = self._loop.call_at(due, self._look, deadline)
        else:
            self._fail(core.timeout_failure(self._settings, is_late=due >= deadline))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and its socket with it
                self._transport.abort()


class AsyncConnectionPool:
    """At most ``max_connections`` connections, most recently used first. Waiting requests are served in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: ClientSettings) -> None:
        self._loop = loop
        self._settings = settings
        self._tls = TlsContexts(settings)
        self._free = asyncio.Semaphore(settings.max_connections)  # permits for connections in use
        self._waiting = 0
        self._idle: list[AsyncConnection] = []
        self._standing: set[AsyncConnection] = set()
        self._is_closed = False

    async def acquire(self, deadline: float, *, is_fresh: bool = False) -> AsyncConnection:
        """Return a connection, to be released; a new one if ``is_fresh``. Raises ConnectionFailure, and RuntimeError if
        the pool is closed."""
        if self._free.locked():
            self._waiting += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await self._free.acquire()
            except TimeoutError as error:
                raise core.no_connection_failure(self._settings) from error
            finally:
                self._waiting -= 1
        else:
            await self._free.acquire()
        try:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open and not is_fresh:
                    return connection
                if connection.is_open:
                    connection.close()  # a new one replaces it
                    break
            return await self._connect(deadline)
        except BaseException:
            self._free.release()
            raise

    def release(self, connection: AsyncConnection) -> None:
        """Return a connection to the pool, or close it if it cannot be used again."""
        if connection.is_open and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        self._free.release()

    def close(self) -> None:
        """Close all connections. Waiting requests get RuntimeError."""
        self._is_closed = True
        for connection in [*self._standing]:
            connection.close()
        self._idle.clear()
        with contextlib.suppress(RuntimeError):  # its loop has ended, and the waiting tasks with it
            for _ in range(self._waiting):
                self._free.release()

    async def wait_closed(self) -> None:
        """Wait until the sockets are closed, which takes a turn or two of the loop."""
        for _ in range(_CLOSING_TURNS):
            if not self._standing:
                return
            await asyncio.sleep(0)

    async def _connect(self, deadline: float) -> AsyncConnection:
        loop, settings = self._loop, self._settings
        host, port, context = settings.address.host, settings.address.port, self._tls.context()
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + settings.connect_timeout)):
                make = partial(AsyncConnection, loop, settings, self._standing)
                name = host if context is not None else None
                _, connection = await loop.create_connection(make, host, port, ssl=context, server_hostname=name)
        except OSError as error:
            raise core.connecting_error(error, settings, is_late=loop.time() >= deadline) from error
        if self._is_closed:
            connection.close()
            raise RuntimeError(_CLOSED)
        return connection


def _answer(answer: asyncio.Future[Response], response: Response) -> None:
    if not answer.done():
        answer.set_result(response)


class _Waiter(NamedTuple):
    """A waiting caller."""

    key: str
    future: asyncio.Future[SharedAnswer]
    deadline: float
    context: contextvars.Context  # the caller's context; a batch runs in that of its first caller, and has its trace


class AsyncCombiner:
    """Combine lookups of concurrent coroutines into batches, in the running event loop.

    The first lookup starts a task, which runs at the end of this turn of the loop and requests all keys that wait by
    then. Lookups that come while a batch is under way wait for its end and share the next one; after PATIENCE_SECONDS
    the next batch starts beside it, up to MAX_FLIGHTS. A lookup with much more time left than the first one joins a
    later batch. A cancelled caller is left out, unnoticed by the others.
    """

    def __init__(
        self, ask_batch: Callable[[Sequence[str], float, float], Awaitable[SharedAnswer]], client_core: ClientCore
    ) -> None:
        """``ask_batch`` requests the keys of several callers until the last of their deadlines. Its last argument is
        the time by which the router should answer."""
        self._loop = asyncio.get_running_loop()
        self._ask_batch = ask_batch
        self._core = client_core
        self._timeout = client_core.settings.timeout
        self._queue: deque[_Waiter] = deque()
        self._characters = 0  # characters of the queued keys
        self._flights = 0
        self._scheduled: list[_Waiter] | None = None
        """The batch of a task that has not begun yet. Once it begins, it takes the waiting callers."""
        self._patience: asyncio.TimerHandle | None = None
        self._is_impatient = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def find(self, key: str, deadline: float) -> asyncio.Future[SharedAnswer]:
        """Return the answer to a batch with ``key``, from which the caller takes its part. Raises Unavailable."""
        queue = self._queue
        if queue:
            core.check_room(key, len(queue), self._characters)
        self._characters += len(key)
        future: asyncio.Future[SharedAnswer] = self._loop.create_future()
        queue.append(_Waiter(key, future, deadline, contextvars.copy_context()))
        if self._scheduled is None:
            self._schedule()
        return future

    async def close(self) -> None:
        """End all batches. Waiting callers get RuntimeError."""
        self._is_closed = True
        waiting = [*self._queue]
        self._queue.clear()  # otherwise the end of a batch would start another
        self._characters = 0
        self._stop_patience()
        _fail(waiting, RuntimeError(_CLOSED))
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self) -> None:
        """Start a batch for the waiting callers, if there are any and one may start now."""
        if not self._queue or self._scheduled is not None:
            return
        if self._flights == 0 or (self._is_impatient and self._flights < core.MAX_FLIGHTS):
            self._stop_patience()
            batch = self._scheduled = []
            self._flights += 1
            task = self._loop.create_task(self._lead(batch), context=self._queue[0].context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, batch))
        elif self._patience is None:
            self._patience = self._loop.call_later(core.PATIENCE_SECONDS, self._lose_patience)

    def _end(self, batch: list[_Waiter], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._scheduled is batch:  # the task was cancelled before its first step
            self._scheduled = None
            self._land()

    def _land(self) -> None:
        self._flights -= 1
        while self._queue and self._queue[0].future.done():
            self._characters -= len(self._queue.popleft().key)
        self._schedule()

    def _lose_patience(self) -> None:
        self._is_impatient = True
        self._schedule()

    def _stop_patience(self) -> None:
        self._is_impatient = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _lead(self, batch: list[_Waiter]) -> None:
        """Take the waiting callers into ``batch``, request their keys, and give each the answer."""
        self._scheduled = None
        batch += self._take_batch()
        self._schedule()
        if not batch:
            self._land()
            return
        timer = self._loop.call_at(batch[0].deadline, self._expire, batch)
        now, last = self._loop.time(), batch[-1].deadline
        answer_by = next((waiter.deadline for waiter in batch if waiter.deadline > now), last)
        try:
            answer = await self._ask_batch([waiter.key for waiter in batch], last, answer_by)
        except Exception as error:
            _fail(batch, error)
        except BaseException:
            _fail(batch, RuntimeError(_CLOSED if self._is_closed else "the task that asked was cancelled"))
            raise
        else:
            for waiter in batch:
                if not waiter.future.done():
                    waiter.future.set_result(answer)
        finally:
            timer.cancel()
            self._land()

    def _take_batch(self) -> list[_Waiter]:
        """Remove the next batch from the queue and return it."""
        batch: list[_Waiter] = []
        queue, now, most, characters = self._queue, self._loop.time(), self._core.max_keys, 0
        first: float | None = None
        while queue and len(batch) < most:
            key, future, deadline, _ = queue[0]
            size = len(key)
            if not future.done():
                characters += size
                if batch and characters > core.MAX_REQUEST_CHARACTERS:
                    break
                if deadline > now:  # else the caller is late: ``_expire`` ends its wait
                    first = deadline if first is None else first
                    if deadline > first and not core.may_leave_together(now, first, deadline):
                        break
                batch.append(queue[0])
            queue.popleft()
            self._characters -= size
        return batch

    def _expire(self, batch: list[_Waiter]) -> None:
        """End the wait of callers whose time is over; others of the batch keep waiting."""
        now = self._loop.time()
        for waiter in batch:
            if waiter.future.done():
                continue
            if waiter.deadline > now:
                self._loop.call_at(waiter.deadline, self._expire, batch)
                return
            waiter.future.set_exception(core.deadline_failure(self._timeout).to_error((waiter.key,)))


def _fail(batch: Sequence[_Waiter], error: Exception) -> None:
    for waiter in batch:
        if not waiter.future.done():
            waiter.future.set_exception(copy.copy(error))
