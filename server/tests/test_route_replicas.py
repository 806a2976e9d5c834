"""Which replica is asked, and what happens when it fails: alone, with endpoints that only record what they get."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable

import pytest

from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import INDEX, NAMES
from lookupdb.router.lane import EndpointSettings
from lookupdb.router.link import LinkSettings
from lookupdb.router.lookups import PendingLookup, Problem, ServedGeneration
from lookupdb.router.replicas import ShardReplicas
from lookupdb.router.server_connection import ServerAddress

LOST = Problem("Unreachable", "lost")


class Endpoint:
    """Takes lookups while it has room."""

    def __init__(self, host: str = "10.0.0.1", *, is_ready: bool = True) -> None:
        self.address = ServerAddress(host, 7000)
        self.link = self
        self.is_ready = is_ready
        self.last_failure = None if is_ready else "no route to host"
        self.observers: list[Callable[[], None]] = []
        self.outstanding = 0
        self.answered_at = float("-inf")
        self.is_silent = False
        self.broken_at = float("-inf")
        self.was_ready = is_ready
        self.slice_keys = 64
        self.room = 1 << 30
        self.lookups: list[PendingLookup] = []

    def submit(self, lookup: PendingLookup) -> bool:
        if len(self.lookups) >= self.room:
            return False
        self.lookups.append(lookup)
        lookup.open_tries += 1
        return True

    def enter(self, is_ready: bool, broken_at: float = float("-inf")) -> None:
        self.is_ready, self.broken_at = is_ready, broken_at
        self.last_failure = None if is_ready else "connection lost"
        for observer in self.observers:
            observer()


class Lookup(PendingLookup):
    key_count = 1

    def __init__(self, replicas: ShardReplicas) -> None:
        super().__init__(replicas, asyncio.get_running_loop().time())
        self.problem: Problem | None = None

    def give_up(self, problem: Problem) -> None:
        self.is_done = True
        self.problem = problem


GENERATION = ServedGeneration(("g1",), "raw", str.encode, ())


def replicas_of(*endpoints: Endpoint, deadline: float = 10, max_queued_keys: int = 100) -> ShardReplicas:
    counters = memoryview(bytearray(8 * len(NAMES))).cast("Q")
    link = LinkSettings(counters, random.Random(1), RouterBudget(1 << 20))
    return ShardReplicas(0, GENERATION, endpoints, EndpointSettings(deadline, max_queued_keys, link))  # type: ignore[arg-type]


def submitted(replicas: ShardReplicas) -> Lookup:
    lookup = Lookup(replicas)
    replicas.submit(lookup)
    return lookup


def now() -> float:
    return asyncio.get_running_loop().time()


class TestFirstTry:
    async def test_the_less_busy_of_two_is_asked(self) -> None:
        busy, idle = Endpoint(), Endpoint()
        busy.outstanding = 5
        replicas = replicas_of(busy, idle)
        for _ in range(20):
            submitted(replicas)
        assert (len(busy.lookups), len(idle.lookups)) == (0, 20)

    async def test_one_that_is_not_ready_is_not(self) -> None:
        broken, ready = Endpoint(is_ready=False), Endpoint()
        lookup = submitted(replicas_of(broken, ready))
        assert (lookup.first_target, broken.lookups) == (ready, [])

    async def test_one_whose_queue_is_full_gives_way_to_the_least_busy(self) -> None:
        full, also_full, other = Endpoint(), Endpoint(), Endpoint()
        full.room = also_full.room = 0
        full.outstanding = also_full.outstanding = 5
        replicas = replicas_of(full, also_full, other)
        assert all(submitted(replicas).first_target is other for _ in range(20))

    async def test_if_all_are_full_the_lookup_is_given_up_at_once(self) -> None:
        full = Endpoint()
        full.room = 0
        replicas = replicas_of(full)
        lookup = submitted(replicas)
        assert lookup.problem == Problem(
            "QueueFull", "shard 0: 10.0.0.1:7000: the queue is full (100 keys); retry later", 0
        )
        assert replicas.counters[INDEX["queue_full"]] == 1


class TestNoneIsReady:
    async def test_if_none_was_lately_the_lookup_is_unavailable_at_once(self) -> None:
        lookup = submitted(replicas_of(Endpoint(is_ready=False)))
        assert lookup.problem == Problem("Unreachable", "shard 0 cannot be reached: 10.0.0.1:7000: no route to host", 0)

    async def test_if_one_broke_a_moment_ago_it_waits_and_is_submitted_when_that_is_back(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        endpoint.enter(False, broken_at=now())
        lookup = submitted(replicas)
        assert not lookup.is_done
        endpoint.enter(True)
        assert endpoint.lookups == [lookup]
        assert replicas.counters[INDEX["retries"]] == 1

    async def test_what_is_done_by_then_is_not(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        endpoint.enter(False, broken_at=now())
        submitted(replicas).is_done = True
        endpoint.enter(True)
        assert endpoint.lookups == []

    async def test_for_one_that_fell_silent_it_does_not_wait(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        endpoint.enter(False)
        assert submitted(replicas).is_done

    async def test_no_more_wait_than_a_queue_may_hold(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint, max_queued_keys=2)
        endpoint.enter(False, broken_at=now())
        assert [submitted(replicas).is_done for _ in range(3)] == [False, False, True]

    async def test_those_that_are_done_make_room_for_others(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint, max_queued_keys=2)
        endpoint.enter(False, broken_at=now())
        first, second = submitted(replicas), submitted(replicas)
        first.is_done = True
        third = submitted(replicas)
        assert not third.is_done
        endpoint.enter(True)
        assert endpoint.lookups == [second, third]

    async def test_what_is_raised_about_one_costs_no_other_its_turn(self, caplog: pytest.LogCaptureFixture) -> None:
        class Faulty(Lookup):
            def give_up(self, problem: Problem) -> None:
                super().give_up(problem)
                raise MemoryError

        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        endpoint.enter(False, broken_at=now())
        faulty = Faulty(replicas)
        replicas.submit(faulty)
        lookup = submitted(replicas)
        endpoint.room = 0
        endpoint.enter(True)
        assert faulty.is_done
        assert lookup.is_done
        assert "a waiter failed" in caplog.text

    async def test_those_of_a_table_that_is_retired_are_not_kept(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        endpoint.enter(False, broken_at=now())
        lookup = submitted(replicas)
        gc.disable()  # a lookup knows its replicas: if these knew it, only the collector would free both
        try:
            replicas.close()
            kept = weakref.ref(lookup)
            del lookup
            assert kept() is None
        finally:
            gc.enable()

    async def test_those_that_are_done_are_forgotten_when_the_next_one_waits(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint, deadline=0.05)
        endpoint.enter(False, broken_at=now())
        lookup = submitted(replicas)
        kept = weakref.ref(lookup)
        lookup.is_done = True
        del lookup
        submitted(replicas)
        assert kept() is None


class TestRetry:
    async def test_another_replica_is_asked_on_another_host_if_there_is_one(self) -> None:
        first, neighbour, elsewhere = Endpoint(), Endpoint(), Endpoint("10.0.0.2")
        neighbour.outstanding = elsewhere.outstanding = 1
        elsewhere.outstanding = 9
        replicas = replicas_of(first, neighbour, elsewhere)
        lookup = Lookup(replicas)
        lookup.first_target = first
        replicas.retry(lookup, LOST)
        assert elsewhere.lookups == [lookup]
        assert lookup.second_target is elsewhere

    async def test_the_same_one_if_there_is_no_other(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        lookup = submitted(replicas)
        replicas.retry(lookup, LOST)
        assert endpoint.lookups == [lookup, lookup]

    async def test_but_not_for_a_damaged_value(self) -> None:
        endpoint = Endpoint()
        replicas = replicas_of(endpoint)
        lookup = submitted(replicas)
        damaged = Problem("Damaged", "cannot be read")
        replicas.retry(lookup, damaged)
        assert (endpoint.lookups, lookup.problem) == ([lookup], damaged)

    async def test_one_that_finds_no_room_is_given_up_for_the_reason_of_the_first(self) -> None:
        first, other = Endpoint(), Endpoint()
        replicas = replicas_of(first, other)
        other.outstanding = 1
        lookup = submitted(replicas)
        other.room = 0
        replicas.retry(lookup, LOST)
        assert lookup.problem is LOST


class TestTryAnother:
    @pytest.mark.parametrize(
        ("is_hedge", "is_answering", "is_busier", "is_tried"),
        [
            pytest.param(True, True, True, True, id="a hedge always"),
            pytest.param(False, False, True, True, id="if the first answers nothing"),
            pytest.param(False, True, False, True, id="if the other has less to do"),
            pytest.param(False, True, True, False, id="not if both are busy: asking each for all would end both"),
        ],
    )
    async def test_the_second_try_beside_the_first(
        self, is_hedge: bool, is_answering: bool, is_busier: bool, is_tried: bool
    ) -> None:
        first, other = Endpoint(), Endpoint()
        other.outstanding = 1
        replicas = replicas_of(first, other)
        lookup = submitted(replicas)
        first.answered_at = now() + 1 if is_answering else float("-inf")
        first.outstanding, other.outstanding = (1, 1) if is_busier else (1, 0)
        replicas.try_another(lookup, is_hedge=is_hedge)
        assert (other.lookups == [lookup]) is lookup.is_retried is is_tried
        assert lookup.second_target is (other if is_tried else None)
        assert replicas.counters[INDEX["hedges" if is_hedge else "retries"]] == is_tried

    async def test_there_is_none_without_another_replica_or_for_what_is_done(self) -> None:
        first, other = Endpoint(), Endpoint()
        alone = replicas_of(first)
        alone.try_another(submitted(alone), is_hedge=True)
        replicas = replicas_of(first, other)
        lookup = submitted(replicas)
        lookup.is_done = True
        replicas.try_another(lookup, is_hedge=True)
        assert len(first.lookups) + len(other.lookups) == 2


async def test_a_closed_one_observes_its_endpoints_no_more() -> None:
    endpoint = Endpoint()
    replicas = replicas_of(endpoint)
    assert replicas.is_proven
    assert replicas.was_proven
    replicas.close()
    assert endpoint.observers == []
