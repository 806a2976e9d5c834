"""What the newest routing table references: the rollout that routers answer from, and a candidate beside it. A table is
written when either changes, or its number of servers does.

Enough of the servers that it adds are ready then (``rollouts``). Of a candidate, nothing is waited for any more once it
is referenced: routers answer from the active generation whatever becomes of it.
"""

from __future__ import annotations

from dataclasses import replace

from lookupdb_operator.plan import candidate, clock, promotion, rollback, rollouts
from lookupdb_operator.plan.cutover import newest_table_version
from lookupdb_operator.plan.recovery import known_table_version
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus


def decide_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the routing table that should be written by now, its version claimed; and with the rollout that
    waits for promotion."""
    status = candidate.with_candidate(status, situation)
    return _with_newest_version(_with_desired_table(status, situation), situation)


def _with_desired_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    active = _desired_active(status, situation)
    if active is None:
        return candidate.with_offered_replicas(status, None, situation)
    desired = replace(active, candidate=candidate.table_candidate(status, active, situation))
    status = candidate.with_offered_replicas(status, desired, situation)
    return status if desired == status.table else _with_table(status, desired, situation)


def _desired_active(status: DatasetStatus, situation: Situation) -> TableStatus | None:
    """The present table with another rollout, or another number of servers, of what is active; as it is when neither
    changes. None while nothing can be active."""
    table, desired = status.table, situation.desired
    target = rollouts.target_rollout(status, situation)
    if target is not None and _may_follow(target, status, situation):
        return TableStatus(
            0, target.rollout, target.generation, desired.replicas, target.workers or desired.workers, ""
        )
    current = None if table is None else status.find_rollout(table.rollout)
    if table is None or current is None or desired.replicas == table.replicas:
        return table
    # Fewer servers are referenced first and stopped later, more are started first and referenced later.
    if desired.replicas < table.replicas or rollouts.is_servable(current, desired.replicas, status, situation):
        return replace(table, replicas=desired.replicas)
    return table


def _may_follow(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether routers may be sent to ``target`` from another rollout, or from none."""
    if status.table is not None and status.table.rollout == target.rollout:
        return False
    may_take_effect = promotion.may_take_effect(target.generation, status, situation.desired)
    return may_take_effect and rollouts.is_servable(target, situation.desired.replicas, status, situation)


def _with_newest_version(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with its routing table under a version above any that a router has: after a cluster was set back,
    routers would not take it up else. What it references must be ready: they answer from a newer table meanwhile."""
    table, newest = status.table, newest_table_version(situation.observed)
    if table is None or newest <= table.version:
        return status
    rollout = status.find_rollout(table.rollout)
    if rollout is None or not rollouts.is_servable(rollout, table.replicas, status, situation):
        return status
    written_at = clock.format_moment(situation.now)
    renewed = replace(table, version=newest + 1, written_at=written_at, confirmed_at="")
    return replace(status, table=renewed, last_table=renewed.version)


def _with_table(status: DatasetStatus, desired: TableStatus, situation: Situation) -> DatasetStatus:
    table = replace(
        desired,
        version=max(known_table_version(status), newest_table_version(situation.observed)) + 1,
        written_at=clock.format_moment(situation.now),
        confirmed_at="",
    )
    referenced = tuple(_with_referenced_replicas(rollout, table) for rollout in status.rollouts)
    pinned = status.find_generation(situation.desired.pinned_generation)
    if pinned is not None and pinned.generation == table.generation:
        status = replace(promotion.without_rejection(status, pinned), rolled_back=rollback.with_marks(status, pinned))
    return replace(status, table=table, last_table=table.version, rollouts=referenced)


def _with_referenced_replicas(rollout: RolloutStatus, table: TableStatus) -> RolloutStatus:
    if rollout.rollout != table.rollout:
        return rollout
    # What was promoted is referenced as a candidate by older tables.
    replicas = max(rollout.minimum_replicas, table.replicas)
    return replace(rollout, referenced_replicas=replicas, offered_replicas=0, kept_since="")
