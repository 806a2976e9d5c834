"""A batch in flight: which keys were asked for whom, and who gets what of the reply."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from hiredis import ReplyError

from lookupdb.route.budget import RouterBudget
from lookupdb.route.lookups.batch_keys import ReplyValues
from lookupdb.route.lookups.pending import PendingLookup, fail_tries
from lookupdb.route.lookups.waiters import Problem

log = logging.getLogger(__name__)


class ShardBatch:
    """``key_count`` keys of ``lookups``, in this order, sent at ``sent_at`` (the loop's time)."""

    __slots__ = ("_arrived", "_starts", "held_bytes", "key_count", "lookups", "sent_at")

    def __init__(self, lookups: list[PendingLookup], key_count: int, sent_at: float) -> None:
        self.lookups = lookups
        self.key_count = key_count
        self.sent_at = sent_at
        self._starts: list[int] | None = None
        """Of each lookup, the index of its first key; only a large reply needs them."""
        self._arrived: dict[PendingLookup, int] = {}
        self.held_bytes = 0
        """Taken of the budget for values, until ``release``."""

    def accept(self, index: int, size: int, budget: RouterBudget) -> bool:
        """Whether the value of key ``index``, of ``size`` bytes, is to be kept. It is counted if so."""
        if self._starts is None:
            self._starts = [0, *accumulate(lookup.key_count for lookup in self.lookups[:-1])]
        lookup = self.lookups[bisect_right(self._starts, index) - 1]
        arrived = self._arrived[lookup] = self._arrived.get(lookup, 0) + size
        if lookup.is_done or not lookup.may_receive(arrived, budget):
            return False
        self.held_bytes += size  # until the whole reply is there, also if nobody waits for it any longer by then
        budget.take(size)
        return True

    def release(self, budget: RouterBudget) -> None:
        """Give back what was taken of the budget: the reply is delivered, or will not come."""
        if self.held_bytes:
            budget.release(self.held_bytes)
            self.held_bytes = 0

    def deliver(self, values: ReplyValues) -> tuple[int, int]:
        """Give each lookup its values; how many keys of lookups that were not done were found, and how many missing."""
        at = 0
        missing, found = values.count(None), len(values)
        for lookup in self.lookups:
            count = lookup.key_count
            if lookup.is_done:
                missing -= values[at : at + count].count(None)
                found -= count
            else:
                try:
                    lookup.deliver(values, at)
                except Exception:  # whatever it is, it must not cost the others their answer
                    log.exception("a waiter failed")
            at += count
        return found - missing, missing

    def deliver_readable(self, values: list[Any], problem: Callable[[str], Problem]) -> tuple[int, int]:
        """As ``deliver``, but some of ``values`` are errors, or SKIPPED where nobody waits any longer."""
        at = found = missing = 0
        for lookup in self.lookups:
            count = lookup.key_count
            own_values = values[at : at + count]
            errors = [value for value in own_values if type(value) is ReplyError]
            if not lookup.is_done:
                missing += own_values.count(None)
                found += count - own_values.count(None) - len(errors)
                try:
                    if errors:
                        lookup.deliver_readable(values, at, problem(str(errors[0])[:300]))
                    else:
                        lookup.deliver(values, at)
                except Exception:  # as above
                    log.exception("a waiter failed")
            at += count
        return found, missing

    def fail(self, problem: Problem) -> None:
        """Fail the try of all lookups."""
        fail_tries(self.lookups, problem)
