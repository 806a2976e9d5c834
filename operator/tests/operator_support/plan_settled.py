"""Invariants of the model cluster at rest, once faults have stopped."""

from __future__ import annotations

from lookupdb.dataset.spec import DatasetSpec
from lookupdb_operator import names
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolloutStatus
from operator_support.plan_objects import UID, is_push
from operator_support.plan_world import World


def check_settled(world: World) -> None:
    """Check that what is asked for serves, nothing else is left, and another pass writes nothing."""
    assert world.status.table is not None
    active = world.status.find_generation(world.status.generation)
    assert active is not None
    parsed = world.dataset.parsed
    assert parsed is not None
    _check_target(world, active, parsed)
    assert world.status.table.replicas == parsed.replicas
    assert not world.status.table.parts, "a rollout has stopped halfway"
    serving, *kept = sorted(world.status.rollouts, key=lambda rollout: bool(rollout.kept_since))
    assert serving.rollout == world.status.table.rollout
    assert len(kept) <= (world.spec["rollout"].get("keepPrevious", "0s") != "0s"), (
        "more than the previous rollout is kept"
    )
    assert all(rollout.kept_since and rollout.generation != active.generation for rollout in kept)
    served = {key for key in world.things if key[0] == "StatefulSet"}
    assert served == {key for rollout in world.status.rollouts for key in _sets(world, rollout)}, "servers are left"
    jobs = {name: thing for (kind, name), thing in world.things.items() if kind == "Job"}
    assert all(map(is_push, jobs.values())), "a build's Job is left"
    assert {names.read_rollout(name) for name in jobs} <= {rollout.rollout for rollout in world.status.rollouts}, (
        "a push is left"
    )
    assert bool(jobs) or world.spec["serving"].get("delivery", {}).get("type") != "Image", "nothing was pushed"
    assert parsed.uid == UID
    assert DatasetStatus.from_json(world.status.to_json()) == world.status
    writes = world.writes
    again = world.reconcile()
    assert (again.apply, again.delete, again.status) == ((), (), world.status), "a second pass writes"
    assert world.writes == writes


def _check_target(world: World, active: GenerationStatus, parsed: DatasetSpec) -> None:
    """Check that the pinned generation serves; else the newest data of the spec, unless it was rolled back from."""
    if pinned := world.spec.get("generation"):
        assert active.generation == pinned, "what is pinned does not serve"
        return
    of_spec = [found for found in world.status.generations if found.content == parsed.content_hash()]
    data = {(generation.fingerprint, generation.content) for generation in of_spec[-1:]}
    marks = {(mark.fingerprint, mark.content) for mark in world.status.rolled_back}
    if data & (marks if world.invariants.has_forgotten else world.invariants.rolled_back):
        return
    assert active.content == parsed.content_hash(), "what serves is not what is asked for"
    assert world.refresh in ("", active.refresh), "the refresh that is asked for is not answered"


def _sets(world: World, rollout: RolloutStatus) -> set[tuple[str, str]]:
    generation = world.status.find_generation(rollout.generation)
    assert generation is not None
    name = world.dataset.name
    return {("StatefulSet", names.shard_set(name, rollout.rollout, shard)) for shard in range(generation.shards)}
