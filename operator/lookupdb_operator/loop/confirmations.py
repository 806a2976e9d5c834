"""How long this process has known that a dataset's routing table is confirmed, by a clock that nobody sets.

Servers that only an older table references are stopped once their drain time has passed. By the clock on the wall it
may seem to have passed at once: somebody sets that clock forward, or another operator, whose clock is behind, has
written when it began. So a drain counts only the seconds that this process has seen pass. An operator that starts
begins each drain anew: it lasts a little longer then, and never less.
"""

from __future__ import annotations

from collections.abc import Callable

from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.watch.cache import Key

_Mark = tuple[str, int, str]
"""A dataset's uid, its table's version, and when that was confirmed, as status says it."""


class Confirmations:
    """The moment at which each dataset was first seen with the confirmed table that it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._first_seen: dict[Key, tuple[_Mark, float]] = {}

    def seconds_confirmed(self, dataset: ObservedDataset) -> float:
        """For how long ``dataset`` has been seen with the table that it has, confirmed; 0 when that is not confirmed.
        To be called at each look: a table that is opened again begins anew."""
        table = dataset.status.table
        if table is None or not table.confirmed_at:
            self.forget(dataset.key)
            return 0.0
        mark = dataset.uid, table.version, table.confirmed_at
        known = self._first_seen.get(dataset.key)
        if known is None or known[0] != mark:
            known = self._first_seen[dataset.key] = mark, self._clock()
        return self._clock() - known[1]

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone, or its table is not confirmed."""
        self._first_seen.pop(key, None)
