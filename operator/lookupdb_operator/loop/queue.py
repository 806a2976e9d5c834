"""The work queue: keys that wait for a reconcile pass, each queued once and processed by one worker at a time.

It does not know what a pass does. A key added during its own pass is processed again. A key whose pass fails is
retried with a backoff that grows until a pass succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from lookupdb.backoff import Backoff

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_DELAY: Final = 0.5
"""Seconds before the first retry: enough for a short API server outage, or for an informer to catch up."""
LONGEST_DELAY: Final = 300.0
"""No longer than a resync."""
SOONEST: Final = 0.5
"""Minimum seconds before a pass that the previous pass requests, so that a busy key cannot starve others."""


class RequeueRequested(Exception):
    """Raised by a pass that must be repeated and has logged why. The next pass comes after the key's backoff, but
    within ``at_most`` seconds and not before ``at_least``."""

    def __init__(self, why: str, at_most: float | None = None, at_least: float = 0.0) -> None:
        super().__init__(why)
        self.at_most = at_most
        self.at_least = at_least


class LookDeferred(Exception):
    """Raised by a pass that waits for something that requeues the key: neither a success nor a failure."""


class LookQueue(Generic[K]):
    """Keys that wait for a reconcile pass, now or later. Use it from one event loop only."""

    def __init__(
        self,
        *,
        clock: asyncio.AbstractEventLoop | None = None,
        chance: Callable[[], float] = random.random,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``on_wait`` gets the seconds that each key has waited for a worker."""
        self._on_wait = on_wait
        self._clock = clock or asyncio.get_running_loop()
        self._chance = chance
        self._waiting: deque[tuple[K, float]] = deque()
        """Keys, and since when they wait."""
        self._known: set[K] = set()
        """Waiting, or to be queued after the current pass."""
        self._running: dict[K, float] = {}
        """Keys being processed → since when."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._arrived = asyncio.Event()

    @property
    def depth(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._waiting)

    @property
    def longest_look(self) -> float:
        """Return the age of the longest running pass in seconds; 0 if none runs."""
        now = self._clock.time()
        return now - min(self._running.values(), default=now)

    def add(self, key: K) -> None:
        """Process ``key`` as soon as a worker is free; a later pass that was planned is cancelled."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._known:
            return
        self._known.add(key)
        if key not in self._running:
            self._append(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Process ``key`` within ``seconds``; the earliest request wins."""
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
        """Process ``key`` again after its backoff, which doubles with each call, but not within ``at_least`` seconds.
        Return the delay in seconds."""
        backoff = self._backoffs.setdefault(key, Backoff(FIRST_DELAY, LONGEST_DELAY, self._chance))
        delay = max(backoff.fail(), at_least)
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """Reset the backoff of ``key``."""
        self._backoffs.pop(key, None)

    async def take(self) -> K:
        """Return the next key; it belongs to the caller until ``done``."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key, since = self._waiting.popleft()
        self._known.discard(key)
        self._running[key] = now = self._clock.time()
        self._on_wait(now - since)
        return key

    def done(self, key: K) -> None:
        """End the pass of ``key``, which may be processed again."""
        self._running.pop(key, None)
        if key in self._known:
            self._append(key)

    def _append(self, key: K) -> None:
        self._waiting.append((key, self._clock.time()))
        self._arrived.set()

    def close(self) -> None:
        """Cancel what was planned for later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


Look = Callable[[K], Awaitable[float | None]]
"""Processes a key and returns the seconds until its next pass, or None. Raises when it must be retried."""


class LookWorkers(Generic[K]):
    """Tasks that take keys from a queue and process them."""

    def __init__(self, queue: LookQueue[K], look: Look[K], count: int) -> None:
        self._queue = queue
        self._look = look
        self._count = count
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def alive(self) -> bool:
        """Return whether all workers are running."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [asyncio.create_task(self._work(), name=f"worker {index}") for index in range(self._count)]

    async def stop(self) -> None:
        """Stop at once. The next pass continues from what the cluster then holds."""
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
            await asyncio.sleep(0)  # a pass that awaits nothing would block the event loop

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
        except Exception:  # keep the key and the worker, whatever failed
            log.exception("%s: a bug; retrying in %.1f s", key, self._queue.retry(key))
        else:
            self._queue.succeeded(key)
            if seconds is not None:
                self._queue.add_after(key, max(seconds, SOONEST))
