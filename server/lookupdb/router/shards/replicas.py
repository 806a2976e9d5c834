"""One shard's replicas: which endpoint is asked, and what happens when one fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from lookupdb.router.counters import INDEX
from lookupdb.router.lookups import (
    CANDIDATE_KEYS_UNAVAILABLE,
    CLIENT_DEADLINE_KEYS_UNAVAILABLE,
    KEYS_UNAVAILABLE,
    LARGE_SLICE_KEYS,
    LookupTarget,
    PendingLookup,
    Problem,
    ServedGeneration,
    ShardSlice,
    make_endpoint_problem,
)
from lookupdb.router.servers.connection import ServerAddress
from lookupdb.router.servers.link import LinkState
from lookupdb.router.servers.proof import ShardIdentity
from lookupdb.router.shards.lane import LARGE_SLICE_BYTES, SLICE_KEYS, EndpointSettings, Lane

# One endpoint of a shard: a lane for small work and, once there is any, one for large work, each a connection.
#
# Slices that are expected to bring many bytes take the large lane: a lookup of a small value does not wait behind them.


CONNECTIONS_AN_ENDPOINT: Final = 2
"""At most: one a lane."""


class Endpoint:
    """The endpoint at ``address``, which must prove to be ``identity``. Connects from ``start()`` to ``close()``."""

    def __init__(self, address: ServerAddress, identity: ShardIdentity, settings: EndpointSettings) -> None:
        self.address = address
        self.identity = identity
        self.observers: list[Callable[[], None]] = []
        """Called when it has become ready or has ceased to be, or is not for another reason than before."""
        self._small = Lane(address, identity, settings, "small", self._on_state_change)
        self._large = Lane(address, identity, settings, "large", lambda: None)
        self._submit_small = self._small.submit

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch; False when the queue is full. Only for a ready endpoint."""
        return self._lane_for(lookup).submit(lookup) if type(lookup) is ShardSlice else self._submit_small(lookup)

    def _lane_for(self, shard_slice: ShardSlice) -> Lane:
        """The lane for large work if ``shard_slice`` is, and that lane is there: it is connected for the first."""
        large, count = self._large, shard_slice.key_count
        if count <= LARGE_SLICE_KEYS and not shard_slice.gather.is_large:
            most = LARGE_SLICE_BYTES / count
            if self._small.batch_size.value_bytes <= most and large.batch_size.value_bytes <= most:
                return self._small
        if large.is_usable:
            return large
        if large.link.state is LinkState.NEW:
            large.link.start()
        return self._small

    @property
    def outstanding(self) -> int:
        """Keys queued and in flight."""
        return self._small.outstanding + self._large.outstanding

    @property
    def slice_keys(self) -> int:
        """How many keys of a request stay together."""
        small, large = self._small.batch_size.slice_keys, self._large.batch_size.slice_keys
        return small if small < large else large

    @property
    def answered_at(self) -> float:
        """The loop's time of the last answer."""
        return max(self._small.answered_at, self._large.answered_at)

    @property
    def is_silent(self) -> bool:
        """Whether it has let a batch wait for the whole deadline, and answered none since, though it may be ready: a
        server whose storage hangs answers what proves it."""
        return self.answered_at < max(self._small.stalled_at, self._large.stalled_at)

    @property
    def state(self) -> LinkState:
        """The state of the lane for small work: without that the endpoint is not used."""
        return self._small.link.state

    @property
    def last_failure(self) -> str | None:
        """Why it is not ready; None if nothing has failed since it was, or since it began."""
        return self._small.link.last_failure

    @property
    def broken_at(self) -> float:
        """The loop's time when it was ready for the last time, if it may be back in a moment."""
        return self._small.link.broken_at

    @property
    def was_ready(self) -> bool:
        """Whether it has ever been ready."""
        return self._small.link.was_ready

    def start(self) -> None:
        """Connect, and connect again whenever the connection breaks."""
        self._small.link.start()

    def close(self) -> None:
        """Close the connections; tries that are still open fail."""
        self._small.close()
        self._large.close()

    def _on_state_change(self) -> None:
        for observer in tuple(self.observers):
            observer()
        if self.state is not LinkState.READY:
            self._large.stop_waiting(self.last_failure or "not ready")


log = logging.getLogger(__name__)

_RETRIES: Final = INDEX["retries"]
_HEDGES: Final = INDEX["hedges"]
_QUEUE_FULL: Final = INDEX["queue_full"]
_COMPACT_SECONDS: Final = 0.05
_MAX_NAMED_ENDPOINTS: Final = 3
"""A problem names so many endpoints; /status names all."""


class ShardReplicas:
    """One shard of one generation in one routing table. ``close()`` when the table is retired."""

    def __init__(
        self,
        number: int,
        generation: ServedGeneration,
        endpoints: Sequence[Endpoint],
        settings: EndpointSettings,
        *,
        is_candidate: bool = False,
    ) -> None:
        self.number = number
        self.generation = generation
        self.unavailable_counter = CANDIDATE_KEYS_UNAVAILABLE if is_candidate else KEYS_UNAVAILABLE
        self.client_deadline_counter = CANDIDATE_KEYS_UNAVAILABLE if is_candidate else CLIENT_DEADLINE_KEYS_UNAVAILABLE
        self.endpoints = tuple(endpoints)
        self.counters = settings.link.counters
        self._settings = settings
        self._random = settings.link.random.random
        self._loop = asyncio.get_running_loop()
        self._ready: list[Endpoint] = []
        self._parked: deque[tuple[PendingLookup, int]] = deque()
        """Lookups that wait for an endpoint to come back, and how many keys each has: a restart costs its keys time,
        not their answer."""
        self._parked_keys = 0
        self._compacted_at = float("-inf")
        """The loop's time when those that are done were sought among all."""
        self._forget_timer: asyncio.TimerHandle | None = None
        for endpoint in self.endpoints:
            endpoint.observers.append(self._on_state_change)
        self._on_state_change()

    @property
    def is_proven(self) -> bool:
        """Whether an endpoint is ready now."""
        return bool(self._ready)

    @property
    def was_proven(self) -> bool:
        """Whether an endpoint has ever been ready."""
        return any(endpoint.was_ready for endpoint in self.endpoints)

    def close(self) -> None:
        """Stop observing the endpoints, which may serve another table's shard."""
        for endpoint in self.endpoints:
            endpoint.observers.remove(self._on_state_change)
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        self._parked.clear()  # what is not done ends at its deadline; a lookup knows its replicas, which know it
        self._parked_keys = 0

    def submit(self, lookup: PendingLookup) -> None:
        """Begin the first try of ``lookup``."""
        ready = self._ready
        if len(ready) == 1:
            endpoint: Endpoint | None = ready[0]
        else:
            endpoint = self._choose(ready)
        if endpoint is None:
            self._park(lookup, None)
        elif endpoint.submit(lookup):
            lookup.first_target = endpoint
        else:
            self._submit_to_least_busy(lookup, ready, endpoint)

    def retry(self, lookup: PendingLookup, problem: Problem) -> None:
        """Begin the second try of ``lookup``, whose first failed with ``problem``."""
        endpoint: LookupTarget | None = self._choose_endpoint(lookup)
        if endpoint is None and problem.reason == "Damaged":
            lookup.give_up(problem)  # the same file would be read again
            return
        if endpoint is None and lookup.first_target in self._ready:
            endpoint = lookup.first_target
        if endpoint is None:
            self._park(lookup, problem)
            return
        self.counters[_RETRIES] += lookup.key_count
        if endpoint.submit(lookup):
            lookup.second_target = endpoint
        else:
            lookup.give_up(problem)

    def try_another(self, lookup: PendingLookup, *, is_hedge: bool) -> None:
        """Begin the second try of ``lookup``, whose first goes on, if another replica is ready.

        A second try that is no hedge begins only if it is likely to be faster: to ask each replica for every key while
        all are busy would overload them.
        """
        first = lookup.first_target
        if lookup.is_done or lookup.is_retried or not lookup.open_tries or first is None:
            return
        endpoint = self._choose_endpoint(lookup)
        if endpoint is None:
            return
        stalled = first.answered_at < lookup.started_at
        if (is_hedge or stalled or endpoint.outstanding < first.outstanding) and endpoint.submit(lookup):
            lookup.is_retried = True
            lookup.second_target = endpoint
            self.counters[_HEDGES if is_hedge else _RETRIES] += lookup.key_count

    @property
    def slice_keys(self) -> int:
        """How many keys of a request stay together, by the values that came lately."""
        return self._ready[0].slice_keys if self._ready else SLICE_KEYS

    def describe(self) -> list[dict[str, Any]]:
        """Of each endpoint its address, state and why it is not ready."""
        return [{"endpoint": str(e.address), "state": e.state, "why": e.last_failure} for e in self.endpoints]

    def explain_absence(self) -> str:
        """Of the first endpoints why each is not ready, and how many more there are."""
        whys = [f"{e.address}: {e.last_failure or e.state}" for e in self.endpoints[:_MAX_NAMED_ENDPOINTS]]
        more = len(self.endpoints) - len(whys)
        return f"{'; '.join(whys)}{f'; and {more} more' if more else ''}"

    def _choose(self, endpoints: Sequence[Endpoint]) -> Endpoint | None:
        """The less busy of two at random: near to the least busy of all, and no herd runs to one."""
        count = len(endpoints)
        if count < 2:
            return endpoints[0] if endpoints else None
        first = int(self._random() * count)
        second = (first + 1 + int(self._random() * (count - 1))) % count
        left, right = endpoints[first], endpoints[second]
        return left if left.outstanding <= right.outstanding else right

    def _choose_endpoint(self, lookup: PendingLookup) -> Endpoint | None:
        """A ready replica that has not been asked; on another host if there is one, since hosts die whole."""
        tried = lookup.first_target
        others = [endpoint for endpoint in self._ready if endpoint is not tried]
        if tried:
            elsewhere = [endpoint for endpoint in others if endpoint.address.host != tried.address.host]
            others = elsewhere or others
        return self._choose(others)

    def _submit_to_least_busy(self, lookup: PendingLookup, ready: Sequence[Endpoint], first_choice: Endpoint) -> None:
        """Submit ``lookup`` to the least busy endpoint, as the queue of ``first_choice`` is full, or give it up."""
        least_busy = min(ready, key=lambda endpoint: endpoint.outstanding)
        if least_busy.submit(lookup):
            lookup.first_target = least_busy
            return
        self.counters[_QUEUE_FULL] += lookup.key_count
        limit = self._settings.max_queued_keys
        finding = f"the queue is full ({limit} keys); come back later"
        lookup.give_up(make_endpoint_problem("QueueFull", self.number, first_choice.address, finding))

    def _park(self, lookup: PendingLookup, problem: Problem | None) -> None:
        """Have ``lookup`` wait for an endpoint if one was ready until a moment ago and there is room, or give it up."""
        last = max(endpoint.broken_at for endpoint in self.endpoints)
        recent = last + self._settings.deadline_seconds > self._loop.time()
        if recent and self._has_room():
            self._parked.append((lookup, lookup.key_count))
            self._parked_keys += lookup.key_count
            if self._forget_timer is None:
                self._forget_later()
        else:
            lookup.give_up(problem or self._unreachable())

    def _has_room(self) -> bool:
        """Whether another lookup may wait. Those that are done, and stand behind one that is not, are sought when there
        is no room otherwise, and not for each that comes."""
        self._forget_done()
        limit, now = self._settings.max_queued_keys, self._loop.time()
        if self._parked_keys >= limit and now >= self._compacted_at + _COMPACT_SECONDS:
            self._compacted_at = now
            self._parked = deque(parked for parked in self._parked if not parked[0].is_done)
            self._parked_keys = sum(key_count for _, key_count in self._parked)
        return self._parked_keys < limit

    def _forget_later(self) -> None:
        """Look after each deadline for what is done by then: no endpoint may come for hours, and no other lookup."""
        self._forget_done()
        seconds = self._settings.deadline_seconds
        self._forget_timer = self._loop.call_later(seconds, self._forget_later) if self._parked else None

    def _forget_done(self) -> None:
        parked = self._parked
        while parked and parked[0][0].is_done:
            self._parked_keys -= parked.popleft()[1]

    def _unreachable(self) -> Problem:
        return Problem("Unreachable", f"shard {self.number} cannot be reached: {self.explain_absence()}", self.number)

    def _on_state_change(self) -> None:
        """Know which endpoints are ready, and submit what waited for one."""
        self._ready = [endpoint for endpoint in self.endpoints if endpoint.state is LinkState.READY]
        if self._ready and self._parked:
            parked, self._parked, self._parked_keys = self._parked, deque(), 0
            for lookup, _ in parked:
                if not lookup.is_done:
                    self.counters[_RETRIES] += lookup.key_count
                    self._resubmit(lookup)

    def _resubmit(self, lookup: PendingLookup) -> None:
        try:
            self.submit(lookup)
        except Exception:  # whatever it is, it must not cost the others their turn
            log.exception("a waiter failed")
