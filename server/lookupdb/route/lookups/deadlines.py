"""Deadlines of all asks, by a coarse sweep: no ask has a timer of its own, and none is ever forgotten.

All asks have the same deadline, so that they end in the order in which they began: two queues suffice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.waiters import Problem

_DEADLINES: Final = INDEX["deadlines"]
_LONGEST_TICK: Final = 0.05
_SHORTEST_TICK: Final = 0.001
_COMPACT_AT: Final = 4096
"""Asks in a queue, beyond which those that are done are sought behind one that is not."""


class Deadlines:
    """Ends every ask after ``deadline`` seconds, and gives it a second try before that.

    The second try comes after ``hedge`` seconds, or, when that is 0, after half of the deadline: then the first
    counts as timed out.
    """

    def __init__(self, deadline: float, hedge: float, counters: memoryview) -> None:
        self._deadline = deadline
        self._is_hedge = 0 < hedge < deadline / 2
        self._late = hedge if self._is_hedge else deadline / 2
        self._tick = min(max(self._late / 8, _SHORTEST_TICK), _LONGEST_TICK)
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._young: deque[PendingLookup] = deque()
        self._old: deque[PendingLookup] = deque()
        self._compact_at = _COMPACT_AT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ask: PendingLookup) -> None:
        """Watch over ``ask`` until it is done."""
        young = self._young
        while young and young[0].done:
            # Not left to the sweep: thousands would wait for it, and push what is in use out of the cache.
            young.popleft()
        young.append(ask)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        young, old = self._young, self._old
        while young and (young[0].done or young[0].started + self._late <= now):
            ask = young.popleft()
            if not ask.done:
                old.append(ask)
                ask.shard.ask_also(ask, hedge=self._is_hedge)
        while old and (old[0].done or old[0].started + self._deadline <= now):
            ask = old.popleft()
            if not ask.done:
                self._counters[_DEADLINES] += ask.count
                ask.give_up(self._problem(ask))
        if len(young) + len(old) > self._compact_at:
            self._compact()
        self._timer = self._loop.call_later(self._tick, self._sweep) if self._young or self._old else None

    def _compact(self) -> None:
        """Forget what is done: while one shard does not answer, the others' asks must not pile up behind its own."""
        self._young = deque(ask for ask in self._young if not ask.done)
        self._old = deque(ask for ask in self._old if not ask.done)
        self._compact_at = max(_COMPACT_AT, 2 * (len(self._young) + len(self._old)))

    def _problem(self, ask: PendingLookup) -> Problem:
        endpoint = f" ({ask.tried.address})" if ask.tried else ""
        detail = f"shard {ask.shard.number}{endpoint} did not answer within {self._deadline:g} s"
        return Problem("Deadline", detail, ask.shard.number)
