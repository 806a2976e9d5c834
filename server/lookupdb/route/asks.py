"""An ask: keys of one shard that somebody waits for, from the moment of the lookup to its answer or its deadline.

An ask has at most two tries. The second begins when the first has failed, or is late while another replica is
ready; the first answer wins, and what comes after it is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lookupdb.route.counters import INDEX
from lookupdb.route.waiters import UNAVAILABLE, BatchWaiter, Problem, Values, Waiter

if TYPE_CHECKING:
    from lookupdb.route.endpoint import Endpoint
    from lookupdb.route.generation import Generation
    from lookupdb.route.replicas import Shard

_UNAVAILABLE: Final = INDEX["keys_unavailable"]


class Ask:
    """What One and Part share: who has been asked, and what becomes of a try that failed."""

    __slots__ = ("done", "retried", "shard", "started", "tried", "tries")
    count: int
    """How many keys."""

    def __init__(self, shard: Shard, started: float) -> None:
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


class One(Ask):
    """One key that one waiter waits for."""

    __slots__ = ("generation", "key", "waiter")
    count = 1

    def __init__(self, key: bytes, waiter: Waiter, generation: Generation, shard: Shard, started: float) -> None:
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

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter."""
        if not self.done:
            self.done = True
            self.shard.counters[_UNAVAILABLE] += 1
            self.waiter.unavailable(problem)


class Gather:
    """The answers to one list of keys, until all its parts have come in."""

    __slots__ = ("generation", "parts", "problem", "unavailable", "values", "waiter")

    def __init__(self, count: int, waiter: BatchWaiter, generation: Generation) -> None:
        self.values: list[bytes | None] = [None] * count
        """A key that no part asks for is missing."""
        self.waiter = waiter
        self.generation = generation
        self.parts = 0
        """How many have not come in."""
        self.unavailable: list[int] = []
        """Positions of keys of which nothing can be said."""
        self.problem: Problem | None = None
        """The first one."""

    def part_done(self) -> None:
        """Tell the waiter when this was the last one."""
        self.parts -= 1
        if not self.parts:
            self.finish()

    def finish(self) -> None:
        """Tell the waiter."""
        values: Values = self.values
        if self.problem:
            if len(self.unavailable) == len(self.values):
                self.waiter.unavailable(self.problem)
                return
            marked = list(values)
            for position in self.unavailable:
                marked[position] = UNAVAILABLE
            values = marked
        self.waiter.done(self.generation, values)


class Part(Ask):
    """Those keys of a Gather that one batch to one shard holds."""

    __slots__ = ("count", "gather", "keys", "positions")

    def __init__(self, keys: list[bytes], positions: list[int], gather: Gather, shard: Shard, started: float) -> None:
        super().__init__(shard, started)
        self.keys = keys
        self.positions = positions
        """Of each key, its place among the gather's values."""
        self.gather = gather
        self.count = len(keys)

    def add_to(self, keys: list[bytes]) -> None:
        """All keys."""
        keys += self.keys

    def take(self, values: list[bytes | None], at: int) -> None:
        """Put the values where they belong."""
        self.done = True
        mine = values[at : at + self.count]
        places = self.gather.values
        for position, value in zip(self.positions, mine, strict=True):
            places[position] = value
        self.gather.part_done()

    def give_up(self, problem: Problem) -> None:
        """Note it for all keys."""
        if not self.done:
            self.done = True
            self.shard.counters[_UNAVAILABLE] += self.count
            self.gather.unavailable += self.positions
            self.gather.problem = self.gather.problem or problem
            self.gather.part_done()
