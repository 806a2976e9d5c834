"""Deadlines of all lookups, by a coarse sweep: no lookup has a timer of its own, and none is ever forgotten.

All lookups of one deadline end in the order in which they began: two queues suffice. Nearly all have the router's own;
those of clients that wait for less are kept apart by how long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.waiters import Problem

_DEADLINES: Final = INDEX["deadlines"]
_MAX_TICK_SECONDS: Final = 0.05
_MIN_TICK_SECONDS: Final = 0.001
_KEPT_BITS: Final = 4
"""Of a shorter deadline in milliseconds; the others become 0."""
_COMPACT_AT: Final = 4096
"""Lookups in a queue, beyond which those that are done are sought behind one that is not."""


class RequestDeadlines:
    """The router's own deadline, and the shorter ones that requests ask for.

    A shorter one is rounded down, by an eighth at most, to one of some hundred, which is how many there can be.
    """

    def __init__(self, milliseconds: int, hedge: float, counters: memoryview) -> None:
        self.own = Deadlines(milliseconds / 1000, hedge, counters)
        self._milliseconds = milliseconds
        self._hedge = hedge
        self._counters = counters
        self._shorter: dict[int, Deadlines] = {}

    def choose_watch(self, milliseconds: int) -> Callable[[PendingLookup], None]:
        """What watches over a lookup that ends after ``milliseconds``, or after the router's own deadline if that is
        less."""
        if milliseconds >= self._milliseconds:
            return self.own.add
        lost_bits = max(0, milliseconds.bit_length() - _KEPT_BITS)
        rounded = milliseconds >> lost_bits << lost_bits
        shorter = self._shorter.get(rounded)
        if shorter is None:
            shorter = self._shorter[rounded] = Deadlines(rounded / 1000, self._hedge, self._counters, is_of_client=True)
        return shorter.add


class Deadlines:
    """Ends every lookup after ``deadline`` seconds, and gives it a second try before that.

    The second try comes after ``hedge`` seconds, or, when that is 0, after half of the deadline: then the first
    counts as timed out.
    """

    def __init__(self, deadline: float, hedge: float, counters: memoryview, *, is_of_client: bool = False) -> None:
        self._deadline = deadline
        self._is_of_client = is_of_client
        """Whether clients asked for it; else it is the router's own."""
        self._is_hedge = 0 < hedge < deadline / 2
        self._retry_seconds = hedge if self._is_hedge else deadline / 2
        self._tick_seconds = min(max(self._retry_seconds / 8, _MIN_TICK_SECONDS), _MAX_TICK_SECONDS)
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._retry_queue: deque[PendingLookup] = deque()
        """Lookups whose second try is not due."""
        self._deadline_queue: deque[PendingLookup] = deque()
        """Lookups whose second try was due, and which end at their deadline."""
        self._compact_at = _COMPACT_AT
        self._timer: asyncio.TimerHandle | None = None

    def add(self, lookup: PendingLookup) -> None:
        """Watch over ``lookup`` until it is done."""
        retry_queue = self._retry_queue
        while retry_queue and retry_queue[0].is_done:
            # Not left to the sweep: thousands would wait for it, and push what is in use out of the cache.
            retry_queue.popleft()
        retry_queue.append(lookup)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_seconds, self._sweep)

    def _sweep(self) -> None:
        try:
            self._end_due(self._loop.time())
        finally:  # whatever is raised about one lookup, the others end at their deadlines
            self._timer = (
                self._loop.call_later(self._tick_seconds, self._sweep)
                if self._retry_queue or self._deadline_queue
                else None
            )

    def _end_due(self, now: float) -> None:
        retry_queue, deadline_queue = self._retry_queue, self._deadline_queue
        while retry_queue and (retry_queue[0].is_done or retry_queue[0].started_at + self._retry_seconds <= now):
            lookup = retry_queue.popleft()
            if not lookup.is_done:
                deadline_queue.append(lookup)
                if lookup.started_at + self._deadline > now:  # or a server would be asked for nobody
                    lookup.replicas.try_another(lookup, is_hedge=self._is_hedge)
        while deadline_queue and (deadline_queue[0].is_done or deadline_queue[0].started_at + self._deadline <= now):
            lookup = deadline_queue.popleft()
            if not lookup.is_done:
                self._counters[_DEADLINES] += lookup.key_count
                lookup.give_up(self._problem(lookup))
        if len(retry_queue) + len(deadline_queue) > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Forget what is done: while one shard does not answer, the others' lookups must not pile up behind its own."""
        self._retry_queue = deque(lookup for lookup in self._retry_queue if not lookup.is_done)
        self._deadline_queue = deque(lookup for lookup in self._deadline_queue if not lookup.is_done)
        self._compact_at = max(_COMPACT_AT, 2 * (len(self._retry_queue) + len(self._deadline_queue)))

    def _problem(self, lookup: PendingLookup) -> Problem:
        """Tells a server that is silent from one that is slow, and both from none: a dead one whose connection has not
        broken yet is silent."""
        shard, seconds, target = lookup.replicas.number, f"{self._deadline:g} s", lookup.first_target
        if target is None:
            finding = f"no server came back within {seconds}"
        elif target.answered_at < lookup.started_at:
            finding = f"no answer from {target.address} for {seconds}, to this lookup or another"
        else:
            finding = f"no answer from {target.address} within {seconds}; it has answered others since"
        if not lookup.open_tries:  # it waits for a server, for its first try or its second
            finding += f"; not reachable now: {lookup.replicas.explain_absence()}"
        elif lookup.is_retried:
            finding += "; a second try had none either"
        # Without a server that answers, among those that have it, nobody waits for long enough.
        is_of_client = self._is_of_client and not all(endpoint.is_silent for endpoint in lookup.open_targets)
        return Problem("Deadline", f"shard {shard}: {finding}", shard, is_of_client)
