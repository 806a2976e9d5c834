"""What serves now: the servers and routers that should be ready, those on lost nodes among them; and what Ready says.

A StatefulSet makes no other pod of a name while the old one is there, so a shard would lack a server for as long as
the node is away. What a shard server serves never changes, and a router keeps nothing: two of one name do no harm,
should the node come back. So the operator has Kubernetes forget the old one. A builder writes: its end is waited for.
By force nothing drains: only the seconds count that the operator has itself seen pass (``loop.absences``). An operator
that starts waits anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import Absence, ObjectRef, Observed, Pod, Trouble
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.generation import generations, loss_advice
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.rollout import cutover, pushes, references, rollouts, router_reports, shard_windows
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, RolloutStatus

READY_WITHIN: Final = 15.0
"""Seconds, after a routing table was confirmed, in which routers may become ready: two of their probes and more."""
_FORCE_AGAIN_AFTER: Final = 300.0
"""Seconds until one that is still there though it was deleted by force (a finalizer holds it) is tried again."""
_UNSEEN: Final = Absence()
_MAX_SHARDS: Final = 10
"""Named in one message."""


def assess(status: DatasetStatus, situation: Situation) -> Assessment:
    """Ready, which servers and routers are missing, and when routers should be ready or a pod counts as lost."""
    observed = situation.observed
    return reasons.assess(
        judge_ready(status, observed),
        diagnose_serving(status, situation),
        (next_settled_in(status, situation), next_lost_pod_in(observed)),
    )


def with_serving_status(status: DatasetStatus, observed: Observed) -> DatasetStatus:
    """``status`` with what people and the scale subresource read of the active generation, and of the rollout that the
    routing table names."""
    dataset, table = observed.dataset, status.table
    active = status.find_generation(status.generation)
    status = replace(status, built_at="" if active is None else active.built_at)
    status = replace(status, synced_nodes=_count_synced_nodes(observed))
    serving = references.serving_rollouts(status)
    rollout = next((rollout for rollout in serving if 0 in references.routed_shards(rollout, status)), None)
    if table is None or rollout is None:
        return replace(status, shards="", replicas=0, selector="")
    shards = generations.count_shards(status, rollout)
    lacking = sum(
        len(count_lacking_servers(other, references.routed_shards(other, status), 1, observed)) for other in serving
    )
    # Of one shard: an autoscaler of the scale subresource divides what these pods use by ``replicas``.
    chosen = names.selector(dataset.name, dataset.uid, SHARDS, rollout.rollout, shard=0)
    return replace(
        status,
        shards=f"{shards - lacking}/{shards}",
        replicas=references.count_replicas(rollout.rollout, observed),
        selector=",".join(f"{label}={value}" for label, value in chosen.items()),
    )


def _count_synced_nodes(observed: Observed) -> str:
    """``3/4`` nodes that have a generation; empty where there is no DaemonSet, or no node for it."""
    daemons = [item for item in observed.other_objects if item.ref.kind == "DaemonSet" and not item.deleting]
    return next((f"{item.ready_nodes}/{item.nodes}" for item in daemons if item.nodes), "")


def shards_in_effect(status: DatasetStatus) -> tuple[tuple[RolloutStatus, frozenset[int]], ...]:
    """The rollouts that routers may answer from now, each with its shards: of each shard one, but while a routing table
    is being taken up."""
    table = status.table
    if table is None:
        return ()
    if table.confirmed_at:
        serving = references.serving_rollouts(status)
        return tuple((rollout, references.routed_shards(rollout, status)) for rollout in serving)
    referenced = (rollout for rollout in status.rollouts if rollout.referenced_replicas)
    return tuple((rollout, references.referenced_shards(rollout, status)) for rollout in referenced)


def count_lacking_servers(
    rollout: RolloutStatus, shards: Collection[int], needed_servers: int, observed: Observed
) -> dict[int, int]:
    """Shard → ready servers, of those of ``shards`` of ``rollout`` with fewer than ``needed_servers`` among those that
    tables reference."""
    ready = dict.fromkeys(sorted(shards), 0)
    for pod in observed.pods:
        if _serves(pod, rollout) and pod.shard in ready:
            ready[pod.shard] += 1
    return {shard: count for shard, count in ready.items() if count < needed_servers}


def _serves(pod: Pod, rollout: RolloutStatus) -> bool:
    if pod.component != SHARDS or pod.rollout != rollout.rollout or not pod.ready or pod.deleting:
        return False
    ordinal = pod.name.rpartition("-")[2]
    return ordinal.isdigit() and int(ordinal) < rollout.referenced_replicas


def count_ready_routers(observed: Observed) -> int:
    """How many routers take requests."""
    return sum(pod.ready for pod in router_reports.list_live_routers(observed))


def judge_ready(status: DatasetStatus, observed: Observed) -> Verdict:
    """Whether lookups are answered: of every shard, by something that a router in effect references."""
    if is_status_lost(status):
        return _judge_lost(status, observed)
    if not cutover.has_served(status):
        return Verdict("False", reasons.NO_ROUTING_TABLE, "Nothing is rolled out yet; lookups are answered 503.")
    for rollout, shards in shards_in_effect(status):
        lacking = count_lacking_servers(rollout, shards, 1, observed)
        if lacking:
            return _judge_lacking(rollout, lacking, observed)
    if not count_ready_routers(observed):
        return Verdict("False", reasons.NO_ROUTER_READY, "No router is ready: requests find nobody to answer them.")
    if status.table is not None and status.table.is_mixed:
        which = shard_windows.describe_serving(status)
        return Verdict("True", reasons.SERVING, f"{which}, shard by shard, at {status.endpoint}.")
    return Verdict(
        "True",
        reasons.SERVING,
        f"{status.generation} serves {format_count(status.records, 'record')} at {status.endpoint}.",
    )


def is_status_lost(status: DatasetStatus) -> bool:
    """Whether something serves, and status does not know what."""
    return status.table is None and any(rollout.referenced_replicas for rollout in status.rollouts)


def _judge_lost(status: DatasetStatus, observed: Observed) -> Verdict:
    kept = ", ".join(
        names.rollout(observed.dataset.name, rollout.rollout)
        for rollout in status.rollouts
        if rollout.referenced_replicas
    )
    return Verdict(
        "Unknown",
        reasons.STATUS_LOST,
        f"The status was lost or set back: what routers answer from is not known. {kept} stays until a new"
        " generation serves.",
    )


def _judge_lacking(rollout: RolloutStatus, lacking: dict[int, int], observed: Observed) -> Verdict:
    shards = ", ".join(str(shard) for shard in list(lacking)[:_MAX_SHARDS])
    shards = f"shard {shards}" if len(lacking) == 1 else f"shards {shards}"
    more = ", …" if len(lacking) > _MAX_SHARDS else ""
    where = names.rollout(observed.dataset.name, rollout.rollout)
    return Verdict(
        "False",
        reasons.SHARDS_UNAVAILABLE,
        f"No server of {where} is ready for {shards}{more}: lookups of keys there are answered 503.",
    )


def diagnose_serving(status: DatasetStatus, situation: Situation) -> Iterator[Trouble]:
    """Servers and routers that should be ready and are not."""
    observed = situation.observed
    yield from (other.trouble for other in observed.other_objects if other.trouble is not None and not other.deleting)
    for rollout, shards in shards_in_effect(status):
        lacking = count_lacking_servers(rollout, shards, rollout.referenced_replicas, observed)
        if lacking:
            trouble = _diagnose_lacking(rollout, lacking, observed)
            trouble = loss_advice.with_advice(trouble, rollout.generation, status, situation)
            yield pushes.with_next_push(trouble, rollout, rollouts.with_current_alone(status, situation), situation)
    if cutover.has_served(status) and not count_ready_routers(observed) and not _is_settling(status, situation):
        yield _with_pod_trouble(
            reasons.NO_ROUTER_READY, "No router is ready", router_reports.list_live_routers(observed)
        )
        return
    for pod in router_reports.list_live_routers(observed):
        if pod.trouble is not None and not pod.ready:
            yield Trouble(pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
            return


def _diagnose_lacking(rollout: RolloutStatus, lacking: dict[int, int], observed: Observed) -> Trouble:
    shard, ready = next(iter(lacking.items()))
    shard_set = names.shard_set(observed.dataset.name, rollout.rollout, shard)
    others = format_count(len(lacking) - 1, "other shard")
    more = f", and servers of {others} are not ready either" if len(lacking) > 1 else ""
    pods = (pod for pod in observed.pods if pod.rollout == rollout.rollout and not pod.ready)
    what = f"{shard_set} has {ready} of {format_count(rollout.referenced_replicas, 'server')} ready{more}"
    return _with_pod_trouble(reasons.SHARDS_UNAVAILABLE, what, pods)


def _with_pod_trouble(reason: str, what: str, pods: Iterable[Pod]) -> Trouble:
    """``what``, and what the first of ``pods`` that is in trouble says."""
    for pod in pods:
        if pod.trouble is not None:
            return Trouble(pod.trouble.reason, f"{what}; {pod.name}: {pod.trouble.message}")
    return Trouble(reason, what)


def _is_settling(status: DatasetStatus, situation: Situation) -> bool:
    is_troubled = any(pod.trouble is not None for pod in router_reports.list_live_routers(situation.observed))
    return not is_troubled and remaining_settling(status, situation.now) > 0


def remaining_settling(status: DatasetStatus, now: datetime) -> float:
    """Seconds in which routers need not be ready yet: they have just got a table, and their probes notice late."""
    table = status.table
    if table is None or not table.confirmed_at:
        return 0.0
    return clock.seconds_until(table.confirmed_at, READY_WITHIN, now)


def next_settled_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until routers should be ready; None when some are."""
    if count_ready_routers(situation.observed):
        return None
    return remaining_settling(status, situation.now) or None


def find_lost_pods(observed: Observed) -> tuple[ObjectRef, ...]:
    """The pods that are to be deleted by force."""
    return tuple(ObjectRef("Pod", pod.name, pod.uid, by_force=True) for pod, wait in _list_waits(observed) if wait <= 0)


def next_lost_pod_in(observed: Observed) -> float | None:
    """Seconds until the next pod counts as lost, should it still be there; None for never."""
    return min((wait if wait > 0 else _FORCE_AGAIN_AFTER for _, wait in _list_waits(observed)), default=None)


def _list_waits(observed: Observed) -> Iterator[tuple[Pod, float]]:
    """The servers and routers that may be lost, and for how many seconds their kubelets are still waited for."""
    for pod in observed.pods:
        if pod.component in (names.SHARDS, names.ROUTER) and pod.lost_after is not None:
            seen = observed.absences.get(pod.uid, _UNSEEN)
            yield pod, max(pod.lost_after.unready - seen.unready, pod.lost_after.deleting - seen.deleting)
