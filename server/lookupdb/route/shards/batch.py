"""A batch in flight: which keys were asked for whom, and who gets what of the reply."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from hiredis import ReplyError

from lookupdb.route.budget import RouterBudget
from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.waiters import Problem

log = logging.getLogger(__name__)


class ShardBatch:
    """``keys`` keys of ``asks``, in this order, sent at ``sent`` (the loop's time)."""

    __slots__ = ("_arrived", "_starts", "asks", "counted", "keys", "sent")

    def __init__(self, asks: list[PendingLookup], keys: int, sent: float) -> None:
        self.asks = asks
        self.keys = keys
        self.sent = sent
        self._starts: list[int] | None = None
        """Of each ask, the index of its first key; only a large reply needs them."""
        self._arrived: dict[PendingLookup, int] = {}
        self.counted = 0
        """Bytes of values that are taken of the budget, to be released."""

    def accept(self, index: int, size: int, budget: RouterBudget) -> bool:
        """Whether the value of key ``index``, of ``size`` bytes, is to be kept. It is counted if so."""
        if self._starts is None:
            self._starts = [0, *accumulate(ask.count for ask in self.asks[:-1])]
        ask = self.asks[bisect_right(self._starts, index) - 1]
        arrived = self._arrived[ask] = self._arrived.get(ask, 0) + size
        if ask.done or not ask.may_receive(arrived, budget):
            return False
        self.counted += size  # until the whole reply is there, also if nobody waits for it any longer by then
        budget.take(size)
        return True

    def release(self, budget: RouterBudget) -> None:
        """The reply is handed out, or will not come."""
        if self.counted:
            budget.give(self.counted)
            self.counted = 0

    def hand_out(self, values: list[bytes | None]) -> tuple[int, int]:
        """Give each ask its values; how many keys were found and missing by those who still wanted to know."""
        at = 0
        missing, found = values.count(None), len(values)
        for ask in self.asks:
            count = ask.count
            if ask.done:
                missing -= values[at : at + count].count(None)
                found -= count
            else:
                try:
                    ask.take(values, at)
                except Exception:  # whatever it is, it must not cost the others their answer
                    log.exception("a waiter failed")
            at += count
        return found - missing, missing

    def hand_out_readable(self, values: list[Any], problem: Callable[[str], Problem]) -> tuple[int, int]:
        """As ``hand_out``, but some of ``values`` are errors, or SKIPPED where nobody waits any longer."""
        at = found = missing = 0
        for ask in self.asks:
            count = ask.count
            mine = values[at : at + count]
            errors = [value for value in mine if type(value) is ReplyError]
            if not ask.done:
                missing += mine.count(None)
                found += count - mine.count(None) - len(errors)
                try:
                    if errors:
                        ask.take_readable(values, at, problem(str(errors[0])[:300]))
                    else:
                        ask.take(values, at)
                except Exception:  # as above
                    log.exception("a waiter failed")
            at += count
        return found, missing

    def fail(self, problem: Problem) -> None:
        """The try has failed for all."""
        for ask in self.asks:
            ask.failed(problem)
