"""A pending lookup: keys of one shard that a request waits for, until they are answered or the deadline has passed.

It has at most two tries. The second begins when the first has failed, or is late while another replica is ready; the
first answer wins, and what comes after it is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol

from lookupdb.route.budget import RouterBudget
from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.batch_keys import ReplyValues
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.lookups.waiters import OVERLOADED, Problem, Waiter
from lookupdb.route.servers.address import ServerAddress

log = logging.getLogger(__name__)

KEYS_UNAVAILABLE: Final = INDEX["keys_unavailable"]
CLIENT_DEADLINE_KEYS_UNAVAILABLE: Final = INDEX["client_deadline_keys_unavailable"]
CANDIDATE_KEYS_UNAVAILABLE: Final = INDEX["candidate_keys_unavailable"]


class LookupTarget(Protocol):
    """An endpoint, as a lookup knows it."""

    address: ServerAddress

    @property
    def outstanding(self) -> int:
        """Keys queued and in flight."""

    @property
    def answered_at(self) -> float:
        """The loop's time of the last answer."""

    @property
    def is_silent(self) -> bool:
        """Whether it has let a batch wait for the whole deadline, and answered none since."""

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch; False when the queue is full."""


class LookupReplicas(Protocol):
    """The replicas of a shard, as a lookup knows them."""

    number: int
    """Of the shard."""
    generation: ServedGeneration
    """Which all of them have proven to serve."""
    counters: memoryview
    unavailable_counter: int
    """The place, in ``counters``, of keys of which nothing could be said."""
    client_deadline_counter: int
    """That of those for which a client did not wait for long enough."""

    def explain_absence(self) -> str:
        """Why no endpoint is ready."""

    def submit(self, lookup: PendingLookup) -> None:
        """Begin the first try of ``lookup``."""

    def retry(self, lookup: PendingLookup, problem: Problem) -> None:
        """Begin the second try of ``lookup``, whose first failed with ``problem``."""

    def try_another(self, lookup: PendingLookup, *, is_hedge: bool) -> None:
        """Begin the second try of ``lookup``, whose first goes on, if another replica is ready."""


class PendingLookup:
    """What SingleKey and ShardSlice share: which endpoints were asked, and what follows when a try fails."""

    __slots__ = ("first_target", "is_done", "is_retried", "open_tries", "replicas", "second_target", "started_at")
    key_count: int

    def __init__(self, replicas: LookupReplicas, started_at: float) -> None:
        self.replicas = replicas
        self.started_at = started_at
        """The event loop's time of the lookup."""
        self.is_done = False
        self.is_retried = False
        self.open_tries = 0
        """How many endpoints have it now."""
        self.first_target: LookupTarget | None = None
        """The endpoint of the first try."""
        self.second_target: LookupTarget | None = None
        """That of the second, which may be the same; None once it has failed while the first goes on."""

    @property
    def open_targets(self) -> tuple[LookupTarget, ...]:
        """The endpoints that have it now."""
        first, second = self.first_target, self.second_target
        targets = (first, second) if self.open_tries > 1 else (second or first,) if self.open_tries else ()
        return tuple(target for target in targets if target is not None)

    @property
    def packed(self) -> bytes:
        """The keys as RESP bulk strings, one after the other: so they stand in a batch."""
        raise NotImplementedError

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Take the values of an answered batch: this lookup's begin at index ``offset``. The lane counts them."""
        raise NotImplementedError

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """As ``deliver``, but some values could not be read: the try has failed for their keys, with ``problem``."""
        raise NotImplementedError

    def may_receive(self, size: int, budget: RouterBudget) -> bool:
        """Whether a value may be received with which ``size`` bytes have come for this lookup in this try. If not, the
        request is answered here and now."""
        if budget.has_room(size):
            return True
        self.give_up(OVERLOADED)
        return False

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter that nothing can be said, unless the lookup is answered already."""
        raise NotImplementedError

    def count_unavailable(self, problem: Problem, key_count: int) -> None:
        """Count keys that are given up with ``problem``."""
        replicas = self.replicas
        counter = replicas.client_deadline_counter if problem.is_of_client else replicas.unavailable_counter
        replicas.counters[counter] += key_count

    def fail_try(self, problem: Problem) -> None:
        """End a try. Begin the second if there was none; give the lookup up when no endpoint has it any more."""
        self.open_tries -= 1
        if self.is_done:
            return
        if self.open_tries:
            second = self.second_target
            if second is not None and second.address == problem.address:
                self.second_target = None
            return
        if self.is_retried:
            self.give_up(problem)
        else:
            self.is_retried = True
            self.replicas.retry(self, problem)


def fail_tries(lookups: Iterable[PendingLookup], problem: Problem) -> None:
    """End a try of each of ``lookups``. Raises nothing: what goes wrong with one must not cost the others theirs."""
    for lookup in lookups:
        try:
            lookup.fail_try(problem)
        except Exception:
            log.exception("a waiter failed")


class SingleKey(PendingLookup):
    """One key that one waiter waits for."""

    __slots__ = ("packed", "waiter")
    key_count = 1
    packed: bytes
    """The key as a RESP bulk string. No property: an attribute is read at half the cost."""

    def __init__(self, key: bytes, waiter: Waiter, replicas: LookupReplicas, started_at: float) -> None:
        # Not through super(): this is the hot path.
        self.replicas = replicas
        self.started_at = started_at
        self.is_done = self.is_retried = False
        self.open_tries = 0
        self.first_target = self.second_target = None
        self.packed = b"$%d\r\n%b\r\n" % (len(key), key)
        self.waiter = waiter

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Tell the waiter its value."""
        self.is_done = True
        value = values[offset]
        if value is None:
            self.waiter.missing(self.replicas.generation)
        else:
            self.waiter.found(value, self.replicas.generation)

    def deliver_readable(self, values: list[Any], offset: int, problem: Problem) -> None:
        """Fail the try: the one value could not be read."""
        self.fail_try(problem)

    def give_up(self, problem: Problem) -> None:
        """Tell the waiter."""
        if not self.is_done:
            self.is_done = True
            self.count_unavailable(problem, 1)
            self.waiter.unavailable(problem)
