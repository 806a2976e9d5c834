"""One shard's replicas: they choose an endpoint for each try, and park lookups while none is ready.

An ``Endpoint`` has a lane for small work and, once needed, one for large work. Slices with many expected bytes take the
large lane, so that lookups of small values do not wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lookupdb.router.counters import INDEX
from lookupdb.router.lane import LARGE_SLICE_BYTES, SLICE_KEYS, EndpointSettings, Lane
from lookupdb.router.link import ShardIdentity
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
from lookupdb.router.server_connection import ServerAddress

CONNECTIONS_AN_ENDPOINT: Final = 2
"""The most connections per endpoint, one for each lane."""


class Endpoint:
    """The endpoint at ``address``, which must prove to be ``identity``. Connected from ``link.start`` to ``close``."""

    def __init__(self, address: ServerAddress, identity: ShardIdentity, settings: EndpointSettings) -> None:
        self.address = address
        self.identity = identity
        self.observers: list[Callable[[], None]] = []
        """Called when the endpoint becomes ready or unready, or unready for another reason."""
        self._small = Lane(address, identity, settings, "small", self._on_state_change)
        self._large = Lane(address, identity, settings, "large", lambda: None)
        self._submit_small = self._small.submit
        self.link = self._small.link
        """The link of small work, without which the endpoint is not used."""

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch. Return False if the queue is full. Only for a ready endpoint."""
        if type(lookup) is not ShardSlice:
            return self._submit_small(lookup)
        small, large, count = self._small, self._large, lookup.key_count
        if count <= LARGE_SLICE_KEYS and not lookup.gather.is_large:
            most = LARGE_SLICE_BYTES / count
            if small.batch_size.value_bytes <= most and large.batch_size.value_bytes <= most:
                return small.submit(lookup)
        if large.is_usable:
            return large.submit(lookup)
        large.link.start()  # for the next large slices
        return small.submit(lookup)

    @property
    def outstanding(self) -> int:
        """The number of keys queued and in flight."""
        return self._small.outstanding + self._large.outstanding

    @property
    def slice_keys(self) -> int:
        """The number of keys of a request that stay together."""
        small, large = self._small.batch_size.slice_keys, self._large.batch_size.slice_keys
        return small if small < large else large

    @property
    def answered_at(self) -> float:
        """Event loop time of the last answer."""
        return max(self._small.answered_at, self._large.answered_at)

    @property
    def is_silent(self) -> bool:
        """Return whether a batch has waited for the whole deadline and none was answered since. Such an endpoint may be
        ready: a server whose storage hangs still answers the proof."""
        return self.answered_at < max(self._small.stalled_at, self._large.stalled_at)

    def close(self) -> None:
        """Close the connections and fail the open tries."""
        self._small.close()
        self._large.close()

    def _on_state_change(self) -> None:
        for observer in tuple(self.observers):
            observer()
        if not self.link.is_ready:
            self._large.stop_waiting(self.link.last_failure or "not ready")


log = logging.getLogger(__name__)

_RETRIES: Final = INDEX["retries"]
_HEDGES: Final = INDEX["hedges"]
_QUEUE_FULL: Final = INDEX["queue_full"]
_MAX_NAMED_ENDPOINTS: Final = 3
"""Number of endpoints that a problem names; /status names all."""


class ShardReplicas:
    """One shard of one generation in one routing table. Call ``close()`` when the table is retired."""

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
        self._now = asyncio.get_running_loop().time
        self._ready: list[Endpoint] = []
        self._parked: deque[tuple[PendingLookup, int]] = deque()
        """Lookups that wait for an endpoint to return, each with its number of keys. So a restart delays answers but
        loses none."""
        self._parked_keys = 0
        for endpoint in self.endpoints:
            endpoint.observers.append(self._on_state_change)
        self._on_state_change()

    @property
    def is_proven(self) -> bool:
        """Return whether an endpoint is ready."""
        return bool(self._ready)

    @property
    def was_proven(self) -> bool:
        """Return whether an endpoint has ever been ready."""
        return any(endpoint.link.was_ready for endpoint in self.endpoints)

    def close(self) -> None:
        """Stop observing the endpoints, which may serve another table."""
        for endpoint in self.endpoints:
            endpoint.observers.remove(self._on_state_change)
        self._parked.clear()  # open lookups end at their deadlines; clearing breaks a reference cycle
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
        else:  # its queue is full
            least_busy = min(ready, key=lambda endpoint: endpoint.outstanding)
            if least_busy.submit(lookup):
                lookup.first_target = least_busy
                return
            self.counters[_QUEUE_FULL] += lookup.key_count
            finding = f"the queue is full ({self._settings.max_queued_keys} keys); retry later"
            lookup.give_up(make_endpoint_problem("QueueFull", self.number, endpoint.address, finding))

    def retry(self, lookup: PendingLookup, problem: Problem) -> None:
        """Begin the second try of ``lookup`` after the first failed with ``problem``."""
        endpoint: LookupTarget | None = self._choose_endpoint(lookup)
        if endpoint is None and problem.reason == "Damaged":
            lookup.give_up(problem)  # another try would read the same file
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
        """Begin the second try of ``lookup`` while the first is open, if another replica is ready.

        Without ``is_hedge``, it begins only if it is likely to be faster: asking every replica for every key while all
        are busy would overload them.
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
        """The number of keys of a request that stay together, by recent values."""
        return self._ready[0].slice_keys if self._ready else SLICE_KEYS

    def explain_absence(self) -> str:
        """Return why the first endpoints are not ready, and the number of others."""
        whys = [
            f"{e.address}: {e.link.last_failure or 'not connected yet'}" for e in self.endpoints[:_MAX_NAMED_ENDPOINTS]
        ]
        more = len(self.endpoints) - len(whys)
        return f"{'; '.join(whys)}{f'; and {more} more' if more else ''}"

    def _choose(self, endpoints: Sequence[Endpoint]) -> Endpoint | None:
        """Return the less busy of two random endpoints: all routers together would overload the least busy of all."""
        count = len(endpoints)
        if count < 2:
            return endpoints[0] if endpoints else None
        first = int(self._random() * count)
        second = (first + 1 + int(self._random() * (count - 1))) % count
        left, right = endpoints[first], endpoints[second]
        return left if left.outstanding <= right.outstanding else right

    def _choose_endpoint(self, lookup: PendingLookup) -> Endpoint | None:
        """Return a ready replica that was not tried, if possible on another host: a whole host may fail."""
        tried = lookup.first_target
        others = [endpoint for endpoint in self._ready if endpoint is not tried]
        if tried:
            elsewhere = [endpoint for endpoint in others if endpoint.address.host != tried.address.host]
            others = elsewhere or others
        return self._choose(others)

    def _park(self, lookup: PendingLookup, problem: Problem | None) -> None:
        """Queue ``lookup`` until an endpoint returns. Give up if none was ready recently, or there is no room."""
        limit, now = self._settings.max_queued_keys, self._now()
        parked = self._parked
        while parked and parked[0][0].is_done:
            self._parked_keys -= parked.popleft()[1]
        last = max(endpoint.link.broken_at for endpoint in self.endpoints)
        if last + self._settings.deadline_seconds > now and self._parked_keys < limit:
            parked.append((lookup, lookup.key_count))
            self._parked_keys += lookup.key_count
        else:
            detail = f"shard {self.number} cannot be reached: {self.explain_absence()}"
            lookup.give_up(problem or Problem("Unreachable", detail, self.number))

    def _on_state_change(self) -> None:
        """Update the ready endpoints, and submit parked lookups."""
        self._ready = [endpoint for endpoint in self.endpoints if endpoint.link.is_ready]
        if self._ready and self._parked:
            parked, self._parked, self._parked_keys = self._parked, deque(), 0
            for lookup, _ in parked:
                if not lookup.is_done:
                    self.counters[_RETRIES] += lookup.key_count
                    try:
                        self.submit(lookup)
                    except Exception:  # an error of one lookup must not stop the others
                        log.exception("a waiter failed")
