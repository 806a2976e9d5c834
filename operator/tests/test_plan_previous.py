"""The previous rollout's servers stay for a while after they have drained, and going back to it is one write."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import applied, condition, deleted, replicas, says, serving, trouble
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.plan import lifecycle
from lookupdb_operator.plan.lifecycle import RolloutPhase


def _refreshed(world: World, data: str) -> None:
    """Build new data and let it serve."""
    world.content_of_source = lambda source: f"{source} {data}"
    world.annotate(data)
    world.settle()


def _with_kept(keep: str = "30m", **spec: Any) -> World:
    """A world that serves g2 by r2, and keeps r1 of g1."""
    world = serving(rollout={"keepPrevious": keep}, **spec)
    _refreshed(world, "two")
    return world


def _phases(world: World) -> dict[str, str]:
    numbers = range(1, world.status.last_rollout + 1)
    return {f"r{number}": lifecycle.rollout_phase(f"r{number}", world.status).value for number in numbers}


def test_without_keep_previous_nothing_stays_after_the_drain() -> None:
    assert _phases(_with_kept("0s")) == {"r1": "gone", "r2": "active"}


def test_the_previous_rollout_is_kept_until_its_time_has_passed() -> None:
    world = _with_kept()
    assert _phases(world) == {"r1": "kept", "r2": "active"}
    planned = world.look()
    assert planned.next_look_in == pytest.approx(1800, abs=30)
    assert "airports-r1 (generation g1) is kept until 2026-01-01T12:" in condition(planned, "RolledOut").message
    world.now += timedelta(seconds=1801)
    assert "StatefulSet/airports-r1-s0" in deleted(world.reconcile())
    assert _phases(world)["r1"] == "gone"


def test_what_is_kept_stays_in_the_store() -> None:
    world = _with_kept(keepGenerations=1)
    assert [generation.generation for generation in world.status.generations] == ["g1", "g2"]


def test_going_back_to_it_is_one_write_of_the_routing_table() -> None:
    world = _with_kept()
    world.edit(generation="g1")
    planned = world.reconcile()
    assert planned.status.table is not None
    assert planned.status.table.rollout == "r1"
    assert {kind for kind, _, _ in (name.partition("/") for name in applied(planned))} == {"ConfigMap", "Pod"}
    world.settle()
    assert _phases(world) == {"r1": "active", "r2": "kept"}


def test_a_server_that_hangs_keeps_nobody_from_going_back_to_it_for_longer_than_the_deadline() -> None:
    """It is seen to hang since before the rollback."""
    world = _with_kept()
    for pod in world.pods.values():
        if pod.name.startswith("airports-r1-") and pod.name.endswith("-1"):
            pod.ready, pod.born = False, world.now + timedelta(seconds=NEVER)
    world.reconcile()
    world.step(590)
    world.edit(generation="g1")
    world.reconcile()
    assert world.status.generation == "g2"
    world.settle(20, until=lambda: world.status.generation == "g1")
    assert condition(world.look(), "Degraded").reason == "ShardsUnavailable"


def test_of_several_only_the_last_one_is_kept() -> None:
    world = _with_kept()
    _refreshed(world, "three")
    assert _phases(world) == {"r1": "gone", "r2": "kept", "r3": "active"}


def test_a_change_of_the_pod_template_does_not_touch_it() -> None:
    world = _with_kept()
    world.edit(serving={"workers": 2})
    world.settle()
    assert _phases(world) == {"r1": "kept", "r2": "gone", "r3": "active"}


def test_a_rollout_of_an_older_pod_template_is_gone_back_to_at_once_and_then_replaced() -> None:
    """A table of r1 names the one worker that its servers have, whatever the spec says by now."""
    world = _with_kept()
    world.edit(serving={"workers": 2})
    world.settle()
    world.edit(generation="g1")
    planned = world.reconcile()
    table = planned.status.table
    assert table is not None
    assert (table.rollout, table.workers) == ("r1", 1)
    world.settle()
    assert world.status.table is not None
    assert (world.status.table.generation, world.status.table.rollout, world.status.table.workers) == ("g1", "r4", 2)


def test_it_has_as_many_servers_as_the_spec_asks_for() -> None:
    world = _with_kept()
    world.edit(replicas=3)
    assert {f"airports-r1-s{shard}": 3 for shard in range(2)}.items() <= replicas(world.reconcile()).items()


@pytest.mark.parametrize("keep", ["0s", "1s"])
def test_turning_it_down_ends_it(keep: str) -> None:
    world = _with_kept()
    world.now += timedelta(seconds=10)
    world.edit(rollout={"keepPrevious": keep})
    world.reconcile()
    assert _phases(world)["r1"] == "gone"


def test_a_candidate_that_finds_no_room_takes_its_place() -> None:
    world = _with_kept()
    world.takes.start = NEVER
    world.content_of_source = lambda source: f"{source} three"
    world.annotate("three")
    world.settle(until=lambda: world.status.last_rollout == 3)
    world.step()
    for pod in world.pods.values():
        if "-r3-" in pod.name:
            pod.trouble = trouble("Unschedulable")
    world.reconcile()
    world.reconcile()
    assert _phases(world) == {"r1": "gone", "r2": "active", "r3": "claimed"}


def test_its_failures_are_reported_and_degrade_nothing() -> None:
    world = _with_kept()
    for pod in world.pods.values():
        if "-r1-" in pod.name:
            pod.ready, pod.trouble = False, trouble("CrashLooping")
    planned = world.reconcile()
    assert says(planned)["Degraded"] == "False Healthy"
    assert "its servers are not all ready (CrashLooping)" in condition(planned, "RolledOut").message


def test_a_pinned_one_waits_for_its_servers_beyond_its_time() -> None:
    world = _with_kept(replicas=1)
    for pod in world.pods.values():
        if pod.name == "airports-r1-s0-0":
            pod.ready, pod.trouble = False, trouble("Unschedulable")
    world.edit(generation="g1")
    world.now += timedelta(hours=3)
    assert not any("-r1-" in name for name in deleted(world.reconcile()))
    assert _phases(world) == {"r1": "kept", "r2": "active"}
    for pod in world.pods.values():
        pod.trouble = None
    world.settle()
    assert world.status.generation == "g1"


def test_a_deleted_stateful_set_of_it_is_made_again() -> None:
    world = _with_kept()
    del world.things["StatefulSet", "airports-r1-s1"]
    assert applied(world.reconcile()) == {"StatefulSet/airports-r1-s1"}


def test_a_clock_set_forward_ends_it_early_and_harms_nothing_that_serves() -> None:
    world = _with_kept()
    world.now += timedelta(days=365)
    assert {name for name in deleted(world.reconcile()) if "-r2" in name} == set()
    assert _phases(world) == {"r1": "gone", "r2": "active"}


def test_a_clock_set_back_keeps_it_for_no_longer_than_its_time_from_then_on() -> None:
    world = _with_kept()
    world.now -= timedelta(days=1)
    world.reconcile()
    world.now += timedelta(seconds=1801)
    world.reconcile()
    assert _phases(world)["r1"] == "gone"


def test_a_status_that_was_lost_makes_it_one_that_may_serve() -> None:
    """Without a status, routers may answer from any rollout."""
    world = _with_kept()
    kept = tuple(rollout for rollout in world.status.rollouts if rollout.kept_since)
    world.status = replace(world.status, table=None, rollouts=kept, generations=())
    world.version += 1
    planned = world.look()
    assert lifecycle.rollout_phase("r1", planned.status) is RolloutPhase.SUPERSEDED
    assert not any(ref.kind == "StatefulSet" for ref in planned.delete)


def test_a_rollback_goes_around_the_queue_for_a_turn() -> None:
    world = _with_kept()
    world.turns = replace(world.turns, rollout=replace(world.turns.rollout, is_granted=False, ahead=40))
    world.edit(generation="g1")
    table = world.reconcile().status.table
    assert table is not None
    assert table.rollout == "r1"


def test_routers_confirm_a_rollback_as_any_other_cutover() -> None:
    world = _with_kept()
    world.edit(generation="g1")
    began = world.now
    world.settle(until=lambda: world.status.generation == "g1")
    assert (world.now - began).total_seconds() < 5
    routers = [pod for pod in world.pods.values() if pod.component == names.ROUTER]
    assert {pod.table["active"] for pod in routers if pod.table} == {"g1"}


def test_of_two_that_are_kept_and_not_asked_for_the_one_that_drained_last_stays() -> None:
    """r1 was pinned while r2 drained, and no longer is; then r2 was kept beside it."""
    world = _with_kept()
    _refreshed(world, "three")
    r2, r3 = world.status.rollouts
    earlier = replace(r2, rollout="r1", generation="g1", kept_since="2026-01-01T12:00:05Z")
    world.status = replace(world.status, rollouts=(earlier, r2, r3))
    assert [rollout.rollout for rollout in world.look().status.rollouts] == ["r2", "r3"]
