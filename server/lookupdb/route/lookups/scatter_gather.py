"""A list of keys, scattered over shards in slices and gathered again: one answer, when all slices have come in."""

from __future__ import annotations

from itertools import compress
from typing import Any, Final

from hiredis import ReplyError

from lookupdb.route.budget import RouterBudget
from lookupdb.route.lookups.batch_keys import NO_KEYS, NO_VALUES, BatchKeys, BatchValues, ReplyValues, ShardKeys
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.lookups.pending import LookupReplicas, PendingLookup
from lookupdb.route.lookups.waiters import OVERLOADED, BatchWaiter, Problem

LARGE_SLICE_KEYS: Final = 16
"""A slice of more keys is large work whatever came lately: its values may be larger."""


class ScatterGather:
    """The answers to one list of keys, until all its slices have come in. Counts its values in ``budget``."""

    __slots__ = (
        "_slices",
        "_waiter",
        "budget",
        "generation",
        "held_bytes",
        "is_large",
        "key_count",
        "pending_slices",
        "problem",
        "value_bytes",
        "values",
    )

    def __init__(
        self, keys: BatchKeys, waiter: BatchWaiter, generation: ServedGeneration, budget: RouterBudget
    ) -> None:
        self.key_count = len(keys)
        self.values: BatchValues = keys.make_values()
        """A key that is in no slice is missing."""
        self._waiter: BatchWaiter | None = waiter
        self.generation = generation
        """What the answer comes from."""
        self.value_bytes = 0
        """Of the values that have come, or are known to come."""
        self.pending_slices = 0
        self.problem: Problem | None = None
        """Why nothing can be said of the first key of which that is so."""
        self.budget = budget
        self.held_bytes = 0
        """Taken of the budget."""
        self._slices: list[ShardSlice] = []
        self.is_large = False
        """Whether its slices are large work, by their mean: then those that happen to be small go with them."""

    def await_slices(self, slices: list[ShardSlice]) -> None:
        """Wait for all of ``slices``."""
        self._slices = slices
        self.pending_slices = len(slices)
        self.is_large = self.key_count > LARGE_SLICE_KEYS * len(slices)

    def count_bytes(self, size: int) -> bool:
        """Count ``size`` bytes of values more; False when they are too many: then the waiter was told."""
        self.value_bytes += size
        if self.value_bytes <= self.budget.answer_bytes:
            return True
        waiter = self._release_waiter()
        self.abandon()
        waiter.too_large(self.budget.answer_bytes)
        return False

    def hold(self, size: int) -> None:
        """Take ``size`` bytes of the budget for values that are kept here from now on."""
        self.held_bytes += size
        self.budget.take(size)

    def finish_slice(self) -> None:
        """Tell the waiter when this was the last one."""
        self.pending_slices -= 1
        if not self.pending_slices:
            self.finish()

    def finish(self) -> None:
        """Tell the waiter."""
        values = self.values
        self.values = NO_VALUES  # slices that wait in queues, done as they are, must not keep them
        if self.problem and values.unavailable_count == self.key_count:
            self.refuse(self.problem)
            return
        size = self.value_bytes
        self._release_budget()
        self._release_waiter().done(self.generation, values, size, self.problem)

    def refuse(self, problem: Problem) -> None:
        """Tell the waiter that nothing can be said about any of the keys, whatever has come."""
        waiter = self._release_waiter()
        self.abandon()
        waiter.unavailable(problem)

    def abandon(self) -> None:
        """Wait for nothing more, tell nobody, and hold nothing."""
        for shard_slice in self._slices:
            shard_slice.end()
        self._release_budget()
        self.values = NO_VALUES
        self._waiter = None

    def _release_waiter(self) -> BatchWaiter:
        """The waiter, whom this object forgets: it refers back here, and nothing may wait for the garbage collector."""
        waiter = self._waiter
        assert waiter is not None, "the waiter was told already"
        self._waiter = None
        return waiter

    def _release_budget(self) -> None:
        self.budget.release(self.held_bytes)
        self.held_bytes = 0
        self._slices = []


class ShardSlice(PendingLookup):
    """Those keys of a ScatterGather that one batch to one shard holds."""

    __slots__ = ("counted_bytes", "gather", "key_count", "keys")

    def __init__(self, keys: ShardKeys, gather: ScatterGather, replicas: LookupReplicas, started_at: float) -> None:
        # Not through super(): this is the hot path of batches.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.keys = keys
        self.gather = gather
        self.key_count = len(keys)
        self.counted_bytes = 0
        """Of its values, as far as the gather has counted them before they are delivered."""

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other."""
        return self.keys.packed

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Put the values where they belong."""
        # Calls are spared: this is the hot path of batches.
        gather = self.gather
        size = gather.values.place(self.keys, values, offset)
        if self.counted_bytes or gather.value_bytes + size > gather.budget.answer_bytes:
            if not self._count(size):
                return
        else:
            gather.value_bytes += size
        gather.held_bytes += size
        gather.budget.used += size
        self.end()
        gather.pending_slices -= 1
        if not gather.pending_slices:
            gather.finish()

    def end(self) -> None:
        """Wait for nothing any longer, and keep no keys: a lookup that is done stays in queues for a while, where its
        keys would be counted nowhere."""
        self.is_done = True
        self.keys = NO_KEYS

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Keep the values that could be read, and fail the try for the other keys.

        While another try is open, keep nothing: its answer must fit the keys that it was asked for.
        """
        if self.open_tries > 1:
            self.fail_try(problem)
            return
        own_values = values[offset : offset + self.key_count]
        readable = [type(value) is not ReplyError for value in own_values]
        size = self.gather.values.place(self.keys.select(readable), list(compress(own_values, readable)), 0)
        self.keys = self.keys.select([not is_readable for is_readable in readable])
        self.key_count = len(self.keys)
        if self._count(size):
            self.gather.hold(size)
            self.counted_bytes = 0  # of the keys that remain
            self.fail_try(problem)

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether the gather's values stay within the bounds."""
        return super().may_receive(size, budget) and self._count(max(size, self.counted_bytes))

    def _count(self, size: int) -> bool:
        """Have the gather count that the slice has ``size`` bytes of values, or more; two endpoints may bring the same
        ones. False: too many."""
        more, self.counted_bytes = size - self.counted_bytes, size
        return self.gather.count_bytes(more)

    def give_up(self, problem: Problem) -> None:
        """Note it for all keys. Where the router is short of memory the whole request makes room."""
        if self.is_done:
            return
        gather = self.gather
        if problem is OVERLOADED:
            self.count_unavailable(problem, gather.key_count - gather.values.unavailable_count)  # others of it failed
            gather.refuse(problem)
            return
        self.count_unavailable(problem, self.key_count)
        gather.values.mark_unavailable(self.keys)
        gather.problem = gather.problem or problem
        gather.value_bytes -= self.counted_bytes  # of values that do not come after all
        self.end()
        gather.finish_slice()
