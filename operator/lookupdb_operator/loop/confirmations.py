"""How long this process has known that a dataset's routing table is confirmed, by a clock that nobody sets.

Servers that only an older table references are stopped once their drain time has passed. By the clock on the wall it
may seem to have passed at once: somebody sets that clock forward, or another operator, whose clock is behind, has
written when it began. So a drain counts only the seconds that this process has seen pass. An operator that starts
begins each drain anew: it lasts a little longer then, and never less.

So does a router that is seen to answer from an older table meanwhile: lookups that it has just begun end, too. This is
known here, and not only from status, because the write of a status may be refused. One that comes up, or comes back,
may have answered from an older table for less than the time between two looks. That counts for as long as an older
table may be mounted, so that routers that come back one after the other hold no drain up for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lookupdb_operator.model import Observed
from lookupdb_operator.plan.rollout import references, router_reports
from lookupdb_operator.watch.cache import Key

_Mark = tuple[str, int, str]
"""A dataset's uid, its table's version, and when that was confirmed, as status says it."""


@dataclass(frozen=True, slots=True)
class _Confirmation:
    mark: _Mark
    first: float
    """When it began, or a router was last seen behind."""
    since: float
    """From when on seconds count: the same, or when another router was first seen to have the table."""
    routers: frozenset[str] | None
    """Those that had the table when they were last asked, by uid; None: they were not asked yet."""


class Confirmations:
    """The moment from which on each dataset was seen with the confirmed table that it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds that only grow."""
        self._clock = clock
        self._confirmations: dict[Key, _Confirmation] = {}

    def seconds_confirmed(self, observed: Observed) -> float:
        """For how long the dataset has been seen with the table that it has, confirmed, and no router behind or just
        back; 0 when that is not confirmed. To be called at each look: a table that is opened again begins anew."""
        dataset, table = observed.dataset, observed.dataset.status.table
        if table is None or not table.confirmed_at:
            self.forget(dataset.key)
            return 0.0
        mark = dataset.uid, table.version, table.confirmed_at
        known, now = self._confirmations.get(dataset.key), self._clock()
        # By versions alone: a router that has other content under this one opens the table again, which begins anew.
        routers = router_reports.find_confirming_routers(observed, table, "") if observed.routers else None
        if known is None or known.mark != mark or router_reports.is_router_behind(observed, table):
            known = _Confirmation(mark, now, now, routers)
        has_another = known.routers is not None and not (routers or frozenset()) <= known.routers
        since = now if has_another and now - known.first < references.STALE_MOUNT_SECONDS else known.since
        routers = known.routers if routers is None else routers
        self._confirmations[dataset.key] = _Confirmation(mark, known.first, since, routers)
        return now - since

    def forget(self, key: Key) -> None:
        """The dataset ``key`` is gone, or its table is not confirmed."""
        self._confirmations.pop(key, None)
