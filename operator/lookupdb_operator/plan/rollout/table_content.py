"""What the newest routing table references: the rollout that routers answer from, those whose other shards it replaces
one after the other, and a candidate beside it. A table is written when any of these changes, or its number of servers
does; and as it is, under the next version, when routers would not take it up else.

Enough of the servers that it adds are ready then (``rollouts``). Of a candidate, nothing is waited for any more once it
is referenced: routers answer from the active generation whatever becomes of it.

Its ConfigMap stays as long as the dataset, whatever status remembers: routers that start answer from it.
``objects.find_garbage`` never lists it; Kubernetes deletes it with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator

from lookupdb_operator.plan import clock
from lookupdb_operator.plan.generation import promotion, rollback
from lookupdb_operator.plan.rollout import candidate, references, rollouts, shard_windows, table_conflicts
from lookupdb_operator.plan.rollout.table_versions import (
    is_edited,
    newest_read_version,
    newest_table_version,
    next_table_version,
)
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.shard_ranges import ALL, format_shards
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TablePart, TableStatus


def decide_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the routing table that should be written by now, its version claimed; and with the rollout that
    waits for promotion."""
    status = candidate.with_candidate(status, situation)
    status = _with_next_version(_with_desired_table(status, situation), situation)
    return candidate.without_routed_candidate(status)


def _with_desired_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    active = _desired_active(status, situation)
    if active is None:
        return candidate.with_offered_replicas(status, None, situation)
    desired = replace(active, candidate=candidate.table_candidate(status, active, situation))
    status = candidate.with_offered_replicas(status, desired, situation)
    return status if desired == status.table else _with_table(status, desired, situation)


def _desired_active(status: DatasetStatus, situation: Situation) -> TableStatus | None:
    """The present table with another rollout, more shards of it, or another number of servers of what is active; as it
    is when nothing changes. None while nothing can be active."""
    table, desired = status.table, situation.desired
    target = rollouts.target_rollout(status, situation)
    following = None if target is None else _following_table(target, status, situation)
    if following is not None or table is None:
        return following
    # Fewer servers are referenced first and stopped later, more are started first and referenced later.
    return replace(table, replicas=_reachable_replicas(table, desired.replicas, status, situation))


def _following_table(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> TableStatus | None:
    """The table that routes all shards that ``target`` has servers of to it, from other rollouts or from none; None
    while it may not."""
    desired, generation = situation.desired, status.find_generation(target.generation)
    if generation is None or desired.is_suspended or not references.pending_shards(target, status):
        return None
    if not promotion.may_take_effect(target.generation, status, desired):
        return None
    if shard_windows.window_size(generation, status, situation) == generation.shards and target.shard_ranges != ALL:
        return None  # all at once, and it has not all yet
    parts = tuple(_list_parts(target, status))
    stays = parts or references.routed_shards(target, status)
    replicas = desired.replicas
    if status.table is not None and stays:
        replicas = _reachable_replicas(status.table, replicas, status, situation)
    if not rollouts.is_servable(target, replicas, status, situation):
        return None
    workers = target.workers or desired.workers
    return TableStatus(
        0, target.rollout, target.generation, replicas, workers, "", parts=parts, password_key=target.password_key
    )


def _list_parts(target: RolloutStatus, status: DatasetStatus) -> Iterator[TablePart]:
    """What of the present table stays beside ``target``."""
    table, held = status.table, references.held_shards(target, status)
    if table is None or target.shard_ranges == ALL:
        return
    workers = {part.rollout: part.workers for part in table.parts} | {table.rollout: table.workers}
    for rollout in references.serving_rollouts(status):
        shards = references.routed_shards(rollout, status) - held
        if rollout.rollout != target.rollout and shards:
            yield TablePart(
                rollout.rollout,
                rollout.generation,
                workers[rollout.rollout],
                format_shards(shards),
                password_key=rollout.password_key,
            )


def _reachable_replicas(table: TableStatus, replicas: int, status: DatasetStatus, situation: Situation) -> int:
    """``replicas`` if as many of what ``table`` references are ready, else as many as it references now."""
    if replicas <= table.replicas or _is_servable(replicas, status, situation):
        return replicas
    return table.replicas


def _is_servable(replicas: int, status: DatasetStatus, situation: Situation) -> bool:
    """Whether routers may be sent to ``replicas`` servers of each shard that the present table references."""
    serving = references.serving_rollouts(status)
    return bool(serving) and all(
        rollouts.is_servable(rollout, replicas, status, situation, references.routed_shards(rollout, status))
        for rollout in serving
    )


def _with_next_version(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with its routing table, as it is, under another version, when routers would not take it up else: one
    above any that a router has, after a cluster was set back; or the next one, when its own has, or had, other content
    (``table_conflicts``)."""
    table = status.table
    if table is None or not _needs_next_version(table, status, situation):
        return table_conflicts.note_taken_version(status, situation)
    renewed = replace(
        table,
        version=next_table_version(status, situation.observed, situation.now),
        written_at=clock.format_moment(situation.now),
        confirmed_at="",
    )
    return replace(status, table=renewed, last_table=renewed.version)


def _needs_next_version(table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    observed = situation.observed
    # What somebody has edited may say any version: what there is of it is looked into.
    find_newest = newest_read_version if is_edited(observed) else newest_table_version
    if find_newest(observed) > table.version and _is_servable(table.replicas, status, situation):
        return True
    # Else routers go on with a newer table, which has other servers perhaps: status was set back. But what has another
    # content now than it was written with has another version, too.
    return table_conflicts.is_version_taken(status, situation)


def _with_table(status: DatasetStatus, desired: TableStatus, situation: Situation) -> DatasetStatus:
    table = replace(
        desired,
        version=next_table_version(status, situation.observed, situation.now),
        written_at=clock.format_moment(situation.now),
        confirmed_at="",
    )
    referenced = tuple(_with_referenced_replicas(rollout, table) for rollout in status.rollouts)
    pinned = status.find_generation(situation.desired.pinned_generation)
    if pinned is not None and pinned.generation == table.generation:
        status = replace(promotion.without_rejection(status, pinned), rolled_back=rollback.with_marks(status, pinned))
    return replace(status, table=table, last_table=table.version, rollouts=referenced)


def _with_referenced_replicas(rollout: RolloutStatus, table: TableStatus) -> RolloutStatus:
    if not references.is_in_table(rollout.rollout, table):
        return rollout
    # What was promoted is referenced as a candidate by older tables.
    replicas = max(rollout.minimum_replicas, table.replicas)
    is_target = rollout.rollout == table.rollout
    window = "" if is_target else rollout.window
    return replace(rollout, referenced_replicas=replicas, offered_replicas=0, kept_since="", window=window)
