"""What decides how large work leaves room for small work: sizes of batches, turns, progress. Each alone, no sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.waiting import soon

from lookupdb.route.budget import (
    CONNECTION_BYTES,
    LEAST_BUDGET_BYTES,
    RouterBudget,
    affordable_connections,
    worker_budget,
)
from lookupdb.route.lookups.scatter_gather import ScatterGather, ShardSlice
from lookupdb.route.shards.batch_size import BATCH_BYTES, BATCH_KEYS, FIRST_KEYS, BatchSize, fitting_slice_keys
from lookupdb.route.shards.fair_queue import FairQueue
from lookupdb.route.shards.stall_watch import PROGRESS_BYTES, StallWatch

MIB = 1 << 20


class TestBatchSize:
    def test_small_values_let_it_grow_to_the_most(self) -> None:
        size = BatchSize(0.1)
        assert size.keys == FIRST_KEYS
        for _ in range(4):
            size.measure(size.keys, size.keys * 100, 0.01)
        assert size.keys == BATCH_KEYS

    def test_large_values_shrink_it_at_once_so_that_an_answer_stays_small(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * 100_000, 0.01)
        assert size.keys == BATCH_BYTES // 100_000

    def test_a_value_larger_than_an_answer_should_be_travels_alone(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * MIB, 0.01)
        assert size.keys == 1

    def test_it_grows_back_step_by_step_when_values_are_small_again(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * MIB, 0.01)
        grown = []
        for _ in range(40):
            size.measure(size.keys, size.keys * 100, 0.01)
            grown.append(size.keys)
        assert grown == sorted(grown)
        assert grown[-1] == BATCH_KEYS

    def test_a_large_answer_that_takes_too_long_has_fewer_keys_the_next_time(self) -> None:
        size = BatchSize(0.1)
        size.measure(100, 100 * 1000, 1.0)
        assert size.keys == 10

    def test_a_small_answer_that_takes_long_does_not(self) -> None:
        size = BatchSize(0.1)
        size.measure(100, 100 * 10, 1.0)
        assert size.keys > FIRST_KEYS

    def test_after_a_stall_it_is_a_quarter(self) -> None:
        size = BatchSize(0.1)
        size.shrink()
        assert size.keys == FIRST_KEYS // 4

    def test_parts_are_cut_by_the_size_of_values(self) -> None:
        assert fitting_slice_keys(0) == fitting_slice_keys(100) == 64
        assert fitting_slice_keys(100_000) == 5
        assert fitting_slice_keys(64 * MIB) == 1


def parts_of(name: str, count: int) -> list[ShardSlice]:
    none: Any = None
    gather = ScatterGather(count, none, none, RouterBudget(1))
    return [ShardSlice([f"{name}{number}".encode()], [number], gather, none, 0) for number in range(count)]


class TestFairQueue:
    def test_requests_take_turns_part_by_part(self) -> None:
        queue = FairQueue()
        for part in [*parts_of("a", 4), *parts_of("b", 2), *parts_of("c", 1)]:
            queue.append(part)
        left = []
        while queue:
            left.append(queue.popleft().keys[0].decode())
        assert left == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]

    def test_all_that_waits_can_be_seen_and_forgotten(self) -> None:
        queue = FairQueue()
        parts = parts_of("a", 3)
        for part in parts:
            queue.append(part)
        assert list(queue) == parts
        queue.clear()
        assert not queue
        assert list(queue) == []


class Wire:
    """What a stall watch looks at."""

    def __init__(self, seconds: float) -> None:
        self.since: float | None = None
        self.pace = 0
        """Bytes that come between two looks."""
        self.looks = 0
        self.stalls = 0
        self.watch = StallWatch(seconds, lambda: self.since, self._received, self._stalled)
        self._bytes = 0

    def send(self) -> None:
        self.since = asyncio.get_running_loop().time()
        self.watch.watch(self.since)

    def _received(self) -> int:
        self.looks += 1
        self._bytes += self.pace
        return self._bytes

    def _stalled(self) -> None:
        self.stalls += 1


class TestStallWatch:
    async def test_nothing_comes(self) -> None:
        wire = Wire(0.05)
        wire.send()
        await soon(lambda: wire.stalls, "the stall is noticed")

    async def test_bytes_that_come_are_progress(self) -> None:
        wire = Wire(0.02)
        wire.pace = PROGRESS_BYTES
        wire.send()
        await soon(lambda: wire.looks > 10, "it was looked at again and again")
        assert not wire.stalls
        wire.pace = 0
        await soon(lambda: wire.stalls, "until none come any more")

    async def test_a_trickle_is_none(self) -> None:
        wire = Wire(0.02)
        wire.pace = PROGRESS_BYTES // 2 - 1
        wire.send()
        await soon(lambda: wire.stalls, "the stall is noticed")

    async def test_an_answered_batch_is_not_watched(self) -> None:
        wire = Wire(0.03)
        wire.send()
        wire.since = None
        await soon(lambda: not wire.watch.is_watching, "the timer ends")
        assert not wire.stalls


class TestBudget:
    def test_the_defaults_fit_into_the_default_pod(self) -> None:
        assert affordable_connections(512 * MIB, 1, 10_000, MIB) == 10_000
        budget = worker_budget(512 * MIB, 1, 10_000, MIB)
        assert 190 * MIB < budget < 200 * MIB
        assert RouterBudget(budget).answer_bytes == 64 * MIB

    def test_where_no_limit_is_known_each_worker_has_as_much(self) -> None:
        assert worker_budget(None, 1, 10_000, MIB) == worker_budget(None, 8, 10_000, MIB)

    def test_workers_share_the_limit_and_connections_are_cut_to_half_of_what_is_left(self) -> None:
        count = affordable_connections(512 * MIB, 4, 10_000, MIB)
        assert 2000 < count < 3000
        budget = worker_budget(512 * MIB, 4, count, MIB)
        assert budget + count * CONNECTION_BYTES < (512 - 56) * MIB // 4
        assert RouterBudget(budget).answer_bytes == budget // 2

    def test_even_a_limit_that_is_too_small_leaves_something(self) -> None:
        assert affordable_connections(64 * MIB, 8, 10_000, MIB) == 64
        assert affordable_connections(64 * MIB, 8, 10, MIB) == 10
        assert worker_budget(64 * MIB, 8, 1, MIB) == LEAST_BUDGET_BYTES

    @pytest.mark.parametrize(("used", "has_room"), [(0, True), (75, True), (76, False)])
    def test_large_work_stops_before_small_work_does(self, used: int, has_room: bool) -> None:
        budget = RouterBudget(100)
        budget.take(used)
        assert budget.has_room(0) is has_room
        assert budget.batch_mark < budget.large_mark < budget.limit
