"""One shard's replicas: which endpoint is asked, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.waiters import Problem
from lookupdb.route.shards.batch_size import PART_KEYS
from lookupdb.route.shards.endpoint import Endpoint, LinkState, Settings

_RETRIES: Final = INDEX["retries"]
_HEDGES: Final = INDEX["hedges"]
_QUEUE_FULL: Final = INDEX["queue_full"]
_NAMED: Final = 3
"""A problem names so many endpoints; /status names all."""


class ShardReplicas:
    """One shard of one generation in one routing table. ``close()`` when the table is retired."""

    def __init__(self, number: int, endpoints: Sequence[Endpoint], settings: Settings) -> None:
        self.number = number
        self.endpoints = tuple(endpoints)
        self.counters = settings.counters
        self._settings = settings
        self._random = settings.random.random
        self._loop = asyncio.get_running_loop()
        self._ready: list[Endpoint] = []
        self._parked: deque[PendingLookup] = deque()
        """Asks that wait for an endpoint to come back: a restart costs its keys time, not their answer."""
        self._parked_keys = 0
        for endpoint in self.endpoints:
            endpoint.observers.append(self._changed)
        self._changed()

    @property
    def proven(self) -> bool:
        """Whether an endpoint is ready now."""
        return bool(self._ready)

    @property
    def was_proven(self) -> bool:
        """Whether an endpoint has ever been ready."""
        return any(endpoint.was_ready for endpoint in self.endpoints)

    def close(self) -> None:
        """Stop observing the endpoints, which may serve another table's shard."""
        for endpoint in self.endpoints:
            endpoint.observers.remove(self._changed)

    def ask(self, ask: PendingLookup) -> None:
        """The first try of ``ask``."""
        ready = self._ready
        if len(ready) == 1:
            endpoint: Endpoint | None = ready[0]
        else:
            endpoint = self._choose(ready)
        if endpoint is None:
            self._park(ask, None)
        elif endpoint.ask(ask):
            ask.tried = endpoint
        else:
            self._ask_any(ask, ready, endpoint)

    def ask_again(self, ask: PendingLookup, problem: Problem) -> None:
        """The second try of ``ask``, whose first failed with ``problem``."""
        endpoint = self._another(ask)
        if endpoint is None and problem.reason == "Damaged":
            ask.give_up(problem)  # the same file would be read again
            return
        if endpoint is None and ask.tried in self._ready:
            endpoint = ask.tried
        if endpoint is None:
            self._park(ask, problem)
            return
        self.counters[_RETRIES] += ask.count
        if not endpoint.ask(ask):
            ask.give_up(problem)

    def ask_also(self, ask: PendingLookup, *, hedge: bool) -> None:
        """The second try of ``ask``, whose first goes on: only if another replica is ready.

        Without ``hedge`` also only if it is likely to be faster: when all replicas have more to do than they can,
        asking each for everything would be the end of them.
        """
        first = ask.tried
        if ask.done or ask.retried or not ask.tries or first is None:
            return
        endpoint = self._another(ask)
        if endpoint is None:
            return
        stalled = first.answered_at < ask.started
        if (hedge or stalled or endpoint.outstanding < first.outstanding) and endpoint.ask(ask):
            ask.retried = True
            self.counters[_HEDGES if hedge else _RETRIES] += ask.count

    @property
    def part_keys(self) -> int:
        """How many keys of a request stay together, by the values that came lately."""
        return self._ready[0].part_keys if self._ready else PART_KEYS

    def describe(self) -> list[dict[str, Any]]:
        """Of each endpoint its address, state and why it is not ready."""
        return [{"endpoint": str(e.address), "state": e.state, "why": e.why} for e in self.endpoints]

    def _choose(self, among: Sequence[Endpoint]) -> Endpoint | None:
        """The less busy of two at random: near to the least busy of all, and no herd runs to one."""
        count = len(among)
        if count < 2:
            return among[0] if among else None
        first = int(self._random() * count)
        second = (first + 1 + int(self._random() * (count - 1))) % count
        one, other = among[first], among[second]
        return one if one.outstanding <= other.outstanding else other

    def _another(self, ask: PendingLookup) -> Endpoint | None:
        """A ready replica that has not been asked; on another host if there is one, since hosts die whole."""
        tried = ask.tried
        others = [endpoint for endpoint in self._ready if endpoint is not tried]
        if tried:
            elsewhere = [endpoint for endpoint in others if endpoint.address.host != tried.address.host]
            others = elsewhere or others
        return self._choose(others)

    def _ask_any(self, ask: PendingLookup, ready: Sequence[Endpoint], full: Endpoint) -> None:
        """The chosen endpoint's queue is full: the least busy of all may have room."""
        least = min(ready, key=lambda endpoint: endpoint.outstanding)
        if least.ask(ask):
            ask.tried = least
            return
        self.counters[_QUEUE_FULL] += ask.count
        limit = self._settings.max_queued_keys
        ask.give_up(full.problem("QueueFull", f"the queue is full ({limit} keys); come back later"))

    def _park(self, ask: PendingLookup, problem: Problem | None) -> None:
        """No endpoint is ready. Wait if one was until a moment ago and there is room; give up if not."""
        last = max(endpoint.broken_at for endpoint in self.endpoints)
        recent = last + self._settings.deadline_seconds > self._loop.time()
        if recent and self._parked_keys < self._settings.max_queued_keys:
            self._parked.append(ask)
            self._parked_keys += ask.count
        else:
            ask.give_up(problem or self._unreachable())

    def _unreachable(self) -> Problem:
        whys = [f"{e.address}: {e.why or e.state}" for e in self.endpoints[:_NAMED]]
        more = len(self.endpoints) - len(whys)
        detail = f"shard {self.number} cannot be reached: {'; '.join(whys)}{f'; and {more} more' if more else ''}"
        return Problem("Unreachable", detail, self.number)

    def _changed(self) -> None:
        """An endpoint has become ready, or has ceased to be."""
        self._ready = [endpoint for endpoint in self.endpoints if endpoint.state is LinkState.READY]
        if self._ready and self._parked:
            parked, self._parked, self._parked_keys = self._parked, deque(), 0
            for ask in parked:
                if not ask.done:
                    self.counters[_RETRIES] += ask.count
                    self.ask(ask)
