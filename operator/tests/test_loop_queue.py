"""The work queue: no key twice at once, none forgotten, and those that fail wait longer each time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import cast

import pytest

from lookupdb_operator.loop.queue import (
    FIRST_DELAY,
    LONGEST_DELAY,
    SOONEST,
    LookDeferred,
    LookQueue,
    LookWorkers,
    RequeueRequested,
)


class ManualClock:
    """Time that passes on the test's command."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> ManualTimer:
        timer = ManualTimer(self._now + delay, callback)
        heapq.heappush(self._timers, (timer.when(), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            timer.fire()
        self._now = end

    @property
    def pending(self) -> list[float]:
        return sorted(when for when, _, timer in self._timers if timer.callback)


class ManualTimer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self._when = when
        self.callback: Callable[[], None] | None = callback

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        if self.callback:
            self.callback()
        self.callback = None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> LookQueue[str]:
    return LookQueue(clock=cast(asyncio.AbstractEventLoop, clock), chance=lambda: 0.0)


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_a_key_that_waits_is_not_added_again(queue: LookQueue[str]) -> None:
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert queue.depth == 2
    assert [await queue.take(), await queue.take()] == ["a", "b"]


async def test_a_key_added_while_it_is_looked_at_is_looked_at_again_afterwards(queue: LookQueue[str]) -> None:
    queue.add("a")
    key = await queue.take()
    queue.add("a")
    queue.add("a")
    assert queue.depth == 0, "nobody else may have it now"
    queue.done(key)
    assert queue.depth == 1


async def test_the_earliest_time_asked_for_holds(queue: LookQueue[str], clock: ManualClock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 5)
    assert clock.pending == [3]
    clock.advance(2.9)
    assert queue.depth == 0
    clock.advance(0.2)
    assert queue.depth == 1


async def test_a_key_added_now_needs_no_look_later(queue: LookQueue[str], clock: ManualClock) -> None:
    queue.add_after("a", 10)
    queue.add("a")
    assert clock.pending == []
    queue.add_after("b", 0)
    assert queue.depth == 2


async def test_failures_wait_longer_each_time_up_to_a_cap(queue: LookQueue[str]) -> None:
    delays = [queue.retry("a") for _ in range(40)]
    assert delays[:4] == [FIRST_DELAY, 1.0, 2.0, 4.0]
    assert delays[-1] == LONGEST_DELAY
    assert queue.retry("b") == FIRST_DELAY, "each key has its own"
    queue.succeeded("a")
    assert queue.retry("a") == FIRST_DELAY


async def test_delays_are_spread(clock: ManualClock) -> None:
    spread: LookQueue[str] = LookQueue(clock=cast(asyncio.AbstractEventLoop, clock), chance=lambda: 1.0)
    assert spread.retry("a") == FIRST_DELAY / 2


async def test_no_two_workers_look_at_one_key(queue: LookQueue[str]) -> None:
    running: set[str] = set()
    looks: list[str] = []

    async def look(key: str) -> None:
        assert key not in running
        running.add(key)
        looks.append(key)
        if len(looks) < 60:
            queue.add(key)
        await asyncio.sleep(0)
        running.discard(key)

    workers = LookWorkers(queue, look, 4)
    workers.start()
    for key in "abc":
        queue.add(key)
    await settle(1000)
    assert len(looks) >= 60
    assert not running
    assert workers.alive
    await workers.stop()
    assert not workers.alive
    assert set(looks) == set("abc")


async def test_a_look_that_fails_is_repeated_and_the_worker_lives_on(
    queue: LookQueue[str], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Exception | None] = [ValueError("no"), RequeueRequested("conflict"), None]
    looks: list[str] = []

    async def look(key: str) -> float | None:
        looks.append(key)
        if outcome := outcomes.pop(0):
            raise outcome
        return 60

    workers = LookWorkers(queue, look, 1)
    workers.start()
    queue.add("a")
    await settle()
    assert len(looks) == 1
    assert "a: a bug; retrying in 0.5 s" in caplog.text
    assert "ValueError: no" in caplog.text
    clock.advance(FIRST_DELAY)
    await settle()
    assert len(looks) == 2
    clock.advance(2 * FIRST_DELAY)
    await settle()
    assert len(looks) == 3
    assert len(clock.pending) == 1, "the look after the one that succeeded"
    assert queue.retry("a") == FIRST_DELAY, "success forgets the failures"
    await workers.stop()
    assert clock.pending == []


async def test_looks_that_would_be_repeated_at_once_leave_time_for_all_else(
    queue: LookQueue[str], clock: ManualClock
) -> None:
    looks: list[str] = []

    async def look(key: str) -> float | None:
        looks.append(key)
        return 0

    workers = LookWorkers(queue, look, 1)
    workers.start()
    queue.add("a")
    await settle()
    assert looks == ["a"]
    assert clock.pending == [SOONEST]
    clock.advance(SOONEST)
    await settle()
    assert looks == ["a", "a"]
    await workers.stop()


async def test_looks_that_wait_for_nothing_let_the_rest_of_the_program_on(queue: LookQueue[str]) -> None:
    async def look(key: str) -> float | None:
        queue.add(key)  # as an event of each of its writes would
        return None

    workers = LookWorkers(queue, look, 1)
    workers.start()
    queue.add("a")
    await settle()  # it comes to an end
    await workers.stop()


async def test_a_look_may_ask_to_be_repeated_later_than_its_backoff(queue: LookQueue[str], clock: ManualClock) -> None:
    """The API server names the time of the next attempt."""

    async def look(key: str) -> None:
        raise RequeueRequested("unreachable", at_least=30)

    workers = LookWorkers(queue, look, 1)
    workers.start()
    queue.add("a")
    await settle()
    assert clock.pending == [30]
    await workers.stop()


async def test_a_look_may_ask_to_be_repeated_sooner_than_its_backoff(queue: LookQueue[str], clock: ManualClock) -> None:
    async def look(key: str) -> None:
        raise RequeueRequested("refused", at_most=30)

    workers = LookWorkers(queue, look, 1)
    workers.start()
    for _ in range(20):
        queue.retry("a")
    queue.add("a")
    await settle()
    assert clock.pending == [30]
    await workers.stop()


async def test_a_look_that_never_ends_is_noticed_but_not_what_waits_while_looks_end(
    queue: LookQueue[str], clock: ManualClock
) -> None:
    assert queue.longest_look == 0
    queue.add("a")
    assert await queue.take() == "a"
    clock.advance(7)
    queue.add("b")
    clock.advance(3)
    assert queue.longest_look == 10
    queue.done("a")
    assert queue.longest_look == 0, "b waits for a worker, of whom one is free"
    queue.done(await queue.take())
    assert queue.longest_look == 0


async def test_a_worker_that_died_is_noticed(queue: LookQueue[str]) -> None:
    async def look(key: str) -> None:
        raise asyncio.CancelledError

    workers = LookWorkers(queue, look, 2)
    workers.start()
    assert workers.alive
    queue.add("a")
    await settle()
    assert not workers.alive
    await workers.stop()


async def test_a_look_that_is_deferred_ends_no_backoff() -> None:
    """A write is refused, and each look at it has to wait for the routers' answers."""
    queue: LookQueue[str] = LookQueue(chance=lambda: 0.0)
    outcomes = iter((RequeueRequested("no"), LookDeferred("routers are asked"), RequeueRequested("no")))

    async def look(key: str) -> float | None:
        raise next(outcomes)

    workers = LookWorkers(queue, look, 1)
    for _ in range(3):
        await workers._try("a")
    assert queue.retry("a") == 4 * FIRST_DELAY
    queue.close()
