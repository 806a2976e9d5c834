"""Shard servers: the desired ones, and those that some routing table still names."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import (
    applied,
    condition,
    deleted,
    rebuilt,
    replicas,
    says,
    serving,
    trouble,
    unconfirmed,
)
from operator_support.plan_world import NEVER, World

from lookupdb_operator.plan import plan


def test_a_generation_is_rolled_out_with_a_set_a_shard_and_a_number_of_its_own() -> None:
    world = World()
    world.takes.start = NEVER
    world.settle(until=lambda: world.status.last_rollout == 1)
    assert {name for kind, name in world.things if kind == "StatefulSet"} == {"airports-r1-s0", "airports-r1-s1"}
    assert ("Service", "airports-r1") in world.things
    assert ("ConfigMap", "airports-routing-table") not in world.things


VOLUME: dict[str, Any] = {"serving": {"delivery": {"type": "Volume", "volume": {"claimName": "lookups"}}}}
IMAGE: dict[str, Any] = {"serving": {"delivery": {"type": "Image", "image": {"repository": "r.example/lookups"}}}}
SAME_ROLLOUT = [
    pytest.param({"gates": {"minRecords": 5}}, id="another gate"),
    pytest.param({"router": {"replicas": 3}}, id="more routers"),
    pytest.param({"keepGenerations": 5}, id="more generations kept"),
    pytest.param({"replicas": 3}, id="more servers"),
    pytest.param({"rollout": {"drainSeconds": 0}}, id="another drain time"),
]
NEW_ROLLOUT = [
    pytest.param({"source": {"url": "s3://data/v2.csv"}}, id="another source"),
    pytest.param({"key": {"columns": ["iata"]}}, id="another key"),
    pytest.param({"shards": 3}, id="more shards"),
    pytest.param({"image": "lookupdb:2"}, id="another image"),
    pytest.param({"serving": {"workers": 2}}, id="more workers"),
    pytest.param({"serving": {"resources": {"requests": {"cpu": "2"}}}}, id="other resources"),
    pytest.param({"scheduling": {"nodeSelector": {"disk": "fast"}}}, id="other nodes"),
    pytest.param(VOLUME, id="another delivery"),
    pytest.param(IMAGE, id="delivery by image"),
]


@pytest.mark.parametrize("change", SAME_ROLLOUT)
def test_no_new_rollout_for(change: dict[str, Any]) -> None:
    world = serving()
    world.edit(**change)
    world.settle()
    assert world.status.last_rollout == 1
    assert world.status.generation == "g1"


@pytest.mark.parametrize("change", NEW_ROLLOUT)
def test_a_new_rollout_and_nothing_left_of_the_old_one_for(change: dict[str, Any]) -> None:
    world = serving()
    world.edit(**change)
    world.settle()
    assert world.status.last_rollout == 2
    assert [one.rollout for one in world.status.rollouts] == ["r2"]
    assert not any("-r1" in name for _, name in world.things)
    assert not any("-r1" in name for name in world.pods)


@pytest.mark.parametrize(
    "change", [VOLUME, VOLUME | {"image": "lookupdb:2"}], ids=["another delivery", "and another image"]
)
def test_another_delivery_builds_nothing_and_what_serves_goes_on_until_its_servers_are_ready(
    change: dict[str, Any],
) -> None:
    world = serving()
    world.takes.start = NEVER
    world.edit(**change)
    world.settle(until=lambda: world.status.last_rollout == 2)
    assert (world.status.last_generation, world.status.build) == (1, None)
    ready = world.status.condition("Ready")
    assert ready is not None
    assert ready.status == "True", "what serves goes on"
    world.takes.start = 1
    world.settle()
    assert (world.status.last_generation, world.status.generation) == (1, "g1")
    world.edit(serving={"delivery": {"type": "Fetch"}})
    world.settle()
    assert (world.status.last_generation, world.status.last_rollout) == (1, 3)


class TestSuperseding:
    """A newer spec always wins: a corrected spec does not wait for a broken one."""

    def test_a_build_under_way_ends_at_once_and_another_number_is_claimed(self) -> None:
        world = serving()
        world.takes.build = NEVER
        world.edit(source={"url": "s3://data/broken.csv"})
        world.reconcile()
        world.edit(source={"url": "s3://data/right.csv"})
        planned = world.look()
        assert deleted(planned) == {"Job/airports-g2-build", "ConfigMap/airports-g2-build"}
        assert applied(planned) >= {"Job/airports-g3-build", "ConfigMap/airports-g3-build"}

    def test_a_build_under_way_ends_at_once_when_what_serves_is_asked_for_again(self) -> None:
        world = serving()
        world.takes.build = NEVER
        world.edit(source={"url": "s3://data/v2.csv"})
        world.reconcile()
        world.edit(source={"url": "s3://data/v1.csv"})
        planned = world.reconcile()
        assert deleted(planned) == {"Job/airports-g2-build", "ConfigMap/airports-g2-build"}
        assert planned.status.build is None

    def test_the_number_of_servers_asked_for_does_not_disturb_a_build(self) -> None:
        world = World()
        world.takes.build = NEVER
        world.reconcile()
        world.edit(replicas=1)
        planned = world.look()
        assert planned.status.build == world.status.build
        assert (applied(planned), deleted(planned)) == (set(), set())

    def test_a_candidate_goes_at_once_ready_or_not(self) -> None:
        world = rebuilt(serving())
        world.edit(source={"url": "s3://data/v3.csv"})
        planned = world.look()
        assert {"StatefulSet/airports-r2-s0", "StatefulSet/airports-r2-s1", "Service/airports-r2"} <= deleted(planned)
        assert not any("airports-r1" in one for one in deleted(planned))
        assert [one.rollout for one in planned.status.rollouts] == ["r1"]

    def test_a_candidate_that_cannot_start_is_replaced_by_one_of_the_corrected_image(self) -> None:
        world = serving()
        world.takes.start = NEVER
        world.edit(image="lookupdb:wrong")
        world.reconcile()
        world.takes.start = 1
        world.edit(image="lookupdb:right")
        planned = world.reconcile()
        assert "StatefulSet/airports-r2-s0" in deleted(planned)
        assert "StatefulSet/airports-r3-s0" in applied(planned)
        world.settle()
        assert [one.rollout for one in world.status.rollouts] == ["r3"]

    def test_a_rollout_that_a_written_table_names_stays_until_the_next_is_in_effect(self) -> None:
        world = unconfirmed(serving())
        world.edit(source={"url": "s3://data/v3.csv"})
        world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r3")
        assert [one.rollout for one in world.status.rollouts] == ["r1", "r2", "r3"]
        world.takes.table = 1
        world.settle()
        assert [one.rollout for one in world.status.rollouts] == ["r3"]

    def test_going_back_while_a_table_is_being_taken_up_goes_back_to_the_same_servers(self) -> None:
        world = unconfirmed(serving())
        world.edit(source={"url": "s3://data/v1.csv"})
        planned = world.reconcile()
        assert planned.status.table is not None
        assert (planned.status.table.version, planned.status.table.rollout) == (3, "r1")
        assert planned.status.last_rollout == 2

    def test_rollouts_do_not_pile_up_without_end(self) -> None:
        world = unconfirmed(serving())
        for number in range(3, 20):
            world.edit(image=f"lookupdb:{number}")
            world.live(8)
        assert len(world.status.rollouts) <= 12


class TestServers:
    def test_more_are_there_first_and_named_later(self) -> None:
        world = serving()
        world.edit(replicas=3)
        planned = world.reconcile()
        assert replicas(planned) == {"airports-r1-s0": 3, "airports-r1-s1": 3}
        assert "ConfigMap/airports-routing-table" not in applied(planned)
        assert says(planned)["RolledOut"] == "False StartingServers"
        world.settle()
        assert world.status.table is not None
        assert (world.status.table.version, world.status.table.replicas) == (2, 3)
        assert world.status.replicas == 3

    def test_fewer_are_named_first_and_gone_later(self) -> None:
        world = serving(replicas=3)
        world.edit(replicas=1)
        planned = world.reconcile()
        assert "ConfigMap/airports-routing-table" in applied(planned)
        assert replicas(planned) == {}
        world.settle()
        assert world.status.replicas == 1

    def test_scale_while_the_source_is_broken(self) -> None:
        world = serving()
        world.takes.build = NEVER
        world.edit(source={"url": "s3://data/broken.csv"}, replicas=3)
        assert replicas(world.reconcile())["airports-r1-s0"] == 3

    def test_scale_though_they_would_be_made_otherwise_now(self) -> None:
        world = serving()
        world.takes.start = NEVER
        world.edit(image="lookupdb:wrong", replicas=3)
        planned = world.look()
        assert replicas(planned)["airports-r1-s0"] == 3
        (part,) = (one for one in planned.apply if one["metadata"]["name"] == "airports-r1-s0" and "spec" in one)
        assert part["spec"] == {"replicas": 3}

    def test_are_put_right_when_somebody_else_scales_them(self) -> None:
        world = serving()
        thing = world.things["StatefulSet", "airports-r1-s0"]
        thing.manifest = {**thing.manifest, "spec": {**thing.manifest["spec"], "replicas": 0}}
        assert replicas(world.look()) == {"airports-r1-s0": 2}

    def test_are_made_again_when_somebody_deletes_them(self) -> None:
        world = serving()
        del world.things["StatefulSet", "airports-r1-s0"]
        assert "StatefulSet/airports-r1-s0" in applied(world.look())

    def test_in_trouble_are_reported_while_the_old_ones_serve(self) -> None:
        world = rebuilt(serving())
        next(pod for pod in world.pods.values() if "-r2-" in pod.name).trouble = trouble(
            "FetchFailed", "sha256 differs"
        )
        planned = world.look()
        assert says(planned) == {
            "Ready": "True Serving",
            "Built": "True GenerationBuilt",
            "RolledOut": "False FetchFailed",
            "Degraded": "True FetchFailed",
        }
        assert "sha256 differs" in condition(planned, "RolledOut").message


def test_what_nobody_asks_for_any_more_is_deleted_whoever_left_it() -> None:
    world = serving()
    stray = replace(world.observe().shard_sets[0], rollout="r0")
    observed = replace(world.observe(), shard_sets=(*world.observe().shard_sets, stray))
    assert plan(observed, world.config, world.now).delete == ()
    world.edit(image="lookupdb:2")
    world.settle()
    left = replace(stray, rollout="r1")
    observed = replace(world.observe(), shard_sets=(*world.observe().shard_sets, left))
    assert plan(observed, world.config, world.now).delete == (left.ref,)


@pytest.mark.parametrize("lost", [("Service", "airports-r1"), ("PodDisruptionBudget", "airports-r1-s1")])
def test_what_gives_the_old_servers_their_names_comes_back_while_new_ones_start(lost: tuple[str, str]) -> None:
    world = serving()
    world.takes.start = NEVER
    world.edit(image="lookupdb:2")
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.reconcile()
    assert applied(world.look()) == set()
    del world.things[lost]
    assert applied(world.look()) == {"/".join(lost)}


ROUTERS = ("Deployment", "airports-router")


def _scaled_by_others(world: World, replicas: int) -> None:
    """Scale a set as an autoscaler or a person does: the rest of our fields stays."""
    deployment = world.things[ROUTERS]
    spec = {**deployment.manifest["spec"], "replicas": replicas}
    deployment.manifest = {**deployment.manifest, "spec": spec}


@pytest.mark.parametrize(
    ("routers", "bounds", "kept"),
    [
        pytest.param(5, (2, 10), 5, id="as many as there are"),
        pytest.param(1, (3, 10), 3, id="the least at once"),
        pytest.param(9, (2, 4), 4, id="no more than the most"),
    ],
)
def test_routers_do_not_fall_to_one_when_an_autoscaler_takes_them_over(
    routers: int, bounds: tuple[int, int], kept: int
) -> None:
    world = serving(router={"replicas": routers})
    world.edit(router={"autoscaling": {"minReplicas": bounds[0], "maxReplicas": bounds[1]}})
    world.settle()
    assert world.things[ROUTERS].manifest["spec"]["replicas"] == kept
    assert applied(world.look()) == set()


def test_routers_of_an_autoscaler_are_its_to_number_whatever_else_is_written() -> None:
    world = serving(router={"autoscaling": {"minReplicas": 2, "maxReplicas": 10}})
    assert world.things[ROUTERS].manifest["spec"]["replicas"] == 2, "the least from the beginning"
    _scaled_by_others(world, 7)
    assert applied(world.look()) == set()
    world.edit(router={"autoscaling": {"minReplicas": 2, "maxReplicas": 10}, "workers": 3})
    assert ROUTERS[1] in str(world.look().apply)
    world.settle()
    assert world.things[ROUTERS].manifest["spec"]["replicas"] == 7
    world.edit(router={"replicas": 3})
    world.settle()
    assert world.things[ROUTERS].manifest["spec"]["replicas"] == 3, "the spec's, once there is no autoscaler"


@pytest.mark.parametrize("autoscaling", [None, {"minReplicas": 2, "maxReplicas": 4}], ids=["fixed", "autoscaled"])
def test_routers_that_somebody_scaled_to_none_come_back(autoscaling: dict[str, int] | None) -> None:
    world = serving(router={"autoscaling": autoscaling} if autoscaling else {"replicas": 2})
    _scaled_by_others(world, 0)
    assert applied(world.reconcile()) == {"Deployment/airports-router"}
    assert world.things[ROUTERS].manifest["spec"]["replicas"] == 2


def test_an_autoscaler_that_is_not_asked_for_any_more_goes() -> None:
    world = serving(router={"autoscaling": {"minReplicas": 2, "maxReplicas": 4}})
    assert ("HorizontalPodAutoscaler", "airports-router") in world.things
    world.edit(router=None)
    assert deleted(world.look()) == {"HorizontalPodAutoscaler/airports-router"}


def test_generations_are_trimmed_but_never_one_that_serves_or_is_asked_for() -> None:
    world = serving(keepGenerations=1)
    for version in (2, 3, 4):
        world.edit(source={"url": f"s3://data/v{version}.csv"})
        world.settle()
        assert [one.generation for one in world.status.generations] == [f"g{version}"]
    world.takes.start = NEVER
    world.edit(source={"url": "s3://data/v5.csv"})
    world.settle(until=lambda: world.status.last_rollout == 5)
    assert [one.generation for one in world.status.generations] == ["g4", "g5"]
    world.now += timedelta(seconds=1)
