"""Proves that idle connections are alive: a server that stands still would be found out by a lookup that waits for it.

One timer a worker looks at a few connections each time, in turn. One of which nothing has come since the last look, and
of which nothing is asked, is sent a PING. A lookup costs nothing of this, and a connection in use none either: what is
in flight has its own watch (see ``stall_watch``).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

LOOK_SECONDS: Final = 3.0
"""Each connection is looked at so often. A PING and its answer cost a worker about 45 us, a shard server 55: of 96 idle
connections 0.15 % of a processor."""
SILENCE_SECONDS: Final = 2.0
"""A PING that was not answered for so long never will be: as long as a new connection may take to prove itself."""
_TICKS: Final = 8
"""Of the timer, in SILENCE_SECONDS. Ticks count, not the clock: while this process stood still nobody was silent."""
_MAX_LOOKS: Final = 100
"""At a tick: beyond 1,200 connections each is looked at less often."""


class Pingable(Protocol):
    """A connection."""

    @property
    def is_closed(self) -> bool:
        """It is looked at no more."""

    @property
    def is_awaited(self) -> bool:
        """Whether a PING is not answered yet."""

    def ping(self) -> bool:
        """Send a PING if nothing has come since the last call and nothing is asked of it; whether one was sent."""


class Heartbeat:
    """Calls ``on_silence`` of each watched connection, once, when a PING was not answered."""

    def __init__(self, look_seconds: float = LOOK_SECONDS, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.silence_seconds = silence_seconds
        self._tick_seconds = silence_seconds / _TICKS
        self._share = self._tick_seconds / look_seconds
        """Of the connections, to be looked at in a tick."""
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._watched: deque[tuple[Pingable, Callable[[], None]]] = deque()
        """The next one to be looked at first."""
        self._pinged: deque[tuple[int, Pingable, Callable[[], None]]] = deque()
        """With the tick at which the answer is overdue."""
        self._ticks = 0
        self._due = self._random.random()
        """Looks that are due: ticks bring fractions, and routers that start together do not look together."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: Pingable, on_silence: Callable[[], None]) -> None:
        """Look at ``connection`` from now on until it is closed."""
        self._watched.append((connection, on_silence))
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._tick_seconds * self._random.uniform(0.9, 1.1), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticks += 1
        self._end_silent()
        self._look()
        if self._watched or self._pinged:
            self._wait()

    def _end_silent(self) -> None:
        pinged = self._pinged
        while pinged and pinged[0][0] <= self._ticks:
            _, connection, on_silence = pinged.popleft()
            if connection.is_awaited and not connection.is_closed:
                on_silence()

    def _look(self) -> None:
        self._due = min(self._due + self._share * len(self._watched), _MAX_LOOKS, len(self._watched))
        while self._due >= 1:
            self._due -= 1
            connection, on_silence = self._watched.popleft()
            if connection.is_closed:
                continue
            self._watched.append((connection, on_silence))
            if connection.ping():
                self._pinged.append((self._ticks + _TICKS, connection, on_silence))
