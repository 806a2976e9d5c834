"""The versions of routing tables that there are: claimed in status, written to the ConfigMap, taken up by routers."""

from __future__ import annotations

from datetime import datetime

from lookupdb_operator.model import Observed
from lookupdb_operator.status import DatasetStatus


def known_table_version(status: DatasetStatus) -> int:
    """The highest version of a routing table that ``status`` knows of, whether or not it knows what that references."""
    return max(status.last_table, 0 if status.table is None else status.table.version)


def newest_table_version(observed: Observed) -> int:
    """The highest version of a routing table that anyone has: 0 for none. More than status knows of, when that was
    set back: a router takes up none but a newer one."""
    return max((written_table_version(observed), *(report.newest for report in observed.routers.values())))


def next_table_version(status: DatasetStatus, observed: Observed, now: datetime) -> int:
    """The version of the next routing table: above any that anyone has. When status and the ConfigMap are lost, and
    routers were not asked, nobody knows which that is. Routers that have this very version would be taken to confirm a
    table that they ignore: seconds since 1970 are more than there were tables."""
    newest = max(known_table_version(status), newest_table_version(observed))
    if not newest and any(rollout.referenced_replicas for rollout in status.rollouts):
        return int(now.timestamp())
    return newest + 1


def written_table_version(observed: Observed) -> int:
    """The version of the routing table that is written: 0 for none."""
    return max((existing.table_version for existing in observed.other_objects), default=0)
