"""When a lookup gets its second try, and when it is given up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.waiting import soon

from lookupdb.router.counters import INDEX, NAMES
from lookupdb.router.lookups import Deadlines, PendingLookup, Problem, RequestDeadlines
from lookupdb.router.server_connection import ServerAddress


class Lookup(PendingLookup):
    """Records when it was retried and when it was given up. It serves as its own replicas."""

    number = 3
    key_count = 2

    def __init__(self) -> None:
        super().__init__(self, asyncio.get_running_loop().time())  # type: ignore[arg-type]
        self.tried_after: list[tuple[float, bool]] = []
        self.problem: Problem | None = None
        self.given_up_after = 0.0

    @property
    def age(self) -> float:
        # Rounded: the time at which a try is due is a sum of floats, and so may be 1e-12 s early.
        return round(asyncio.get_running_loop().time() - self.started_at, 6)

    def explain_absence(self) -> str:
        return "10.0.0.7:6379: connection refused"

    def try_another(self, lookup: Lookup, *, is_hedge: bool) -> None:
        assert lookup is self
        self.tried_after.append((self.age, is_hedge))

    def give_up(self, problem: Problem) -> None:
        self.is_done = True
        self.problem, self.given_up_after = problem, self.age


@pytest.fixture
def counters() -> memoryview:
    return memoryview(bytearray(8 * len(NAMES))).cast("Q")


async def test_after_half_of_the_deadline_the_first_try_counts_as_timed_out(counters: memoryview) -> None:
    lookup = Lookup()
    Deadlines(2, 0, counters).add(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    [(after, is_hedge)] = lookup.tried_after
    assert 1 <= after < lookup.given_up_after
    assert not is_hedge


async def test_with_a_hedge_delay_the_second_try_comes_then(counters: memoryview) -> None:
    lookup = Lookup()
    Deadlines(10, 0.05, counters).add(lookup)
    await soon(lambda: lookup.tried_after, "it is tried again")
    [(after, is_hedge)] = lookup.tried_after
    assert after >= 0.05
    assert is_hedge


async def test_at_the_deadline_it_is_given_up_with_a_reason(counters: memoryview) -> None:
    lookup = Lookup()
    Deadlines(0.1, 0, counters).add(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    assert lookup.given_up_after >= 0.1
    assert lookup.problem
    assert (lookup.problem.reason, lookup.problem.shard) == ("Deadline", 3)
    assert counters[INDEX["deadlines"]] == 2


async def test_at_the_deadline_there_is_no_second_try_either(counters: memoryview) -> None:
    lookup = Lookup()
    Deadlines(0.1, 0, counters).add(lookup)
    time.sleep(0.15)  # noqa: ASYNC251 - what is due at half of the deadline is seen behind it, as always of 1 ms
    await soon(lambda: lookup.is_done, "it is given up")
    assert not lookup.tried_after, "its server would be asked for nobody"


class Target:
    """An endpoint that answered for the last time at ``answered_at``."""

    address = ServerAddress("10.0.0.7", 6379)

    def __init__(self, answered_at: float, *, is_silent: bool = False) -> None:
        self.answered_at = answered_at
        self.is_silent = is_silent


SILENT, SLOW = -1.0, 0.0
"""When the endpoint has answered others, in seconds after the lookup."""


@pytest.mark.parametrize(
    ("answered", "open_tries", "is_retried", "detail"),
    [
        (None, 0, False, "no server came back within 0.05 s; not reachable now: 10.0.0.7:6379: connection refused"),
        (SILENT, 1, False, "no answer from 10.0.0.7:6379 for 0.05 s, to this lookup or another"),
        (SLOW, 1, False, "no answer from 10.0.0.7:6379 within 0.05 s; it has answered others since"),
        (SLOW, 2, True, "no answer from 10.0.0.7:6379 within 0.05 s; it has answered others since; a second try had"),
        (
            SILENT,
            0,
            True,
            "no answer from 10.0.0.7:6379 for 0.05 s, to this lookup or another; not reachable now: 10.0.0.7:6379:",
        ),
    ],
)
async def test_the_reason_tells_a_silent_server_from_a_slow_one_and_from_none(
    counters: memoryview, answered: float | None, open_tries: int, is_retried: bool, detail: str
) -> None:
    lookup = Lookup()
    lookup.open_tries, lookup.is_retried = open_tries, is_retried
    if answered is not None:
        lookup.first_target = Target(lookup.started_at + answered)  # type: ignore[assignment]
    Deadlines(0.05, 0, counters).add(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    assert lookup.problem
    assert lookup.problem.detail.startswith(f"shard 3: {detail}")


@pytest.mark.parametrize(
    ("silent", "open_tries", "is_of_client"),
    [
        pytest.param((), 0, False, id="no server"),
        pytest.param((False,), 1, True, id="one that answers others"),
        pytest.param((True,), 1, False, id="one that answers nobody"),
        pytest.param((False,), 0, False, id="one that has failed, and none since"),
        pytest.param((True, False), 2, True, id="one that answers nobody, and one that answers others"),
        pytest.param((False, True), 2, True, id="the other way round"),
        pytest.param((True, True), 2, False, id="two that answer nobody"),
        pytest.param((True, False), 1, True, id="one that answers others, the first has failed"),
        pytest.param((False, True), 1, False, id="one that answers nobody, the first has failed"),
    ],
)
async def test_who_waits_for_less_is_to_blame_if_a_server_that_has_the_lookup_answers(
    counters: memoryview, silent: tuple[bool, ...], open_tries: int, is_of_client: bool
) -> None:
    lookup: Any = Lookup()
    lookup.open_tries, lookup.is_retried = open_tries, len(silent) > 1
    targets = [Target(lookup.started_at, is_silent=is_silent) for is_silent in silent]
    lookup.first_target, lookup.second_target = (*targets, None, None)[:2]
    RequestDeadlines(60_000, 0, counters).choose_watch(50)(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    assert lookup.problem.is_of_client is is_of_client


async def test_one_that_is_done_is_left_alone_and_then_nothing_runs(counters: memoryview) -> None:
    deadlines, lookup = Deadlines(0.1, 0, counters), Lookup()
    deadlines.add(lookup)
    lookup.is_done = True
    await soon(lambda: deadlines._timer is None, "the sweep ends")
    assert (lookup.tried_after, lookup.problem) == ([], None)
    later = Lookup()
    deadlines.add(later)
    await soon(lambda: later.is_done, "it begins again")


async def test_those_that_are_done_do_not_pile_up_behind_one_that_is_not(counters: memoryview) -> None:
    deadlines: Any = Deadlines(600, 0, counters)
    deadlines.add(Lookup())
    for _ in range(20_000):
        lookup = Lookup()
        deadlines.add(lookup)
        lookup.is_done = True
    await soon(lambda: len(deadlines._retry_queue) == 1, "they are forgotten")


async def test_nor_do_those_that_had_a_second_try(counters: memoryview) -> None:
    deadlines: Any = Deadlines(600, 0.01, counters)
    first, second = ([Lookup() for _ in range(4000)] for _ in range(2))
    for lookup in first:
        deadlines.add(lookup)
    await soon(lambda: first[-1].tried_after, "the first have had their second try")
    for lookup in first[1:]:
        lookup.is_done = True
    for lookup in second:
        deadlines.add(lookup)
    await soon(lambda: second[-1].tried_after and len(deadlines._deadline_queue) == 4001, "the first are forgotten")


async def test_what_is_raised_about_one_lookup_costs_no_other_its_end(counters: memoryview) -> None:
    class Faulty(Lookup):
        def give_up(self, problem: Problem) -> None:
            super().give_up(problem)
            raise MemoryError

    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    deadlines, lookup = Deadlines(0.1, 0, counters), Lookup()
    deadlines.add(Faulty())
    deadlines.add(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    assert isinstance(said[0]["exception"], MemoryError)
    later = Lookup()
    deadlines.add(later)
    await soon(lambda: later.is_done, "so is one that comes later")


async def test_shorter_deadlines_are_few_and_none_is_late(counters: memoryview) -> None:
    deadlines = RequestDeadlines(60_000, 0, counters)
    for milliseconds in range(1, 60_000, 7):
        deadlines.choose_watch(milliseconds)
    assert len(deadlines._shorter) <= 112
    assert all(
        milliseconds * 7 // 8 <= rounded <= milliseconds
        for milliseconds in range(1, 60_000, 7)
        for rounded in [max(short for short in deadlines._shorter if short <= milliseconds)]
    )
    assert deadlines.choose_watch(60_000) == deadlines.choose_watch(600_000) == deadlines.own.add
    lookup = Lookup()
    deadlines.choose_watch(100)(lookup)
    await soon(lambda: lookup.is_done, "it is given up")
    assert lookup.given_up_after >= 0.096
    assert lookup.tried_after
