"""Whose turn it is in the lane for large work."""

from __future__ import annotations

from typing import Any

from support.batches import make_keys

from lookupdb.router.batch_keys import ShardKeys
from lookupdb.router.budget import RouterBudget
from lookupdb.router.lane import FairQueue
from lookupdb.router.lookups import ScatterGather, ShardSlice


def parts_of(name: str, count: int) -> list[ShardSlice]:
    none: Any = None
    gather = ScatterGather(make_keys([f"{name}{number}" for number in range(count)]), none, none, RouterBudget(1))
    keys = [ShardKeys(0, [f"{name}{number}".encode()], [number]) for number in range(count)]
    return [ShardSlice(key, gather, none, 0) for key in keys]


class TestFairQueue:
    def test_requests_take_turns_part_by_part(self) -> None:
        queue = FairQueue()
        for part in [*parts_of("a", 4), *parts_of("b", 2), *parts_of("c", 1)]:
            queue.append(part)
        left = []
        while queue:
            left.append(queue.popleft().packed.split()[1].decode())
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
