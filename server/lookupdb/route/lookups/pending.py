"""An ask: keys of one shard that somebody waits for, from the moment of the lookup to its answer or its deadline.

An ask has at most two tries. The second begins when the first has failed, or is late while another replica is
ready; the first answer wins, and what comes after it is ignored.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from hiredis import ReplyError

from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.waiters import OVERLOADED, UNAVAILABLE, BatchWaiter, Problem, Values, Waiter
from lookupdb.route.shards.batch_size import LARGE_ASK_KEYS

if TYPE_CHECKING:
    from lookupdb.route.budget import RouterBudget
    from lookupdb.route.lookups.generation import Generation
    from lookupdb.route.shards.endpoint import Endpoint
    from lookupdb.route.shards.replicas import ShardReplicas

_UNAVAILABLE: Final = INDEX["keys_unavailable"]


class PendingLookup:
    """What SingleKey and ShardSlice share: who has been asked, and what becomes of a try that failed."""

    __slots__ = ("done", "retried", "shard", "started", "tried", "tries")
    count: int
    """How many keys."""

    def __init__(self, shard: ShardReplicas, started: float) -> None:
        self.shard = shard
        self.started = started
        """The event loop's time of the lookup."""
        self.done = False
        self.retried = False
        self.tries = 0
        """How many endpoints have it now."""
        self.tried: Endpoint | None = None
        """The endpoint of the first try."""

    def add_to(self, keys: list[bytes]) -> None:
        """Append the keys to those of a batch."""
        raise NotImplementedError

    def take(self, values: list[bytes | None], at: int) -> None:
        """The batch is answered: this ask's values begin at index ``at``. The endpoint counts them."""
        raise NotImplementedError

    def take_readable(self, values: list[Any], at: int, problem: Problem) -> None:
        """As ``take``, but some values could not be read: the try has failed for their keys, with ``problem``."""
        raise NotImplementedError

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether a value may be received with which ``size`` bytes have come for this ask in this try. If not, the
        request is answered here and now."""
        if budget.has_room(size):
            return True
        self.give_up(OVERLOADED)
        return False

    def give_up(self, problem: Problem) -> None:
        """Say that nothing can be said, unless it is answered already."""
        raise NotImplementedError

    def failed(self, problem: Problem) -> None:
        """A try failed: ask again if there is a try left, give up if no other endpoint has the ask."""
        self.tries -= 1
        if self.done or self.tries:
            return
        if self.retried:
            self.give_up(problem)
        else:
            self.retried = True
            self.shard.ask_again(self, problem)


class SingleKey(PendingLookup):
    """One key that one waiter waits for."""

    __slots__ = ("generation", "key", "waiter")
    count = 1

    def __init__(
        self, key: bytes, waiter: Waiter, generation: Generation, shard: ShardReplicas, started: float
    ) -> None:
        # Not through super(): this is the hot path.
        self.shard = shard
        self.started = started
        self.done = self.retried = False
        self.tries = 0
        self.tried = None
        self.key = key
        self.waiter = waiter
        self.generation = generation

    def add_to(self, keys: list[bytes]) -> None:
        """One key."""
        keys.append(self.key)

    def take(self, values: list[bytes | None], at: int) -> None:
        """One value."""
        self.done = True
        value = values[at]
        if value is None:
            self.waiter.missing(self.generation)
        else:
            self.waiter.found(value, self.generation)

    def take_readable(self, values: list[Any], at: int, problem: Problem) -> None:
        """The one value could not be read."""
        self.failed(problem)

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter."""
        if not self.done:
            self.done = True
            self.shard.counters[_UNAVAILABLE] += 1
            self.waiter.unavailable(problem)


class ScatterGather:
    """The answers to one list of keys, until all its parts have come in. Counts its values in ``budget``."""

    __slots__ = (
        "_parts",
        "_waiter",
        "budget",
        "bytes",
        "generation",
        "held",
        "is_large",
        "pending",
        "problem",
        "unavailable",
        "values",
    )

    def __init__(self, count: int, waiter: BatchWaiter, generation: Generation, budget: RouterBudget) -> None:
        self.values: list[bytes | None] = [None] * count
        """A key that no part asks for is missing."""
        self._waiter: BatchWaiter | None = waiter
        self.generation = generation
        self.bytes = 0
        """Of the values that have come, or are known to come."""
        self.pending = 0
        """How many parts have not come in."""
        self.unavailable: list[int] = []
        """Positions of keys of which nothing can be said."""
        self.problem: Problem | None = None
        """The first one."""
        self.budget = budget
        self.held = 0
        """Bytes that are taken of the budget."""
        self._parts: list[ShardSlice] = []
        self.is_large = False
        """Whether its parts are large work, by their mean: then those that happen to be small go with them."""

    def await_parts(self, parts: list[ShardSlice]) -> None:
        """These have to come in."""
        self._parts = parts
        self.pending = len(parts)
        self.is_large = len(self.values) > LARGE_ASK_KEYS * len(parts)

    def count_bytes(self, size: int) -> bool:
        """``size`` bytes of values more; False when they are too many: then the waiter was told."""
        self.bytes += size
        if self.bytes <= self.budget.answer_bytes:
            return True
        waiter = self._release_waiter()
        self.abandon()
        waiter.too_large(self.budget.answer_bytes)
        return False

    def hold(self, size: int) -> None:
        """``size`` bytes of values are kept here from now on."""
        self.held += size
        self.budget.take(size)

    def part_done(self) -> None:
        """Tell the waiter when this was the last one."""
        self.pending -= 1
        if not self.pending:
            self.finish()

    def finish(self) -> None:
        """Tell the waiter."""
        values: Values = self.values
        self.values = []  # parts that wait in queues, done as they are, must not keep them
        if self.problem:
            if len(self.unavailable) == len(values):
                self.refuse(self.problem)
                return
            marked = list(values)
            for position in self.unavailable:
                marked[position] = UNAVAILABLE
            values = marked
        size = self.bytes
        self._give_back()
        self._release_waiter().done(self.generation, values, size, self.problem)

    def refuse(self, problem: Problem) -> None:
        """Tell the waiter that nothing can be said about any of the keys, whatever has come."""
        waiter = self._release_waiter()
        self.abandon()
        waiter.unavailable(problem)

    def abandon(self) -> None:
        """Wait for nothing more, tell nobody, and hold nothing."""
        for part in self._parts:
            part.end()
        self._give_back()
        self.values = []
        self._waiter = None

    def _release_waiter(self) -> BatchWaiter:
        """The waiter, which is told now. It knows this gather: nothing waits for the garbage collector."""
        waiter = self._waiter
        assert waiter is not None, "the waiter was told already"
        self._waiter = None
        return waiter

    def _give_back(self) -> None:
        self.budget.give(self.held)
        self.held = 0
        self._parts = []


class ShardSlice(PendingLookup):
    """Those keys of a ScatterGather that one batch to one shard holds."""

    __slots__ = ("bytes", "count", "gather", "keys", "positions")

    def __init__(
        self, keys: list[bytes], positions: list[int], gather: ScatterGather, shard: ShardReplicas, started: float
    ) -> None:
        super().__init__(shard, started)
        self.keys = keys
        self.positions = positions
        """Of each key, its place among the gather's values."""
        self.gather = gather
        self.count = len(keys)
        self.bytes = 0
        """Of its values, as far as the gather has counted them."""

    def add_to(self, keys: list[bytes]) -> None:
        """All keys."""
        keys += self.keys

    def take(self, values: list[bytes | None], at: int) -> None:
        """Put the values where they belong."""
        # Calls are spared: this is the hot path of batches.
        mine = values[at : at + self.count]
        size = sum(map(len, filter(None, mine)))
        gather = self.gather
        if self.bytes or gather.bytes + size > gather.budget.answer_bytes:
            if not self._count(size):
                return
        else:
            gather.bytes += size
        gather.held += size
        gather.budget.used += size
        places = gather.values
        for position, value in zip(self.positions, mine, strict=True):
            places[position] = value
        self.end()
        gather.pending -= 1
        if not gather.pending:
            gather.finish()

    def end(self) -> None:
        """Nothing is waited for any longer. What is done stays in queues for a while, where its keys would be counted
        nowhere."""
        self.done = True
        self.keys = []
        self.positions = []

    def take_readable(self, values: list[Any], at: int, problem: Problem) -> None:
        """Keep what could be read, and go on asking for the rest alone. What another endpoint is asked for as well
        is left to it: its answer must fit what it was asked."""
        if self.tries > 1:
            self.failed(problem)
            return
        mine = values[at : at + self.count]
        readable = [type(value) is not ReplyError for value in mine]
        for position, value in compress(zip(self.positions, mine, strict=True), readable):
            self.gather.values[position] = value
        sizes = sum(len(value) for value in compress(mine, readable) if value is not None)
        damaged = [not is_readable for is_readable in readable]
        self.keys = list(compress(self.keys, damaged))
        self.positions = list(compress(self.positions, damaged))
        self.count = len(self.keys)
        if self._count(sizes):
            self.gather.hold(sizes)
            self.bytes = 0  # of those keys that are left
            self.failed(problem)

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether the gather's values stay within the bounds."""
        return super().may_receive(size, budget) and self._count(max(size, self.bytes))

    def _count(self, size: int) -> bool:
        """The part has ``size`` bytes of values, or more; two endpoints may bring the same ones. False: too many."""
        more, self.bytes = size - self.bytes, size
        return self.gather.count_bytes(more)

    def give_up(self, problem: Problem) -> None:
        """Note it for all keys. Where the router is short of memory the whole request makes room."""
        if self.done:
            return
        gather = self.gather
        if problem is OVERLOADED:
            self.shard.counters[_UNAVAILABLE] += len(gather.values)
            gather.refuse(problem)
            return
        self.shard.counters[_UNAVAILABLE] += self.count
        gather.unavailable += self.positions
        gather.problem = gather.problem or problem
        self.end()
        gather.part_done()
