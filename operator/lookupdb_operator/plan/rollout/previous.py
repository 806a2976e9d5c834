"""The previous rollout: the one that routers answered from before, of another generation than the active one. With
``spec.rollout.keepPrevious`` its servers stay for a while after they have drained, so that a rollback is one write of
the routing table. At most one is kept at a time. No routing table references it: to delete it harms no lookup, whenever
that is. It has the pod template that it had, and as many servers as the spec asks for.

What ends it: its time has passed; it is pinned and served again (``cutover``), or its generation is from another
rollout; another one has drained; a rollout that is asked for finds no room. Its own failures are told, and make nothing
degraded.
"""

from __future__ import annotations

from collections.abc import Iterable

from lookupdb_operator import names
from lookupdb_operator.model import Observed
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.rollout import rollouts
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus


def release_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without a kept rollout that has no purpose any more, unless it is asked for. There are two when one
    was asked for while another drained, and then was not any more."""
    target = rollouts.target_rollout(status, situation)
    kept = [rollout for rollout in status.rollouts if rollout.kept_since and rollout != target]
    newest = max(kept, key=lambda rollout: (rollout.kept_since, names.read_number(rollout.rollout)), default=None)
    staying = tuple(
        rollout
        for rollout in status.rollouts
        if rollout not in kept or (rollout == newest and _has_purpose(rollout, status, situation))
    )
    return replace(status, rollouts=staying)


def _has_purpose(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    table = status.table
    if table is None or table.generation == rollout.generation or _lacks_room(status):
        return False
    return clock.seconds_until(rollout.kept_since, situation.desired.keep_previous_seconds, situation.now) > 0


def _lacks_room(status: DatasetStatus) -> bool:
    stalls = (rollout.stall for rollout in status.rollouts)
    return any(stall is not None and stall.reason in reasons.PLACEMENT_REASONS for stall in stalls)


def select_previous(drained: Iterable[RolloutStatus], table: TableStatus, situation: Situation) -> RolloutStatus | None:
    """The one of ``drained`` that is to be kept, now that ``table`` is in effect: the newest of another generation."""
    if not situation.desired.keep_previous_seconds:
        return None
    others = [rollout for rollout in drained if rollout.template and rollout.generation != table.generation]
    previous = max(others, key=lambda rollout: names.read_number(rollout.rollout), default=None)
    if previous is None:
        return None
    return replace(previous, referenced_replicas=0, kept_since=clock.format_moment(situation.now))


def find_kept(status: DatasetStatus) -> RolloutStatus | None:
    """The rollout that is kept."""
    return next((rollout for rollout in status.rollouts if rollout.kept_since), None)


def next_release_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the kept rollout has no purpose any more; None when none is kept."""
    kept = find_kept(status)
    if kept is None:
        return None
    return clock.seconds_until(kept.kept_since, situation.desired.keep_previous_seconds, situation.now) or None


def describe_kept(status: DatasetStatus, situation: Situation) -> str:
    """Until when what can be gone back to at once, and what is wrong with its servers; empty when nothing is kept."""
    kept = find_kept(status)
    if kept is None:
        return ""
    where = rollouts.describe_rollout(situation.dataset, kept)
    end = clock.parse_moment(kept.kept_since)
    until = clock.add_seconds(end, situation.desired.keep_previous_seconds)
    return f" {where} is kept until {until}, to go back to{_describe_trouble(kept, situation.observed)}."


def _describe_trouble(rollout: RolloutStatus, observed: Observed) -> str:
    trouble = rollouts.diagnose_obstacle(rollout, observed)
    return "" if trouble is None else f"; its servers are not all ready ({trouble.reason})"
