"""The work queue: keys that wait for a look, each at most once, each looked at by one worker at a time.

Pure asyncio and data; what a look is, it does not know. A key that is added while it is looked at is looked at again.
A key whose look fails waits longer each time, until a look succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_DELAY: Final = 0.5
"""Seconds before the second try: an API server that hiccups is back by then, an informer has caught up."""
LONGEST_DELAY: Final = 300.0
"""As long as a resync: no key is left alone for longer."""
SOONEST: Final = 0.5
"""Seconds before a look that a look asks for, at least: whatever it decides, nothing else waits for it to end."""
JITTER: Final = 0.2
"""Each delay is longer by up to this part of it, so that what failed together is not tried together."""


class Timer(Protocol):
    """What ``Clock.call_later`` returns."""

    def cancel(self) -> None:
        """It does not fire."""

    def when(self) -> float:
        """By the clock, when it fires."""


class Clock(Protocol):
    """What an event loop offers and a test fakes."""

    def time(self) -> float:
        """Seconds; only differences mean something."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call ``callback`` once, ``delay`` seconds from now."""


class RequeueRequested(Exception):
    """Raised by a look that must be repeated for a reason that it has logged already: after the key's backoff, or in
    ``at_most`` seconds when that is sooner, and not in less than ``at_least``."""

    def __init__(self, why: str, at_most: float | None = None, at_least: float = 0.0) -> None:
        super().__init__(why)
        self.at_most = at_most
        self.at_least = at_least


class LookDeferred(Exception):
    """Raised by a look that comes again by itself when what it needs is there: neither a success nor a failure."""


class LookQueue(Generic[K]):
    """Keys that wait for a look, now or later. Must be used from one event loop."""

    def __init__(
        self, *, clock: Clock | None = None, chance: Callable[[], float] = random.random, longest: float = LONGEST_DELAY
    ) -> None:
        self._clock: Clock = clock or _LoopClock()
        self._chance = chance
        self._longest = longest
        self._waiting: deque[K] = deque()
        self._known: set[K] = set()
        """Waiting, or to wait once they are not looked at any more."""
        self._running: dict[K, float] = {}
        """Being looked at, since when."""
        self._timers: dict[K, Timer] = {}
        self._failures: dict[K, int] = {}
        self._arrived = asyncio.Event()

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return len(self._waiting)

    @property
    def longest_look(self) -> float:
        """Seconds for which some key has been looked at; 0 when none is. While looks end, keys that wait get on."""
        now = self._clock.time()
        return now - min(self._running.values(), default=now)

    def add(self, key: K) -> None:
        """Look at ``key`` as soon as a worker is free. A look that was planned for later is not needed any more."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._known:
            return
        self._known.add(key)
        if key not in self._running:
            self._waiting.append(key)
            self._arrived.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Look at ``key`` in ``seconds`` at the latest; the earliest time asked for holds."""
        if seconds <= 0:
            return self.add(key)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= self._clock.time() + seconds:
                return None
            timer.cancel()
        self._timers[key] = self._clock.call_later(seconds, lambda: self.add(key))
        return None

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Look at ``key`` again after its backoff, which doubles with each call, and not in less than ``at_least``.
        Returns the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(FIRST_DELAY * 2.0 ** min(failures, 30) * (1 + JITTER * self._chance()), self._longest)
        delay = max(delay, at_least)
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """The next failure of ``key`` is its first again."""
        self._failures.pop(key, None)

    async def take(self) -> K:
        """The next key, which is then this worker's until ``done``."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key = self._waiting.popleft()
        self._known.discard(key)
        self._running[key] = self._clock.time()
        return key

    def done(self, key: K) -> None:
        """``key`` may be looked at again."""
        self._running.pop(key, None)
        if key in self._known:
            self._waiting.append(key)
            self._arrived.set()

    def close(self) -> None:
        """Forget what was planned for later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


Look = Callable[[K], Awaitable[float | None]]
"""Looks at a key; the seconds until the next look, or None. Raises when it must be tried again."""


class LookWorkers(Generic[K]):
    """Tasks that take keys from a queue and look at them."""

    def __init__(self, queue: LookQueue[K], look: Look[K], count: int) -> None:
        self._queue = queue
        self._look = look
        self._count = count
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def alive(self) -> bool:
        """Whether all of them are at work."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._work(), name=f"worker {index}") for index in range(self._count)]

    async def stop(self) -> None:
        """End at once: a look that is cut off is taken up from what the cluster then holds."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._queue.close()

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._try(key)
            finally:
                self._queue.done(key)
            await asyncio.sleep(0)  # a look that waits for nothing would let nothing else of the program on

    async def _try(self, key: K) -> None:
        try:
            seconds = await self._look(key)
        except LookDeferred as why:
            log.debug("%s: %s", key, why)
        except RequeueRequested as why:
            delay = self._queue.retry(key, why.at_least)
            if why.at_most is not None:
                self._queue.add_after(key, why.at_most)
            log.debug("%s: %s; again in %.1f s", key, why, delay)
        except Exception:  # whatever it is, the key is not forgotten, and the worker lives on
            log.exception("%s: a defect; again in %.1f s", key, self._queue.retry(key))
        else:
            self._queue.succeeded(key)
            if seconds is not None:
                self._queue.add_after(key, max(seconds, SOONEST))


class _LoopClock:
    """The running event loop, found when it is needed."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
