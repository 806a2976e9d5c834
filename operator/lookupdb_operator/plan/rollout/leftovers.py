"""StatefulSets and pods that are still there though no rollout has servers of their shard any more: Kubernetes deletes
them. A rollout shard by shard waits with its next shards until they are gone.

That ends by itself, unless a finalizer holds one, or whoever collects them does not run. After
``rollout.progressDeadlineSeconds`` RolledOut and Degraded name the object and what holds it. The operator takes no
finalizer away: it is not the operator's, and says that somebody has something to do first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lookupdb_operator import names
from lookupdb_operator.model import Deletion, Observed, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.rollout import references
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import DatasetStatus, TableStatus


@dataclass(frozen=True, slots=True)
class Leftover:
    """One object that is still there."""

    kind: str
    name: str
    rollout: str
    shard: int
    deletion: Deletion | None
    """None while nobody has deleted it."""


def list_leftovers(status: DatasetStatus, observed: Observed) -> list[Leftover]:
    """The StatefulSets and pods that are to go, in order of their names."""
    held = {rollout.rollout: references.held_shards(rollout, status) for rollout in status.rollouts}
    found = (server for server in _list_servers(observed) if server.shard not in held.get(server.rollout, ()))
    return sorted(found, key=lambda server: (server.name, server.kind))


def _list_servers(observed: Observed) -> Iterator[Leftover]:
    for item in observed.shard_sets:
        yield Leftover("StatefulSet", item.ref.name, item.rollout, item.shard, item.deletion)
    for pod in observed.pods:
        if pod.component == names.SHARDS:
            yield Leftover("Pod", pod.name, pod.rollout, pod.shard, pod.deletion)


def diagnose_leftovers(status: DatasetStatus, table: TableStatus, situation: Situation) -> Trouble | None:
    """The first one that should be gone for long, and what holds it; ``table`` has been confirmed."""
    deadline = situation.desired.progress_deadline_seconds
    for leftover in list_leftovers(status, situation.observed):
        if _remaining_seconds(leftover, table, situation) == 0:
            what = f"{leftover.kind} {leftover.name}, which was replaced, is still there"
            how = describe_holder(leftover, situation.dataset.namespace)
            return Trouble(
                reasons.DELETION_OVERDUE,
                f"{what} {deadline:g} s after it should be gone, and the next shards wait for that; {how}",
            )
    return None


def next_overdue_in(status: DatasetStatus, table: TableStatus, situation: Situation) -> float | None:
    """Seconds until one of them is overdue; None when there is none that is not."""
    leftovers = list_leftovers(status, situation.observed)
    waits = (_remaining_seconds(leftover, table, situation) for leftover in leftovers)
    return min((wait for wait in waits if wait > 0), default=None)


def _remaining_seconds(leftover: Leftover, table: TableStatus, situation: Situation) -> float:
    """Seconds until ``leftover`` is overdue: it should be gone when its grace is over, and not before servers have
    drained."""
    since = clock.parse_moment(table.confirmed_at) + timedelta(seconds=situation.desired.drain_seconds)
    since = max(since, leftover.deletion.due) if leftover.deletion is not None else since
    return _seconds_between(situation.now, since + timedelta(seconds=situation.desired.progress_deadline_seconds))


def _seconds_between(now: datetime, due: datetime) -> float:
    return max(0.0, (due - now).total_seconds())


def describe_holder(leftover: Leftover, namespace: str) -> str:
    """What keeps ``leftover``, and what to do about it."""
    kind, deletion = leftover.kind.lower(), leftover.deletion
    if deletion is None:
        return "nobody has deleted it yet: look whether kube-controller-manager runs"
    if deletion.finalizers:
        held_by = ", ".join(deletion.finalizers)
        finalizers, them = ("its finalizers", "them") if len(deletion.finalizers) > 1 else ("its finalizer", "it")
        command = f"kubectl patch -n {namespace} {kind} {leftover.name} --type=merge"
        return (
            f"{finalizers} {held_by} must be removed by whoever has set {them}. If nobody does, this removes all:"
            f' {command} -p \'{{"metadata":{{"finalizers":null}}}}\''
        )
    return f"look why with: kubectl describe -n {namespace} {kind} {leftover.name}"
