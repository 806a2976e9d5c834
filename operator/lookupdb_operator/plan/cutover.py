"""From one routing table to the next: when it is written, when it is in effect everywhere, when the servers that only
older tables reference are retired.

A table is written only when enough of what it newly references is ready (``readiness``). Servers that fail later stay
in it: routers ask another replica meanwhile, and Kubernetes brings them back under the same name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator.names import ROUTER
from lookupdb_operator.plan import clock, routers
from lookupdb_operator.plan.readiness import is_servable
from lookupdb_operator.plan.rollouts import target_rollout
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status, Table

CONFIRMED_WITHIN: Final = 60.0
"""Seconds, in which every router should have taken up a routing table. A kubelet that was not nudged syncs ConfigMaps
every minute or so."""
MOUNTED_FOR: Final = 120.0
"""Seconds, in which a pod that is started anew may find an older routing table mounted: a kubelet looks at it every
minute, and may know what it finds there from a cache that is another minute old."""


def confirm_table(status: Status, situation: Situation) -> Status:
    """``status`` with the routing table in effect, when every router that may answer says so. From then on its
    generation is the active one."""
    table, observed = status.table, situation.observed
    if table is None or table.confirmed_at or not routers.answering(observed) or routers.behind(observed, table):
        return status
    generation = status.generation_called(table.generation)
    assert generation is not None, f"{table.generation} was trimmed, and a routing table references it"
    return replace(
        status,
        table=replace(table, confirmed_at=clock.written(situation.now)),
        generation=generation.generation,
        records=generation.records,
        bytes=generation.bytes,
    )


def reopen_table(status: Status, situation: Situation) -> Status:
    """``status`` with a routing table that is to be confirmed again, when a router answers from an older one while what
    that references is kept: lookups that it begins have to drain, too."""
    table, reports = status.table, situation.observed.routers
    if table is None or not is_draining(status):
        return status
    answers = (reports[pod.uid] for pod in routers.answering(situation.observed) if pod.uid in reports)
    if not any(0 < (report.table_version or 0) < table.version for report in answers):
        return status
    return replace(status, table=replace(table, written_at=clock.written(situation.now), confirmed_at=""))


def retire_rollouts(status: Status, situation: Situation) -> Status:
    """``status`` without the rollouts, and the servers, that no routing table in effect references any more, once the
    drain time has passed and the routers still say that it is in effect everywhere: one that was started meanwhile may
    have come up with an older table."""
    table = status.table
    if table is None or not is_draining(status) or remaining_drain(table, situation) > 0:
        return status
    if routers.behind(situation.observed, table):
        return status
    target = target_rollout(status, situation)
    rollouts = tuple(
        replace(rollout, referenced_replicas=_replicas_in(table, rollout))
        for rollout in status.rollouts
        if rollout.rollout == table.rollout or rollout == target
    )
    return replace(status, rollouts=rollouts)


def decide_table(status: Status, situation: Situation) -> Status:
    """``status`` with the routing table that should be written by now, its version claimed."""
    return _overtake_routers(_desired_table(status, situation), situation)


def is_draining(status: Status) -> bool:
    """Whether the table in effect references fewer servers than are kept on account of an older one."""
    table = status.table
    if table is None or not table.confirmed_at:
        return False
    return any(rollout.referenced_replicas > _replicas_in(table, rollout) for rollout in status.rollouts)


def remaining_drain(table: Table, situation: Situation) -> float:
    """Seconds until the drain time of a confirmed ``table`` has passed. While a router is being stopped, it answers
    from the table that it has, as long as it still takes requests; one that ends again and again may start with an
    older one for as long as that may be mounted."""
    desired, observed = situation.desired, situation.observed
    seconds = desired.drain_seconds
    if any(pod.component == ROUTER and pod.deleting for pod in observed.pods):
        seconds = max(seconds, desired.router_drain_seconds)
    if routers.has_down(observed):
        seconds = max(seconds, MOUNTED_FOR)
    return clock.seconds_until(table.confirmed_at, seconds, situation.now)


def is_retirement_overdue(table: Table, situation: Situation) -> bool:
    """Whether a router keeps the servers of an older table for long after the drain time of ``table``."""
    seconds = max(situation.desired.drain_seconds, situation.desired.router_drain_seconds, MOUNTED_FOR)
    return clock.seconds_until(table.confirmed_at, seconds + CONFIRMED_WITHIN, situation.now) == 0


def is_overdue(status: Status, situation: Situation) -> bool:
    """Whether a router takes too long to take up the routing table."""
    table = status.table
    if table is None or table.confirmed_at:
        return False
    return clock.seconds_until(table.written_at, CONFIRMED_WITHIN, situation.now) == 0


def _desired_table(status: Status, situation: Situation) -> Status:
    table, desired = status.table, situation.desired
    target = target_rollout(status, situation)
    is_another = target is not None and (table is None or table.rollout != target.rollout)
    if target is not None and is_another and is_servable(target, desired.replicas, status, situation):
        return _with_table(status, target, desired.replicas, desired.workers, situation)
    if table is None:
        return status
    current = status.rollout_called(table.rollout)
    if current is None or desired.replicas == table.replicas:
        return status
    # Fewer servers are referenced first and stopped later, more are started first and referenced later.
    if desired.replicas < table.replicas or is_servable(current, desired.replicas, status, situation):
        return _with_table(status, current, desired.replicas, table.workers, situation)
    return status


def _overtake_routers(status: Status, situation: Situation) -> Status:
    """``status`` with a version of its routing table that routers take up: the cluster may have been set back. Not
    before what it references is ready: routers answer from something meanwhile."""
    table, newest = status.table, routers.newest_table(situation.observed)
    if table is None or newest <= table.version:
        return status
    rollout = status.rollout_called(table.rollout)
    if rollout is None or not is_servable(rollout, table.replicas, status, situation):
        return status
    return replace(
        status, table=replace(table, version=newest + 1, written_at=clock.written(situation.now), confirmed_at="")
    )


def _with_table(status: Status, target: Rollout, replicas: int, workers: int, situation: Situation) -> Status:
    claimed = status.table.version if status.table is not None else 0
    table = Table(
        version=max(claimed, routers.newest_table(situation.observed)) + 1,
        rollout=target.rollout,
        generation=target.generation,
        replicas=replicas,
        workers=workers,
        written_at=clock.written(situation.now),
    )
    rollouts = tuple(
        replace(rollout, referenced_replicas=max(rollout.referenced_replicas, replicas))
        if rollout.rollout == target.rollout
        else rollout
        for rollout in status.rollouts
    )
    return replace(status, table=table, rollouts=rollouts)


def _replicas_in(table: Table, rollout: Rollout) -> int:
    return table.replicas if rollout.rollout == table.rollout else 0
