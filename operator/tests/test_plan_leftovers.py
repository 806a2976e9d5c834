"""Replaced servers of a shard-by-shard rollout that do not go: when the wait for them is reported, and how."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.plan_samples import condition, serving
from operator_support.plan_world import World

from lookupdb_operator.model import Deletion
from lookupdb_operator.plan import reasons, windows
from lookupdb_operator.plan.windows import Leftover

HELD = "airports-r1-s0-0"
PER_SHARD = {"strategy": "PerShard", "drainSeconds": 5, "progressDeadlineSeconds": 60}


def _replaced(*finalizers: str) -> World:
    """Shard 0 of two is served by r2; the pod that served it before has these finalizers."""
    world = serving(shards=2, rollout=PER_SHARD)
    world.pods[HELD].finalizers = finalizers
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: "airports-r1-s0" not in {name for _, name in world.things})
    return world


def _wait(world: World, seconds: float) -> None:
    """For ``seconds``, reconcile only when a pass is due."""
    end = world.now + timedelta(seconds=seconds)
    while world.now < end:
        due = world.reconcile().next_look_in
        left = (end - world.now).total_seconds()
        world.step(left if due is None else min(max(due, 1.0), left))
    world.reconcile()


def test_a_pod_that_a_finalizer_holds_is_reported_with_what_holds_it_and_what_to_do() -> None:
    world = _replaced("example.com/backup")
    deleted = world.pods[HELD].deleted_at
    assert deleted is not None
    _wait(world, 50)
    assert condition(world.reconcile(), "RolledOut").reason == reasons.DRAINING
    assert condition(world.reconcile(), "Degraded").status == "False"
    _wait(world, 20)
    planned = world.reconcile()
    rolled_out, degraded = condition(planned, "RolledOut"), condition(planned, "Degraded")
    expected = (
        f"Pod {HELD}, which was replaced, is still there 60 s after it should be gone, and the next shards wait;"
        " its finalizer example.com/backup must be removed by the controller that set it. If that does not happen,"
        f" this removes all finalizers: kubectl patch -n default pod {HELD} --type=merge"
        ' -p \'{"metadata":{"finalizers":null}}\'.'
    )
    assert (rolled_out.status, rolled_out.reason) == ("False", reasons.DELETION_OVERDUE)
    assert rolled_out.message == f"1 of 2 shards answer from g2, the others from g1; {expected}"
    assert (degraded.status, degraded.reason) == ("True", reasons.DELETION_OVERDUE)
    assert degraded.message == f"{expected} g1 keeps serving."
    assert planned.status.phase == "Stuck"


def test_once_it_is_gone_the_next_shards_begin() -> None:
    world = _replaced("example.com/backup")
    _wait(world, 100)
    world.pods[HELD].finalizers = ()
    world.settle()
    planned = world.reconcile()
    assert (planned.status.generation, planned.status.phase) == ("g2", "Ready")
    assert condition(planned, "Degraded").status == "False"


def test_what_it_says_does_not_change_with_time_alone() -> None:
    world = _replaced("example.com/backup")
    _wait(world, 100)
    writes = world.writes
    _wait(world, 1000)
    assert world.writes == writes


def test_with_all_shards_at_once_nothing_waits_for_it() -> None:
    world = _replaced("example.com/backup")
    world.edit(rollout={**PER_SHARD, "strategy": "Atomic"})
    world.settle(until=lambda: world.status.generation == "g2")
    _wait(world, 100)
    assert condition(world.reconcile(), "Degraded").status == "False"


@pytest.mark.parametrize(
    ("deletion", "told"),
    [
        (None, "nobody has deleted it yet: check whether kube-controller-manager runs"),
        (Deletion(World().now), "see why with: kubectl describe -n lookups statefulset airports-r1-s0"),
        (
            Deletion(World().now, ("a.io/x", "b.io/y")),
            "its finalizers a.io/x, b.io/y must be removed by the controller that set",
        ),
    ],
)
def test_who_holds_it(deletion: Deletion | None, told: str) -> None:
    leftover = Leftover("StatefulSet", "airports-r1-s0", "r1", 0, deletion)
    assert windows.describe_holder(leftover, "lookups").startswith(told)
