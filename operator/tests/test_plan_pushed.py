"""``spec.source.pushed``: builders look for pushes by themselves, and take them; their age counts from the push."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import broken, condition, says
from operator_support.plan_world import BEGIN, NEVER, World

from lookupdb_operator.model import BuildResult, format_moment
from lookupdb_operator.plan.reasons import LONGEST_WAIT
from lookupdb_operator.status import DatasetStatus

PUSHED_AT = "2026-01-01T09:00:00Z"
WAITING = BuildResult("waiting", message="waiting for the first push to s3://lookupdb/…/pushed: nothing was read")
REJECTED = "push g2 in s3://lookupdb/… was rejected: it was made for another spec: shards was 4, the spec says 2"


def pushed(**spec: Any) -> World:
    world = World()
    world.edit(source={"pushed": True}, **spec)
    return world


def take(world: World, generation: str = "g1", fingerprint: str = "f1", **members: Any) -> None:
    """Let builders take a push from now on."""
    result = BuildResult("built", generation, fingerprint, 10, 1000, 500, PUSHED_AT, **members)
    world.fails = lambda spec: result
    world.published[generation] = "of a push"


def serving(**spec: Any) -> World:
    world = pushed(**spec)
    take(world)
    world.settle()
    assert world.status.generation == "g1"
    return world


def pass_time(world: World, seconds: float) -> None:
    end = world.now + timedelta(seconds=seconds)
    while world.now < end:
        planned = world.reconcile()
        world.step(min(max(planned.next_look_in or 15.0, 1.0), 15.0))


def test_a_push_serves_and_is_as_old_as_it_is() -> None:
    world = serving()
    (generation,) = world.status.generations
    assert (generation.built_at, generation.refreshed_at, generation.adopted_from) == (PUSHED_AT, PUSHED_AT, "")
    assert says(world.look())["RolledOut"] == "True UpToDate"


def test_the_builder_needs_no_source() -> None:
    world = pushed()
    world.takes.build = NEVER
    world.reconcile()
    job = world.things["Job", "airports-g1-build"].manifest["spec"]["template"]["spec"]
    (container,) = job["containers"]
    assert {volume["name"] for volume in job["volumes"]} <= {"dataset", "scratch", "tmp", "store-token"}
    assert "--volume" not in container["args"]


def test_pushes_are_looked_for_without_a_schedule_of_the_users() -> None:
    world = serving()
    begun = world.status.last_generation
    world.fails = lambda spec: BuildResult("unchanged", fingerprint="f1")
    pass_time(world, 660)
    assert world.status.last_generation == begun + 2
    assert world.status.builds[-1].outcome == "unchanged"
    take(world, f"g{world.status.last_generation + 1}", "f2")
    pass_time(world, 360)
    world.settle()
    assert world.status.generations[-1].fingerprint == "f2"
    assert world.status.generation == world.status.generations[-1].generation


def test_a_schedule_of_the_users_counts() -> None:
    world = serving(refresh={"schedule": "0 * * * *"})
    begun = world.status.last_generation
    pass_time(world, 1200)
    assert world.status.last_generation == begun


def test_looks_that_find_nothing_do_not_make_it_fresh() -> None:
    world = serving(refresh={"staleAfterSeconds": 4 * 3600})
    world.fails = lambda spec: BuildResult("unchanged", fingerprint="f1")
    world.now = BEGIN + timedelta(minutes=50)
    pass_time(world, 300)
    assert says(world.look())["Degraded"] == "False Healthy"
    pass_time(world, 900)
    assert says(world.look())["Degraded"] == "True Stale", "it was pushed at nine"
    assert world.status.last_refreshed == PUSHED_AT
    take(world, f"g{world.status.last_generation + 1}", "f2")
    world.fails = lambda spec: BuildResult(
        "built", f"g{world.status.last_generation}", "f2", 10, 1000, 500, format_moment(world.now)
    )
    world.annotate("pushed again")
    world.settle()
    assert says(world.look())["Degraded"] == "False Healthy"


def test_before_the_first_push_nothing_is_wrong() -> None:
    world = pushed()
    world.fails = lambda spec: WAITING
    pass_time(world, 900)
    assert says(world.look())["Built"] == "False WaitingForSource"
    assert "waiting for the first push to s3://lookupdb" in condition(world.look(), "Built").message
    assert says(world.look())["Degraded"] == "False Healthy"
    take(world, f"g{world.status.last_generation + 1}")
    pass_time(world, LONGEST_WAIT + 30)
    assert world.status.generations, "it is seen within five minutes"


def test_a_bad_push_is_reported_and_the_one_before_keeps_serving() -> None:
    world = serving()
    world.fails = lambda spec: broken("PushRejected", REJECTED)
    world.annotate("pushed")
    pass_time(world, 60)
    assert says(world.look())["Built"] == "False PushRejected"
    degraded = condition(world.look(), "Degraded")
    assert (degraded.reason, REJECTED in degraded.message) == ("PushRejected", True)
    assert (world.status.generation, says(world.look())["Ready"]) == ("g1", "True Serving")
    pass_time(world, 3600)
    take(world, f"g{world.status.last_generation + 1}", "f3")
    pass_time(world, LONGEST_WAIT + 30)
    world.settle()
    assert world.status.generations[-1].fingerprint == "f3", "the next one is looked for every five minutes"


@pytest.mark.parametrize("promotion", ["Auto", "Manual"])
def test_a_push_waits_for_promotion_as_a_build_does(promotion: str) -> None:
    world = serving(rollout={"promotion": promotion})
    take(world, "g2", "f2")
    world.annotate("pushed")
    pass_time(world, 60)
    assert world.status.generation == ("g2" if promotion == "Auto" else "g1")
    if promotion == "Manual":
        world.annotate_decision(promote="g2")
        world.settle()
    assert world.status.generation == "g2"


def test_it_is_rolled_back_and_pinned_as_any_other() -> None:
    world = serving()
    take(world, "g2", "f2")
    world.annotate("pushed")
    world.settle()
    world.edit(generation="g1")
    world.settle()
    assert (world.status.generation, [mark.generation for mark in world.status.rolled_back]) == ("g1", ["g2"])
    world.edit(generation=None)
    world.settle()
    assert world.status.generation == "g1"


def test_a_change_from_a_source_to_pushes_keeps_serving_until_the_first() -> None:
    world = World()
    world.settle()
    world.edit(source={"pushed": True})
    world.fails = lambda spec: WAITING
    pass_time(world, 60)
    assert (world.status.generation, says(world.look())["Ready"]) == ("g1", "True Serving")


def test_a_lost_status_is_found_again() -> None:
    world = serving()
    world.status = DatasetStatus()
    take(world, "g2", "f1")
    world.settle()
    assert world.status.generation == "g2"
