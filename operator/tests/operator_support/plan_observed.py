"""The objects of the model cluster as an operator observes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookupdb_operator import names
from lookupdb_operator.manifests import read_digest
from lookupdb_operator.model import (
    Absence,
    BuildJob,
    Deletion,
    Pod,
    RouterReport,
    ShardSet,
)
from operator_support.plan_objects import (
    Process,
    Thing,
    label,
    ref,
)
from operator_support.plan_passwords import missing_keys
from operator_support.plan_routers import diagnose_refusal, digest_held

if TYPE_CHECKING:
    from operator_support.plan_world import World


def observe_report(world: World, pod: Process) -> RouterReport:
    if pod.table is not None:
        version, missing, of = pod.table["version"], missing_keys(world, pod), frozenset({str(pod.table["active"])})
        digests = frozenset({digest_held(pod.table)} if world.reports_digest(pod) else ())
        return RouterReport(version, diagnose_refusal(pod), version, False, of, digests, missing)
    if pod.down_until is not None:
        return RouterReport(None, "it does not answer")
    return RouterReport(None, "a worker has no routing table yet", is_empty=True)


def observe_job(thing: Thing) -> BuildJob:
    state = thing.manifest.get("state", "Running")
    waiting = thing.manifest.get("failure")
    return BuildJob(ref(thing), names.read_build(ref(thing).name), read_digest(thing.manifest), state, waiting)


def observe_set(world: World, thing: Thing) -> ShardSet:
    ready = sum(pod.ready and pod.dies_at is None for pod in world.pods.values() if pod.owner == thing.uid)
    name = ref(thing).name
    shard, labels = names.read_shard(name) or 0, (names.read_rollout(name), label(thing, names.GENERATION))
    replicas = thing.manifest["spec"]["replicas"]
    mark = label(thing, names.PASSWORD_KEY)
    digest = read_digest(thing.manifest)
    return ShardSet(ref(thing), *labels, shard, digest, replicas, ready, password_key=mark)


def observe_pod(world: World, pod: Process) -> Pod:
    waits = pod.trouble is not None and not pod.ready
    # A pod that is asked to end is not ready soon after.
    ready = pod.ready and pod.deleted_at is None
    phase = "Failed" if pod.ended and not pod.result else "Succeeded" if pod.ended else "Running"
    return Pod(
        pod.name,
        pod.uid,
        pod.component,
        rollout=pod.labels.get(names.ROLLOUT, ""),
        shard=int(pod.labels.get(names.SHARD, -1)),
        generation=pod.labels.get(names.GENERATION, ""),
        table_version=pod.annotation,
        phase="Pending" if waits and not pod.ended and pod.component != names.ROUTER else phase,
        ready=ready,
        deleting=pod.dies_at is not None,
        lost_after=None if ready or pod.dies_at is None or pod.finalizers else _lost_after(world, pod),
        trouble=pod.trouble,
        result=pod.result,
        deletion=None if pod.deleted_at is None else Deletion(pod.deleted_at, pod.finalizers),
    )


def _lost_after(world: World, pod: Process) -> Absence:
    """Return the time after which a pod counts as lost: as in a cluster, but sooner if its node is gone. A pod with a
    finalizer has already ended, and force would end nothing."""
    return Absence(world.takes.stop, world.takes.stop) if pod.is_lost else Absence(300.0, 90.0)
