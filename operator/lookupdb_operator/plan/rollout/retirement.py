"""Servers that only older routing tables reference are retired: once every router has confirmed the newest one, and the
drain time has passed.
"""

from __future__ import annotations

from lookupdb_operator import names
from lookupdb_operator.plan.generation import generations
from lookupdb_operator.plan.rollout import cutover, previous, references, rollouts
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.shard_ranges import ALL, parse_shards, shorten_shards
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus


def retire_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without the rollouts, shards and servers that only older routing tables reference, once the drain time
    has passed; but the previous one may have to be kept, in place of the one that was. Every router must still report
    the newest table: one that was started meanwhile may have come up with an older one."""
    table = status.table
    if table is None or not references.is_draining(status) or cutover.remaining_drain(table, situation) > 0:
        return status
    if cutover.find_late_routers(status, situation):
        return status
    target = rollouts.target_rollout(status, situation)
    staying = tuple(
        _without_drained_servers(rollout, table, status)
        for rollout in status.rollouts
        if references.is_in_table(rollout.rollout, table)
        or rollout == target
        or references.count_offered(status, rollout)
    )
    drained = (
        rollout
        for rollout in status.rollouts
        if rollout.referenced_replicas
        and rollout != target
        and rollout.shard_ranges == ALL  # what is left of one that was replaced shard by shard is of no use
        and not references.is_in_table(rollout.rollout, table)
    )
    kept = previous.select_previous(drained, table, situation) or previous.find_kept(status)
    if kept is None or (target is not None and kept.rollout == target.rollout):
        return replace(status, rollouts=staying)
    ordered = sorted((*staying, kept), key=lambda rollout: names.read_number(rollout.rollout))
    return replace(status, rollouts=tuple(ordered))


def _without_drained_servers(rollout: RolloutStatus, table: TableStatus, status: DatasetStatus) -> RolloutStatus:
    """``rollout`` with what ``table`` references, and with what starts. One that is asked for and that it does not
    reference stays whole, as one that starts."""
    offered = references.count_offered(status, rollout)
    if not references.is_in_table(rollout.rollout, table):
        return replace(rollout, referenced_replicas=0, offered_replicas=offered, window="")
    shards = references.routed_shards(rollout, status) | parse_shards(rollout.window)
    return replace(
        rollout,
        referenced_replicas=table.replicas,
        offered_replicas=offered,
        shard_ranges=shorten_shards(shards, generations.count_shards(status, rollout)),
    )
