"""Which objects should exist, and which of them differ from what is observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lookupdb_operator import manifests
from lookupdb_operator.model import BuildJob, Existing, Manifest, Observed, ShardSet
from lookupdb_operator.plan import outcomes, rendering, rollouts, routers
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Generation, Rollout, Status

Name = tuple[str, str]
"""Kind and name."""


def desired_objects(status: Status, situation: Situation) -> tuple[Manifest, ...]:
    """Every object that ``status`` asks for, in the order in which they are written; but rollouts of which everything
    is as it should be."""
    return (
        *_build(status, situation),
        *(_with_replicas(manifest, situation) for manifest in rendering.always(situation.ingredients)),
        *_rollouts(status, situation),
        *_table(status, situation),
    )


def differing(wanted: Iterable[Manifest], observed: Observed) -> tuple[Manifest, ...]:
    """Those of ``wanted`` that do not exist or are not as they should be. What is being deleted, or is another
    dataset's, comes when that is gone; a Job that exists is left alone: it cannot be changed."""
    digests, taken = _digests(_every(observed)), _taken(observed)
    replicas = _replicas(observed)

    def differs(one: Manifest) -> bool:
        name = name_of(one)
        if name in taken or (one["kind"] == "Job" and name in digests):
            return False
        # Scaled by another manager or by hand, it keeps its digest.
        scaled = name in replicas and replicas[name] != one["spec"]["replicas"]
        return scaled or digests.get(name) != manifests.read_digest(one)

    return tuple(filter(differs, wanted))


def unscaled(status: Status, situation: Situation) -> tuple[Manifest, ...]:
    """Of each StatefulSet that is not made any more as it was, and has the wrong number of servers, that number."""
    return tuple(
        manifests.render_scale(situation.dataset, one, held.shard, replicas)
        for one in status.rollouts
        if not rollouts.is_current(one, status, situation)
        for replicas in (rollouts.desired_replicas(one, status, situation),)
        for held in situation.observed.sets
        if held.rollout == one.rollout and held.replicas != replicas and not held.deleting
    )


def without_held(wanted: Iterable[Manifest], observed: Observed) -> tuple[Manifest, ...]:
    """``wanted`` but for what somebody changes back each time, for now."""
    held = {((contest.kind, contest.name), contest.mark) for contest in observed.contests if contest.is_held}
    return tuple(manifest for manifest in wanted if (name_of(manifest), manifests.mark_of(manifest)) not in held)


def unsynced(status: Status, observed: Observed) -> tuple[Manifest, ...]:
    """Of each router pod whose kubelet was not told of the routing table yet, the annotation that tells it."""
    table = status.table
    if table is None:
        return ()
    return tuple(
        manifests.render_nudge(observed.dataset, pod, table.version)
        for pod in routers.living(observed)
        if pod.table_version != str(table.version)
    )


def with_refusals_of(apply: Iterable[Manifest], observed: Observed) -> Observed:
    """``observed`` with the refusals of what is still wanted. Whether the Secret is there, nobody can see."""
    wanted = {name_of(manifest) for manifest in apply}
    refusals = {name: why for name, why in observed.refusals.items() if name in wanted or name[0] == "Secret"}
    return replace(observed, refusals=refusals)


def name_of(manifest: Manifest) -> Name:
    """Kind and name of ``manifest``."""
    return manifest["kind"], manifest["metadata"]["name"]


def _build(status: Status, situation: Situation) -> Iterator[Manifest]:
    build = status.build
    if build is None or build.digest != situation.desired.build_digest:
        return  # what an older spec's build was made from is not known any more, and its pod may yet read it
    if not outcomes.is_lost(build, situation.observed):
        yield from manifests.render_builder(situation.dataset, build, situation.config)


def _rollouts(status: Status, situation: Situation) -> Iterator[Manifest]:
    for one in status.rollouts:
        generation = status.generation_called(one.generation)
        if generation is None:
            continue
        if not rollouts.is_current(one, status, situation):
            yield from _service_and_budgets(one, generation, situation)
            continue
        replicas = rollouts.desired_replicas(one, status, situation)
        if _is_whole(one, generation, replicas, situation):
            continue
        yield from manifests.render_shards(situation.dataset, one, generation, replicas, situation.config)


def _service_and_budgets(one: Rollout, generation: Generation, situation: Situation) -> tuple[Manifest, ...]:
    """Of a rollout whose servers are not made any more as they were, what still can be: it may serve."""
    stamps = rendering.service_and_budget_stamps(situation.ingredients, one, generation)
    if stamps <= _stamps(situation.observed):
        return ()
    return manifests.render_service_and_budgets(situation.dataset, one, generation)


def _is_whole(one: Rollout, generation: Generation, replicas: int, situation: Situation) -> bool:
    observed = situation.observed
    stamps = rendering.shard_stamps(situation.ingredients, one, generation, replicas)
    return stamps <= _stamps(observed) and all(
        stateful.replicas == replicas for stateful in observed.sets if stateful.rollout == one.rollout
    )


def _stamps(observed: Observed) -> set[rendering.Stamp]:
    """Of what is there, as it was written."""
    digests = _digests(existing for existing in _every(observed) if not existing.deleting)
    return {(*name, digest) for name, digest in digests.items()}


def _table(status: Status, situation: Situation) -> Iterator[Manifest]:
    table = status.table
    generation = None if table is None else status.generation_called(table.generation)
    if table is not None and generation is not None:
        yield manifests.render_routing_table(situation.dataset, table, generation)


def _with_replicas(manifest: Manifest, situation: Situation) -> Manifest:
    """``manifest``; of the routers, with as many as there should be of those that there are."""
    if manifest["kind"] != "Deployment":
        return manifest
    present = _replicas(situation.observed).get(name_of(manifest), 0)
    return manifests.with_replicas(manifest, manifests.router_replicas(situation.dataset, present))


def _replicas(observed: Observed) -> dict[Name, int]:
    """Of what is scaled: how many pods its spec asks for."""
    routers = (other for other in observed.others if other.ref.kind == "Deployment")
    scaled: tuple[ShardSet | Existing, ...] = (*observed.sets, *routers)
    return {(workload.ref.kind, workload.ref.name): workload.replicas for workload in scaled}


def _digests(objects: Iterable[BuildJob | ShardSet | Existing]) -> dict[Name, str]:
    """Of each as it was written; of what somebody else has changed since, an empty one."""
    return {
        (one.ref.kind, one.ref.name): one.digest if isinstance(one, BuildJob) or not one.changed else ""
        for one in objects
    }


def _taken(observed: Observed) -> set[Name]:
    predecessors = {(one.kind, one.name) for one in observed.predecessors}
    return predecessors | {(one.ref.kind, one.ref.name) for one in _every(observed) if one.deleting}


def _every(observed: Observed) -> Iterator[BuildJob | ShardSet | Existing]:
    yield from observed.jobs
    yield from observed.sets
    yield from observed.others
