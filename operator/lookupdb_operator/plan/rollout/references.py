"""Which servers routing tables reference: the newest one, and any that a router may still answer from. Of a rollout,
the shards and the number of servers of each. Nothing is decided here.
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator.model import Observed
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.generation import generations
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.shard_ranges import parse_shards, select_shards
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus

CONFIRMATION_SECONDS: Final = 60.0
"""Seconds that routers have to take up a routing table. A kubelet that was not nudged syncs ConfigMaps every minute or
so."""
MOST_REPLICAS: Final = 64
"""Of a shard: the maximum of the CRD."""
STALE_MOUNT_SECONDS: Final = 120.0
"""Seconds for which a container that starts anew may find an older routing table mounted: its kubelet syncs every
minute, from a cache that may be another minute old."""


def held_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that ``rollout`` has servers of, or is about to have."""
    return frozenset(select_shards(rollout.shard_ranges, generations.count_shards(status, rollout)))


def routed_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that the newest routing table routes to ``rollout``."""
    table = status.table
    if table is None:
        return frozenset()
    of_parts = {part.rollout: parse_shards(part.shard_ranges) for part in table.parts}
    if table.rollout != rollout.rollout:
        return of_parts.get(rollout.rollout, frozenset())
    return frozenset(range(generations.count_shards(status, rollout))).difference(*of_parts.values())


def referenced_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that any routing table which may still be in effect routes to ``rollout``, but as a candidate."""
    if not rollout.referenced_replicas:
        return frozenset()
    return held_shards(rollout, status) - parse_shards(rollout.window)


def pending_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards that ``rollout`` has servers of, and that the newest routing table does not route to it."""
    return held_shards(rollout, status) - routed_shards(rollout, status)


def count_replicas(rollout: str, observed: Observed) -> int:
    """How many servers a shard of ``rollout`` are asked for in the cluster; no more than a status can hold, though
    somebody may have scaled a set beyond that."""
    counts = (shard_set.replicas for shard_set in observed.shard_sets if shard_set.rollout == rollout)
    return min(max(counts, default=0), MOST_REPLICAS)


def serving_rollouts(status: DatasetStatus) -> tuple[RolloutStatus, ...]:
    """The rollouts that the newest routing table routes shards to, oldest first."""
    return tuple(rollout for rollout in status.rollouts if is_in_table(rollout.rollout, status.table))


def is_in_table(rollout: str, table: TableStatus | None) -> bool:
    """Whether ``table`` routes shards to ``rollout``."""
    return table is not None and rollout in (table.rollout, *(part.rollout for part in table.parts))


def count_offered(status: DatasetStatus, rollout: RolloutStatus) -> int:
    """How many servers a shard of ``rollout`` stay because it waits for promotion."""
    if status.candidate is None or status.candidate.rollout != rollout.rollout:
        return 0
    offered = None if status.table is None else status.table.candidate
    return rollout.offered_replicas if offered is None else offered.replicas


def is_draining(status: DatasetStatus) -> bool:
    """Whether servers are kept that only an older table than the one in effect references."""
    table = status.table
    if table is None or not table.confirmed_at:
        return False
    return any(_is_drained_by(table, rollout, status) for rollout in status.rollouts)


def _is_drained_by(table: TableStatus, rollout: RolloutStatus, status: DatasetStatus) -> bool:
    is_routed_to = is_in_table(rollout.rollout, table)
    replicas = table.replicas if is_routed_to else 0
    if rollout.referenced_replicas > replicas or rollout.offered_replicas > count_offered(status, rollout):
        return True
    return is_routed_to and not referenced_shards(rollout, status) <= routed_shards(rollout, status)


def is_confirmation_overdue(status: DatasetStatus, situation: Situation) -> bool:
    """Whether a router takes too long to take up the routing table."""
    table = status.table
    if table is None or table.confirmed_at:
        return False
    return clock.seconds_until(table.written_at, CONFIRMATION_SECONDS, situation.now) == 0


def is_retirement_overdue(table: TableStatus, situation: Situation) -> bool:
    """Whether a router keeps the servers of an older table for long after the drain time of ``table``."""
    seconds = max(situation.desired.drain_seconds, situation.desired.router_drain_seconds, STALE_MOUNT_SECONDS)
    return clock.seconds_until(table.confirmed_at, seconds + CONFIRMATION_SECONDS, situation.now) == 0
