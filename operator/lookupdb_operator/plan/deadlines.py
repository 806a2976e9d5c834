"""When to look again though nothing happens: something is to be done at a time, or somebody is to be asked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from lookupdb_operator.model import Manifest, Observed
from lookupdb_operator.plan import build, clock, cutover, lost_nodes, readiness, serving, store, turns
from lookupdb_operator.plan.conditions.ready import remaining_settling
from lookupdb_operator.plan.rollouts import target_rollout
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Status

ASK_EVERY: Final = 0.5
"""Seconds between two questions to routers that are taking up a routing table: that takes them a second or so."""
ASK_SLOWLY: Final = 5.0
"""The same, once they take too long."""
REFUSED_AGAIN_AFTER: Final = 30.0
"""Seconds until a write that the API server refused is tried again, if nothing happens before: a quota that was raised
is noticed by then."""
SILENT_AGAIN_AFTER: Final = 10.0
"""Seconds until pods that do not get on, and do not say why, are looked at again: why stands in Events, which are not
watched, only read at such a look."""


def asks_routers(status: Status) -> bool:
    """Whether routers are to say from which table they answer: until it is in effect everywhere, and while what older
    ones name is kept."""
    table = status.table
    return table is not None and (not table.confirmed_at or cutover.is_draining(status))


def next_look(status: Status, situation: Situation, apply: Iterable[Manifest]) -> float | None:
    """Seconds until the first of all deadlines, when ``apply`` is written now; None when there is none."""
    waits = (
        _retry(status, situation),
        _routers(status, situation),
        store.again_in(status, situation),
        _refused(situation),
        _silent(situation.observed, apply),
        _settling(status, situation),
        lost_nodes.next_lost_in(situation.observed, situation.now),
        _progress(status, situation),
        _turn(status, situation.now),
    )
    return min((wait for wait in waits if wait is not None), default=None)


def _retry(status: Status, situation: Situation) -> float | None:
    if status.build is not None or status.failure is None:
        return None
    return build.retry_in(status.failure.retry_at, situation.now)


def _routers(status: Status, situation: Situation) -> float | None:
    table = status.table
    if table is None or not asks_routers(status):
        return None
    if not table.confirmed_at:
        return ASK_SLOWLY if cutover.is_overdue(status, situation) else ASK_EVERY
    # The drain time may have passed, and a router still be behind.
    slowest = ASK_SLOWLY if cutover.is_retirement_overdue(table, situation) else ASK_EVERY
    return max(slowest, cutover.remaining_drain(table, situation))


def _turn(status: Status, now: datetime) -> float | None:
    """Whose turn has come is looked at without this; but a back-off ends, and a turn may have to be given up."""
    ends = (ticket.since for ticket in (status.build_ticket, status.rollout_ticket) if ticket and ticket.given_up)
    waits = [clock.seconds_until(since, 0, now) for since in ends if since]
    holders = (status.build, turns.candidate(status))
    stalls = [holder.stall for holder in holders if holder is not None and holder.stall is not None]
    waits += [clock.seconds_until(stall.since, turns.patience(stall), now) or turns.YIELD_EVERY for stall in stalls]
    return min((wait for wait in waits if wait > 0), default=None)


def _refused(situation: Situation) -> float | None:
    return REFUSED_AGAIN_AFTER if situation.observed.refusals else None


def _settling(status: Status, situation: Situation) -> float | None:
    if serving.ready_routers(situation.observed):
        return None
    return remaining_settling(status, situation.now) or None


def _progress(status: Status, situation: Situation) -> float | None:
    """Until servers that are missing may be left out, or the rollout is overdue."""
    target = target_rollout(status, situation)
    if target is None or target.referenced_replicas:
        return None
    grace = clock.seconds_until(target.started_at, readiness.GRACE, situation.now)
    deadline = readiness.remaining_progress(target, status, situation)
    return min((wait for wait in (grace, deadline) if wait > 0), default=None)


def _silent(observed: Observed, apply: Iterable[Manifest]) -> float | None:
    pods = {(pod.rollout, pod.shard) for pod in observed.pods if not pod.deleting}
    building = {pod.generation for pod in observed.pods if not pod.deleting}
    stuck = (
        any(manifest["kind"] in ("Job", "StatefulSet") for manifest in apply)  # its pods may not be let in
        or any(pod.phase == "Pending" and pod.trouble is None and not pod.deleting for pod in observed.pods)
        or any(job.state == "Running" and job.generation not in building for job in observed.jobs)
        or any(servers.replicas and (servers.rollout, servers.shard) not in pods for servers in observed.sets)
    )
    return SILENT_AGAIN_AFTER if stuck else None
