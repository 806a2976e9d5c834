"""A status that was wiped or set back: what serves stays, and no number is used twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_support.plan_objects import ref
from operator_support.plan_routers import edit_label
from operator_support.plan_samples import broken, condition, deleted, serving, unconfirmed
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.cluster.workloads import parse_existing, parse_shard_set
from lookupdb_operator.model import RouterReport
from lookupdb_operator.plan import reasons, rollouts
from lookupdb_operator.status import DatasetStatus

OTHER_SERVERS: dict[str, Any] = {"serving": {"workers": 2}}


def _of_some_age() -> World:
    """g3 serves from r3, by routing table 3."""
    world = serving()
    for version in (2, 3):
        world.edit(source={"url": f"s3://data/v{version}.csv"})
        world.settle()
    assert world.status.table is not None
    assert (world.status.generation, world.status.last_rollout, world.status.table.version) == ("g3", 3, 3)
    return world


def _set_back(world: World, status: DatasetStatus) -> None:
    world.status = status
    world.version += 1


def _versions(world: World) -> set[int]:
    return {pod.table["version"] for pod in world.pods.values() if pod.component == names.ROUTER and pod.table}


def test_a_status_that_was_wiped_is_built_up_again_beside_what_serves() -> None:
    world = _of_some_age()
    _set_back(world, DatasetStatus())
    planned = world.reconcile()
    assert planned.delete == ()
    assert [(one.rollout, one.generation, one.referenced_replicas) for one in planned.status.rollouts] == [
        ("r3", "g3", 2)
    ]
    world.settle()
    assert (world.status.generation, [one.rollout for one in world.status.rollouts]) == ("g4", ["r4"])
    assert _versions(world) == {4}


def test_the_only_routing_table_there_ever_was_is_not_written_again_under_its_number() -> None:
    """Routers would keep theirs, and report that number."""
    world = serving()
    _set_back(world, DatasetStatus())
    world.settle()
    assert world.status.table is not None
    assert (world.status.table.rollout, _versions(world)) == ("r2", {2})


def test_a_status_that_was_set_back_to_before_the_first_routing_table_takes_nothing_from_what_that_references() -> None:
    """The status knows r1 as a candidate, which could go at once; routers answer from it."""
    world = World()
    world.settle(until=lambda: world.status.last_rollout == 1)
    claimed = world.status
    world.settle()
    world.edit(**OTHER_SERVERS)
    _set_back(world, claimed)
    planned = world.reconcile()
    assert deleted(planned) == set()
    assert [(rollout.rollout, rollout.referenced_replicas) for rollout in planned.status.rollouts] == [("r1", 2)]
    world.settle()
    assert world.status.table is not None
    assert ([rollout.rollout for rollout in world.status.rollouts], _versions(world)) == (["r2"], {2})


def test_a_status_that_was_set_back_does_not_go_back_to_an_older_generation() -> None:
    world = serving()
    old = world.status
    for version in (2, 3):
        world.edit(source={"url": f"s3://data/v{version}.csv"})
        world.settle()
    world.edit(source={"url": "s3://data/v1.csv"}, **OTHER_SERVERS)
    _set_back(world, old)
    planned = world.reconcile()
    assert (planned.status.table, planned.status.generations) == (None, ())
    ready = condition(planned, "Ready")
    assert (ready.status, ready.reason) == ("Unknown", reasons.STATUS_LOST)
    assert "airports-r3 stays" in ready.message
    world.settle()
    assert (world.status.generation, world.status.last_rollout) == ("g4", 4)
    assert _versions(world) == {4}


def test_a_status_that_was_set_back_is_found_so_though_a_label_of_the_newer_routing_table_was_edited() -> None:
    world = serving()
    old = world.status
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    edit_label(world)
    _set_back(world, old)
    planned = world.reconcile()
    assert (planned.status.table, planned.status.generations) == (None, ())
    assert condition(planned, "Ready").reason == reasons.STATUS_LOST
    world.settle()
    assert (world.status.generation, _versions(world)) == ("g3", {3})


def test_a_status_that_is_lost_while_the_source_is_bad_leaves_what_serves_for_as_long_as_that_lasts() -> None:
    world = serving()
    world.fails = lambda spec: broken()
    _set_back(world, DatasetStatus())
    for _ in range(100):
        planned = world.reconcile()
        world.step(10)
    assert condition(planned, "Ready").status == "Unknown"
    assert condition(planned, "Built").reason == reasons.BAD_SOURCE
    assert {name for kind, name in world.things if kind == "StatefulSet"} == {"airports-r1-s0", "airports-r1-s1"}
    assert _versions(world) == {1}


def test_a_status_set_back_into_a_recovery_spares_what_was_cut_over_to_since() -> None:
    """It knows the rollout as claimed, and no table: servers of a newer table may be in use."""
    world = serving()
    _set_back(world, DatasetStatus())
    world.settle(until=lambda: world.status.last_rollout == 2)
    before = world.status
    assert (before.table, [rollout.template != "" for rollout in before.rollouts]) == (None, [False, True])
    world.settle(until=lambda: world.status.table is not None)
    _set_back(world, before)
    world.edit(source={"url": "s3://data/v2.csv"})
    planned = world.reconcile()
    assert not [name for name in deleted(planned) if "airports-r2" in name]
    assert planned.status.last_table == 2
    world.settle()
    assert _versions(world) == {3}


def test_a_builder_of_a_forgotten_spec_is_not_taken_for_this_ones() -> None:
    world = serving()
    world.takes.build = 5
    world.edit(source={"url": "s3://data/v2.csv"})
    old = world.status
    world.reconcile()
    assert ("Job", "airports-g2-build") in world.things
    world.edit(source={"url": "s3://data/v3.csv"})
    _set_back(world, old)
    planned = world.reconcile()
    assert planned.status.build is not None
    assert planned.status.build.generation == "g3"
    assert "Job/airports-g2-build" in deleted(planned)


def test_routers_that_are_ahead_of_all_that_is_written_are_overtaken() -> None:
    """Happens after a cluster is restored from a backup. Routers only accept a newer table."""
    world = _of_some_age()
    for pod in world.pods.values():
        if pod.component == names.ROUTER:
            pod.table = {**(pod.table or {}), "version": 9}
    world.asked = True
    world.settle()
    assert _versions(world) == {10}


def test_until_then_nobody_says_that_what_status_remembers_is_in_effect() -> None:
    world = _of_some_age()
    observed = world.observe()
    ahead = {pod.uid: RouterReport(9, newest=9) for pod in observed.pods if pod.component == names.ROUTER}
    status = world.planner(replace(observed, routers=ahead), world.config, world.now).status
    assert status.table is not None
    assert (status.table.version, status.table.confirmed_at) == (10, "")
    rolled_out = status.condition("RolledOut")
    assert rolled_out is not None
    assert rolled_out.reason == reasons.CONFIRMING


@pytest.mark.parametrize(
    "torn", ["rollouts", "generations", "rollouts table", "generations table", "table", "rollouts table generation"]
)
def test_a_status_of_which_a_part_was_taken_away_takes_nothing_from_what_serves(torn: str) -> None:
    world = _of_some_age()
    members = {name: member for name, member in world.status.to_json().items() if name not in torn.split()}
    _set_back(world, DatasetStatus.from_json(members))
    world.invariants.forget({"g1", "g2", "g3"}, {"r3"})
    planned = world.reconcile()
    assert not [name for name in deleted(planned) if "airports-r3" in name]
    world.settle()
    assert (world.status.last_rollout, _versions(world)) == (4, {4})


def test_what_was_rolled_back_from_stays_out_when_nothing_is_known_to_serve_and_status_says_so() -> None:
    """Routers answer from g1, whose number an edited status has lost; g2's data is built again."""
    world = serving()
    world.content_of_source = lambda source: f"{source} bad"
    world.annotate("bad")
    world.settle()
    for pin in ("g1", None):
        world.edit(generation=pin)
        world.settle()
    world.invariants.has_forgotten = True
    _set_back(world, replace(world.status, generations=()))
    world.settle(until=lambda: world.status.find_generation("g3") is not None)
    for _ in range(60):
        planned = world.reconcile()
        world.step()
    rolled_out = condition(planned, "RolledOut")
    assert (rolled_out.status, rolled_out.reason) == ("False", reasons.ROLLED_BACK)
    assert "set spec.generation to g3" in rolled_out.message
    assert (world.status.table, [one.rollout for one in world.status.rollouts]) == (None, ["r3"])
    assert (planned.apply, planned.delete) == ((), ())
    world.content_of_source = lambda source: f"{source} good"
    world.annotate("good")
    world.settle()
    assert world.status.generation == "g4"


@pytest.mark.parametrize("edited", ["", "g1"])
def test_what_is_active_is_found_out_again_when_somebody_has_edited_it(edited: str) -> None:
    world = _of_some_age()
    _set_back(world, replace(world.status, generation=edited, records=0))
    world.settle()
    assert (world.status.generation, world.status.records) == ("g3", 10)
    assert _versions(world) == {3}, "nothing is written for that"


def test_a_status_that_does_not_say_how_many_servers_are_referenced_is_built_up_again() -> None:
    """It reported ShardsUnavailable without end, while routers answered."""
    world = _of_some_age()
    _set_back(
        world, replace(world.status, rollouts=tuple(replace(r, referenced_replicas=0) for r in world.status.rollouts))
    )
    world.invariants.forget({"g1", "g2", "g3"}, {"r3"})
    planned = world.reconcile()
    assert not [name for name in deleted(planned) if "airports-r3" in name]
    world.settle()
    assert world.status.generation == "g4"


def test_the_servers_of_a_candidate_stay_though_status_has_lost_its_rollout() -> None:
    """The routing table in effect offers them."""
    world = serving(rollout={"promotion": "Manual", "drainSeconds": 5})
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.table is not None and world.status.table.candidate is not None)
    _set_back(world, replace(world.status, rollouts=world.status.rollouts[:1]))
    assert [name for name in deleted(world.look()) if "airports-r2" in name] == []


def test_a_status_set_back_from_another_life_takes_nothing_from_what_serves() -> None:
    """In the life before, r1 was abandoned; in this one, after the status was wiped, r1 serves."""
    world = World()
    world.edit(rollout={"drainSeconds": 5})
    world.settle(until=lambda: ("StatefulSet", "airports-r1-s0") in world.things)
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.last_rollout == 1 and ("StatefulSet", "airports-r1-s0") not in world.things)
    earlier = world.status
    _set_back(world, DatasetStatus())
    world.settle()
    assert world.status.table is not None
    assert world.status.table.rollout == "r1"
    _set_back(world, earlier)
    world.invariants.forget({"g1", "g2", "g3"}, {"r1"})
    assert [name for name in deleted(world.look()) if "airports-r1" in name] == []
    world.settle()


def test_sets_that_somebody_has_scaled_beyond_all_bounds_leave_a_status_that_can_be_read() -> None:
    world = _of_some_age()
    for key, thing in world.things.items():
        if key[0] == "StatefulSet":
            thing.manifest = {**thing.manifest, "spec": {**thing.manifest["spec"], "replicas": 100}}
    for status in (world.status, DatasetStatus()):
        planned = world.planner(
            replace(world.observe(), dataset=replace(world.dataset, status=status)), world.config, world.now
        )
        assert DatasetStatus.from_json(planned.status.to_json()) == planned.status


def _label(world: World, key: tuple[str, str], label: str, value: str) -> None:
    thing = world.things[key]
    metadata = thing.manifest["metadata"]
    labelled = {**metadata, "labels": {**metadata["labels"], label: value}}
    thing.manifest = {**thing.manifest, "metadata": labelled}


@pytest.mark.parametrize("value", ["mine", "", "g999999999", "g" + "9" * 60])
def test_a_set_whose_generation_somebody_has_labelled_is_kept_and_found_again(value: str) -> None:
    world = _of_some_age()
    _label(world, ("StatefulSet", "airports-r3-s0"), names.GENERATION, value)
    _set_back(world, DatasetStatus())
    planned = world.look()
    assert planned.delete == ()
    assert [(one.rollout, one.generation) for one in planned.status.rollouts] == [("r3", "g3")]
    assert DatasetStatus.from_json(planned.status.to_json()) == planned.status
    world.settle()
    assert (world.status.generation, world.status.last_generation) == ("g4", 4)


@pytest.mark.parametrize(
    ("label", "value"), [(names.GENERATION, "g999999999"), (names.ROLLOUT, "r999999999"), (names.ROLLOUT, "r1e9")]
)
def test_a_label_with_the_largest_number_leaves_numbers_for_what_comes(label: str, value: str) -> None:
    world = _of_some_age()
    _label(world, ("Service", "airports-r3"), label, value)
    world.edit(source={"url": "s3://data/v4.csv"})
    world.settle()
    assert (world.status.generation, world.status.last_generation, world.status.last_rollout) == ("g4", 4, 4)


@pytest.mark.parametrize("label", [names.ROLLOUT, names.GENERATION])
@pytest.mark.parametrize("status_is_lost", [False, True])
def test_what_somebody_has_labelled_as_of_the_past_stays(label: str, status_is_lost: bool) -> None:
    """The servers of a shard, all routers or the routing table were deleted: r1 was gone, and g1 was built."""
    world = _of_some_age()
    if status_is_lost:
        _set_back(world, DatasetStatus())
    past = {names.ROLLOUT: "r1", names.GENERATION: "g1"}[label]
    for key in world.things:
        _label(world, key, label, past)
    bodies = [
        {**thing.manifest, "metadata": {**thing.manifest["metadata"], "uid": thing.uid}}
        for thing in world.things.values()
    ]
    observed = replace(
        world.observe(),
        shard_sets=tuple(parse_shard_set(body) for body in bodies if body["kind"] == "StatefulSet"),
        other_objects=tuple(parse_existing(body["kind"], body) for body in bodies if body["kind"] != "StatefulSet"),
    )
    planned = world.planner(observed, world.config, world.now)
    assert deleted(planned) == set()
    assert [rollout.rollout for rollout in planned.status.rollouts] == ["r3"]


def test_a_status_that_is_lost_while_as_many_rollouts_stand_as_there_may_be_has_a_place_for_what_comes() -> None:
    """All of them were kept until another one serves, and none could begin, without any report."""
    world = serving()
    world.takes.table = world.takes.slow_table = NEVER
    for version in range(2, rollouts.MOST_ROLLOUTS + 1):
        world.edit(source={"url": f"s3://data/v{version}.csv"})
        world.settle(until=lambda: world.status.table is not None and world.status.table.generation == f"g{version}")  # noqa: B023
    standing = {rollout.rollout for rollout in world.status.rollouts}
    assert len(standing) == rollouts.MOST_ROLLOUTS
    world.invariants.forget({rollout.generation for rollout in world.status.rollouts}, standing)
    _set_back(world, DatasetStatus())
    world.takes.table = 1
    world.settle()
    assert (world.status.generation, [one.rollout for one in world.status.rollouts]) == ("g13", ["r13"])


@pytest.mark.parametrize("edit", [{"workers": 0}, {"workers": 5}, {"replicas": 0}, {"workers": 0, "replicas": 0}])
def test_a_status_whose_table_names_other_servers_than_there_are_is_built_up_again(edit: dict[str, int]) -> None:
    """Routers received it as it was: without any address, or under a version that they already had."""
    world = _of_some_age()
    assert world.status.table is not None
    _set_back(world, replace(world.status, table=replace(world.status.table, **edit)))  # type: ignore[arg-type]
    world.invariants.forget({"g1", "g2", "g3"}, {"r3"})
    assert not [name for name in deleted(world.look()) if "airports-r3" in name]
    world.settle()
    assert (world.status.generation, _versions(world)) == ("g4", {4})


@pytest.mark.parametrize("lost", [True, False])
def test_what_routers_answer_from_stays_though_status_has_lost_it_while_they_take_up_another_table(lost: bool) -> None:
    """Somebody removes its rollout to make progress, or it is not known as referenced."""
    world = unconfirmed(serving())
    assert (world.status.generation, world.status.rollouts[0].rollout) == ("g1", "r1")
    edited = () if lost else (replace(world.status.rollouts[0], referenced_replicas=0),)
    _set_back(world, replace(world.status, rollouts=(*edited, *world.status.rollouts[1:])))
    world.invariants.forget({"g1", "g2"}, {"r1", "r2"})
    assert deleted(world.look()) == set()
    world.takes.table = 1
    world.settle()
    assert (world.status.generation, [one.rollout for one in world.status.rollouts]) == ("g3", ["r3"])


def test_a_number_that_status_knows_is_not_claimed_again_whatever_it_says_is_the_last_one() -> None:
    """g2 is in the store, and no object names it."""
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    world.edit(generation="g1")
    world.settle()
    _set_back(world, replace(world.status, last_generation=0, last_rollout=0))
    world.annotate("again")
    planned = world.look()
    assert planned.status.build is not None
    assert (planned.status.build.generation, planned.status.last_rollout) == ("g3", 3)


def test_routers_are_not_taken_to_confirm_a_table_that_they_ignore_when_nobody_knows_which_one_they_have() -> None:
    """The first table after a reset had version 1, which routers still had from before: their table was deleted."""
    world = serving()
    _set_back(world, DatasetStatus())
    world.delete(ref(world.things["ConfigMap", names.routing_table("airports")]))
    world.invariants.forget({"g1"}, {"r1"})
    world.invariants.last_version = 0
    world.settle()
    assert world.status.table is not None
    assert (world.status.table.rollout, _versions(world)) == ("r2", {world.status.table.version})
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    assert (world.status.generation, _versions(world)) == ("g3", {world.status.table.version})
