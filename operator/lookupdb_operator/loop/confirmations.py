"""How long this process has known that a dataset's routing table is confirmed, by a clock that nobody sets.

Servers that only an older table references are stopped once their drain time has passed. By the clock on the wall it
may seem to have passed at once: somebody sets that clock forward, or another operator, whose clock is behind, has
written when it began. So a drain counts only the seconds that this process has seen pass. An operator that starts
begins each drain anew: it lasts a little longer then, and never less.

So does a router that is seen to answer from an older table meanwhile: lookups that it has just begun end, too. This is
known here, and not only from status, because the write of a status may be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lookupdb_operator.model import Observed
from lookupdb_operator.plan.rollout import cutover
from lookupdb_operator.watch.cache import Key

_Mark = tuple[str, int, str]
"""A dataset's uid, its table's version, and when that was confirmed, as status says it."""


@dataclass(frozen=True, slots=True)
class _Confirmation:
    mark: _Mark
    since: float


class Confirmations:
    """The moment from which on each dataset was seen with the confirmed table that it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._confirmations: dict[Key, _Confirmation] = {}

    def seconds_confirmed(self, observed: Observed) -> float:
        """For how long the dataset has been seen with the table that it has, confirmed, and no router behind; 0 when
        that is not confirmed. To be called at each look: a table that is opened again begins anew."""
        dataset, table = observed.dataset, observed.dataset.status.table
        if table is None or not table.confirmed_at:
            self.forget(dataset.key)
            return 0.0
        mark = dataset.uid, table.version, table.confirmed_at
        known, now = self._confirmations.get(dataset.key), self._clock()
        begins = known is None or known.mark != mark or cutover.is_router_behind(observed, table)
        since = now if known is None or begins else known.since
        self._confirmations[dataset.key] = _Confirmation(mark, since)
        return now - since

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone, or its table is not confirmed."""
        self._confirmations.pop(key, None)
