"""The open loop of one process: requests leave when their time has come, however slowly others are answered.

A request whose time has come takes an idle connection, or a new one while fewer than ``max_in_flight`` are open. Else
it waits for one, and its latency goes on counting from the intended time. One that could not be sent within half of the
timeout is counted as such, and never dropped: sent later, it would hardly be answered in time, and would take the
connection from one that could be.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from lookupdb.load.answers import AnswerVerdict, judge_batch, judge_single
from lookupdb.load.connection import LoadConnection
from lookupdb.load.key_choice import KeyChooser
from lookupdb.load.requests import make_requests, seeded
from lookupdb.load.schedule import intended_times
from lookupdb.load.sender_plan import SenderPlan
from lookupdb.load.tally import Tally
from lookupdb.load.timer import ClockTimer

QUANTUM_SECONDS: Final = 0.0001
"""Between two wakes: what is due in between leaves together."""
SWEEP_SECONDS: Final = 0.05
"""Between two looks for requests whose time is up."""
_FIRST_CONNECTIONS: Final = 16
"""That are opened before the first request; more when they are needed."""
_MAX_BACKLOG: Final = 1_000_000
"""Requests that wait for a connection. More count as not sent at once."""
_SENDABLE_SHARE: Final = 0.5
"""Of the timeout, for which a request may wait for a connection."""
_MAX_KEPT_BYTES: Final = 256 << 20
"""Of answers that have not come whole, on all connections."""
_MICROSECONDS: Final = 1e6


class Sender:
    """Sends what one SenderPlan says, from ``start`` by time.monotonic()."""

    def __init__(self, plan: SenderPlan, context: ssl.SSLContext | None) -> None:
        load = plan.load
        chooser = KeyChooser(len(plan.keys), load.distribution, load.hit_ratio, seeded("keys", load.seed, plan.process))
        self._plan, self._context = plan, context
        self._make = make_requests(plan.target, plan.keys, chooser, load.batch, partial=load.partial).make
        self._times: Iterator[float] = intended_times(
            load.profile, load.arrivals, load.seed, plan.process, load.processes
        )
        self._is_single = load.batch == 1
        self._timeout = load.timeout
        self.tally = Tally()
        self._start = self._measured = 0.0
        self._due = 0.0
        self._idle: deque[LoadConnection] = deque()
        self._all: dict[LoadConnection, None] = {}
        self._backlog: deque[float] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._kept_bytes = 0
        self._is_over = False
        """No further request becomes due."""
        self._ended = asyncio.Event()

    async def open_first(self) -> None:
        """Open some connections, so that the first requests need not wait for them. What fails, fails again."""
        for _ in range(min(_FIRST_CONNECTIONS, self._plan.max_in_flight)):
            self._open()
        if self._opening:
            await asyncio.wait(self._opening)

    async def run(self, start: float) -> None:
        """Send all, and return when each request has come to its end."""
        loop = asyncio.get_running_loop()
        self._start, self._measured = start, start + self._plan.load.warmup
        self._timer = ClockTimer(loop, self._send_due)
        sweeper = asyncio.ensure_future(self._sweep())
        try:
            self._advance()
            await self._ended.wait()
        finally:
            self._timer.close()
            sweeper.cancel()
            for task in self._opening:
                task.cancel()
            for connection in list(self._all):
                connection.abort("")

    def stop(self, patience: float) -> None:
        """Send nothing any more; what is in flight has so many more seconds."""
        if not self._is_over:
            self._end_schedule()
        self._timeout = min(self._timeout, patience)
        for intended in self._backlog:
            self._give_up(intended, time.monotonic())
        self._backlog.clear()
        self._check_end()

    def _send_due(self) -> None:
        now = time.monotonic()
        while not self._is_over and self._due <= now:
            self._dispatch(self._due, now)
            self._advance(is_first=False)
        if not self._is_over:
            self._timer.set(max(self._due, now + QUANTUM_SECONDS))

    def _advance(self, *, is_first: bool = True) -> None:
        instant = next(self._times, None)
        if instant is None:
            self._end_schedule()
            self._check_end()
            return
        self._due = self._start + instant
        if is_first:
            self._timer.set(self._due)

    def _end_schedule(self) -> None:
        self._is_over = True

    def _dispatch(self, intended: float, now: float) -> None:
        if intended >= self._measured:
            self.tally.scheduled += 1
            self.tally.lags.append(int((now - intended) * _MICROSECONDS))
        idle = self._idle
        while idle:
            connection = idle.popleft()
            if connection.is_open:
                self._send(connection, intended)
                return
        if len(self._all) + len(self._opening) < self._plan.max_in_flight:
            self._open()
        elif intended >= self._measured:
            self.tally.held_back += 1
        if len(self._backlog) < _MAX_BACKLOG:
            self._backlog.append(intended)
        else:
            self._count_wait(intended, self._timeout, "unsent")

    def _send(self, connection: LoadConnection, intended: float) -> None:
        request, connection.keys = self._make()
        connection.intended = intended
        connection.send(request)

    def _open(self) -> None:
        task = asyncio.ensure_future(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        connection = await self._try_to_connect()
        self._opening.discard(asyncio.current_task())
        if connection is not None:
            self._all[connection] = None
            self._use(connection)
        else:
            self._open_for_backlog()
            self._check_end()

    async def _try_to_connect(self) -> LoadConnection | None:
        """None if it fails; then the request that has waited longest fails by it."""
        target = self._plan.target
        name = target.host if self._context else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await loop.create_connection(
                    lambda: LoadConnection(self), target.host, target.port, ssl=self._context, server_hostname=name
                )
        except (OSError, TimeoutError) as error:
            if self._backlog:
                self._count_failure(self._backlog.popleft(), "broken", _name_connect_error(error))
            return None
        return connection

    def _open_for_backlog(self) -> None:
        """Open as many connections as wait for one, some at a time."""
        room = self._plan.max_in_flight - len(self._all) - len(self._opening)
        for _ in range(min(room, len(self._backlog) - len(self._opening), _FIRST_CONNECTIONS)):
            self._open()

    def _use(self, connection: LoadConnection) -> None:
        """Send what has waited longest, or keep ``connection`` for what becomes due."""
        if not connection.is_open:
            self._open_for_backlog()
        elif self._backlog:
            self._send(connection, self._backlog.popleft())
        else:
            self._idle.append(connection)

    # What a connection tells.

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes of answers can be kept."""
        if self._kept_bytes + size > _MAX_KEPT_BYTES:
            return False
        self._kept_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """So many bytes are kept no longer."""
        self._kept_bytes -= size

    def take_answer(self, connection: LoadConnection, status: int, generation: bytes, body: bytes) -> None:
        """Count an answer."""
        now, intended = time.monotonic(), connection.intended
        if intended >= self._measured:
            verdict = (
                judge_single(status, generation, body)
                if self._is_single
                else judge_batch(status, generation, body, connection.keys)
            )
            self._count(verdict, generation, int((now - intended) * _MICROSECONDS), now)
        self._use(connection)
        if self._is_over:
            self._check_end()

    def _count(self, verdict: AnswerVerdict, generation: bytes, microseconds: int, now: float) -> None:
        tally = self.tally
        tally.found += verdict.found
        tally.missing += verdict.missing
        tally.unavailable_keys += verdict.unavailable
        if verdict.kind == "answered":
            tally.answered += 1
            tally.latencies.append(microseconds)
        else:
            tally.count_failure(verdict.kind, verdict.label)
            tally.failure_latencies.append(microseconds)
        if generation and verdict.kind in ("answered", "unavailable"):
            tally.count_generation(generation.decode("latin-1")[:100], now - self._measured)
            if b"," in generation:
                tally.mixed += 1

    def lose(self, connection: LoadConnection, label: str) -> None:
        """Count the request that ``connection`` had."""
        self._all.pop(connection, None)
        if connection.is_busy:
            connection.is_busy = False
            self._count_failure(connection.intended, "broken", label)
        self._open_for_backlog()
        if self._is_over:
            self._check_end()

    # What time tells.

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            bound = now - self._timeout
            while self._backlog and self._backlog[0] <= now - self._timeout * _SENDABLE_SHARE:
                self._count_wait(self._backlog.popleft(), self._timeout, "unsent")
            for connection in list(self._all):
                if connection.is_busy and connection.intended <= bound:
                    connection.is_busy = False
                    self._count_wait(connection.intended, now - connection.intended, "timeouts")
                    connection.abort("timeout")
            if self._is_over:
                self._check_end()

    def _give_up(self, intended: float, now: float) -> None:
        self._count_wait(intended, now - intended, "unsent")

    def _count_wait(self, intended: float, seconds: float, kind: str) -> None:
        """Count a request that was, or would have been, waited for in vain for so many ``seconds``."""
        if intended >= self._measured:
            setattr(self.tally, kind, getattr(self.tally, kind) + 1)
            self.tally.latencies.append(int(seconds * _MICROSECONDS))

    def _count_failure(self, intended: float, kind: str, label: str) -> None:
        if intended >= self._measured:
            self.tally.count_failure(kind, label)  # type: ignore[arg-type]
            self.tally.failure_latencies.append(int((time.monotonic() - intended) * _MICROSECONDS))

    def _check_end(self) -> None:
        if self._is_over and not self._backlog and not any(connection.is_busy for connection in self._all):
            self._ended.set()


def _name_connect_error(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "not connected in time"
        case ConnectionRefusedError():
            return "refused"
        case ssl.SSLError():
            return "no TLS"
        case ConnectionError():
            return "reset"
    return "not connected"
