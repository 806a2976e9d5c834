"""While a dataset is suspended, nothing is built, rolled out or changed, and what serves keeps serving."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.plan_samples import applied, condition, deleted, rebuilt, says, serving, trouble, unconfirmed
from operator_support.plan_world import World

from lookupdb_operator.model import Observed
from lookupdb_operator.plan.builds import end_build
from lookupdb_operator.plan.objects import without_permanent_objects
from lookupdb_operator.status import BuildFailure, DatasetStatus, Ticket

NOW = "2030-01-01T00:00:00Z"


def _suspended() -> World:
    world = serving()
    world.edit(suspend=True)
    world.settle()
    return world


def _reconciled(world: World, moments: int = 40) -> World:
    for _ in range(moments):
        world.reconcile()
        world.step()
    return world


def test_a_dataset_that_is_as_specified_stays_so_and_says_why_nothing_happens() -> None:
    world = serving()
    world.edit(suspend=True)
    planned = world.reconcile()
    assert (planned.apply, planned.delete) == ((), ())
    assert says(planned) == {
        "Ready": "True Serving",
        "Built": "True GenerationBuilt",
        "RolledOut": "True Suspended",
        "Degraded": "False Healthy",
    }
    assert "routers answer from airports-r1 (generation g1)" in condition(planned, "RolledOut").message


def test_nothing_begins_for_a_dataset_that_was_suspended_from_the_start() -> None:
    world = World()
    world.edit(suspend=True)
    _reconciled(world)
    assert (world.status.last_generation, world.status.last_rollout, world.status.table) == (0, 0, None)
    assert condition(world.look(), "RolledOut").message.endswith("; nothing serves.")


def test_of_a_dataset_whose_status_was_lost_it_does_not_say_that_nothing_serves() -> None:
    world = _suspended()
    world.invariants.forget(set(), set())
    world.status = DatasetStatus()
    _reconciled(world)
    assert condition(world.look(), "RolledOut").message.endswith(
        "; the active generation is unknown; its servers stay."
    )
    planned = world.look()
    assert (says(planned)["Built"], says(planned)["RolledOut"]) == ("False Suspended", "False Suspended")
    assert "Deployment/airports-router" not in applied(planned), "it is there since the first look"


@pytest.mark.parametrize(
    "edit",
    [
        {"source": {"url": "s3://data/v2.csv"}},
        {"shards": 3},
        {"replicas": 3},
        {"replicas": 1},
        {"serving": {"workers": 2}},
        {"router": {"replicas": 4}},
        {"router": {"resources": {"limits": {"memory": "1Gi"}}}},
        {"generation": "g1"},
        {"keepGenerations": 1},
    ],
    ids=lambda edit: " ".join(f"{name} {value}" for name, value in edit.items()),
)
def test_an_edit_waits_until_the_suspension_ends(edit: dict[str, object]) -> None:
    world = serving()
    world.edit(source={"url": "s3://data/v0.csv"})
    world.settle()
    world.edit(suspend=True)
    world.settle()
    kept, table = world.status.generations, world.status.table
    world.edit(**edit)
    for _ in range(20):
        planned = world.reconcile()
        assert (applied(planned), deleted(planned)) == (set(), set())
        world.step()
    assert (world.status.generations, world.status.table) == (kept, table)
    world.edit(suspend=False)
    world.settle()
    assert says(world.look())["RolledOut"] in ("True UpToDate", "True Pinned")


def test_a_refresh_waits() -> None:
    world = _suspended()
    world.annotate("now")
    _reconciled(world)
    assert world.status.last_generation == 1
    assert says(world.look())["Built"] == "False Suspended"
    world.edit(suspend=False)
    world.settle(until=lambda: world.status.refreshed == "now")


def test_a_build_under_way_ends_and_its_number_is_past() -> None:
    world = serving()
    world.takes.build = 100
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.build is not None)
    world.step()
    world.edit(suspend=True)
    assert "Job/airports-g2-build" in deleted(world.reconcile())
    assert (world.status.build, world.status.last_generation) == (None, 2)


def test_a_candidate_is_abandoned() -> None:
    world = rebuilt(serving())
    world.edit(suspend=True)
    assert "StatefulSet/airports-r2-s0" in deleted(world.reconcile())
    assert (world.status.generation, [rollout.rollout for rollout in world.status.rollouts]) == ("g1", ["r1"])


def test_what_routers_are_taking_up_is_taken_up_and_what_served_before_drains() -> None:
    world = unconfirmed(serving())
    world.takes.table = world.takes.slow_table = 1
    world.edit(suspend=True)
    world.settle()
    assert (world.status.generation, [rollout.rollout for rollout in world.status.rollouts]) == ("g2", ["r2"])


def test_what_is_gone_is_made_again() -> None:
    world = _suspended()
    gone = {
        ("StatefulSet", "airports-r1-s0"),
        ("Service", "airports-r1"),
        ("Deployment", "airports-router"),
        ("ConfigMap", "airports-routing-table"),
    }
    for key in gone:
        del world.things[key]
    assert {f"{kind}/{name}" for kind, name in gone} <= applied(world.look())


def test_a_stateful_set_of_an_older_pod_template_cannot_be_made_again() -> None:
    """Because nothing holds its pod template any more."""
    world = _suspended()
    world.edit(serving={"workers": 2})
    del world.things["StatefulSet", "airports-r1-s0"]
    assert applied(world.reconcile()) == set()


def test_it_wakes_nobody_for_an_attempt_or_a_turn_that_does_not_come() -> None:
    failure = BuildFailure("BadSource", "no such file", "g1", "content", "", 3, NOW)
    status = end_build(DatasetStatus(failure=failure, build_ticket=Ticket(NOW, 2)))
    assert (status.build, status.failure, status.build_ticket) == (None, None, None)
    world = _suspended()
    world.edit(source={"url": "s3://data/broken.csv"})
    world.reconcile()
    assert world.look().next_look_in is None


def test_servers_that_fail_degrade_it_as_ever() -> None:
    world = _suspended()
    pod = next(pod for pod in world.pods.values() if pod.component == "shard")
    pod.ready, pod.trouble = False, trouble("CrashLooping")
    assert says(world.reconcile())["Degraded"] == "True CrashLooping"


def test_a_kept_rollout_ends_when_its_time_has_passed() -> None:
    world = serving(rollout={"keepPrevious": "30m"})
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    world.edit(suspend=True)
    world.reconcile()
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r1", "r2"]
    world.now += timedelta(seconds=1801)
    world.reconcile()
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]


def test_what_is_of_no_rollout_is_never_garbage() -> None:
    observed: Observed = serving().observe()
    assert {existing.rollout for existing in without_permanent_objects(observed).other_objects} == {"r1"}
