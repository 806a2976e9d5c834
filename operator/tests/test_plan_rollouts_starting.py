"""Rollouts that take long, lack servers, or are overtaken by newer data: how long they wait, and what is reported."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.plan_objects import Process
from operator_support.plan_samples import applied, condition, deleted, rebuilt, says, serving, trouble
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import Trouble

UNSCHEDULABLE = trouble("Unschedulable", "no node takes pod airports-r2-s0-1")


def _servers(world: World, rollout: str) -> list[Process]:
    return sorted(
        (pod for pod in world.pods.values() if pod.labels.get(names.ROLLOUT) == rollout), key=lambda pod: pod.name
    )


def _candidate(replicas: int, missing: tuple[str, ...], why: Trouble | None) -> World:
    """r2 is claimed; its servers are ready, except those whose names end so."""
    world = rebuilt(serving(replicas=replicas))
    for pod in _servers(world, "r2"):
        pod.ready = not pod.name.endswith(missing) if missing else True
        pod.trouble = None if pod.ready else why
    return world


def _after(world: World, seconds: float) -> World:
    world.now += timedelta(seconds=seconds)
    return world


def _refresh_with_new_data(world: World, value: str) -> None:
    world.content_of_source = lambda url: f"{url} {value}".ljust(64)
    world.annotate(value)


def _starting_g2(world: World) -> World:
    """monday is answered by g2, whose servers start."""
    world.takes.start = NEVER
    _refresh_with_new_data(world, "monday")
    world.settle(until=lambda: world.status.last_rollout == 2)
    world.step()
    world.reconcile()
    return world


def _g3_built(world: World) -> World:
    """tuesday is answered by g3, while servers of g2 start."""
    _refresh_with_new_data(world, "tuesday")
    world.settle(until=lambda: world.status.refreshed == "tuesday")
    return world


class TestRefreshes:
    def test_that_come_faster_than_a_rollout_do_not_starve_it(self) -> None:
        world = serving()
        world.takes.start = 20
        served, reconcile = set(), world.when_due()
        for second in range(300):
            if second % 5 == 0:
                _refresh_with_new_data(world, f"refresh {second}")
            reconcile()
            world.step()
            served.add(world.status.generation)
            assert len(world.status.generations) <= 3 + 2, "builds pile up"
            assert len(world.status.rollouts) <= 3
        assert len(served) > 300 / 40
        assert world.status.last_generation <= len(served) + 2, "what is built is served"

    def test_of_a_spec_whose_candidate_starts_are_built_and_wait(self) -> None:
        world = _g3_built(_starting_g2(serving()))
        assert [rollout.generation for rollout in world.status.rollouts] == ["g1", "g2"]
        built = condition(world.look(), "Built")
        assert (built.status, built.reason) == ("True", "GenerationBuilt")
        assert "g3 holds 10 records in 2 shards; it is rolled out when airports-r2" in built.message

    def test_beyond_the_one_that_waits_are_not_built_yet(self) -> None:
        world = _g3_built(_starting_g2(serving()))
        _refresh_with_new_data(world, "wednesday")
        world.live(60)
        assert (world.status.build, world.status.last_generation) == (None, 3)
        assert says(world.look())["Built"] == "False WaitingForRollout"
        world.takes.start = 1
        world.settle()
        assert (world.status.generation, world.status.refreshed) == ("g4", "wednesday")

    @pytest.mark.parametrize(
        ("shape", "is_replaced"),
        [
            pytest.param(lambda world: None, False, id="starts"),
            pytest.param(lambda world: _break(world, ""), True, id="has no server that is not in trouble"),
            pytest.param(lambda world: _break(world, "s0-1"), False, id="lacks one server of a shard"),
            pytest.param(lambda world: _after(world, 602), True, id="is past its deadline"),
            pytest.param(lambda world: world.edit(image="lookupdb:2"), True, id="is of another pod template"),
        ],
    )
    def test_replace_a_candidate_that(self, shape: object, is_replaced: bool) -> None:
        world = _g3_built(_starting_g2(serving()))
        assert callable(shape)
        shape(world)
        planned = world.look()
        assert ("StatefulSet/airports-r2-s0" in deleted(planned)) == is_replaced
        assert ("StatefulSet/airports-r3-s0" in applied(planned)) == is_replaced

    def test_wait_for_routers_to_take_up_the_table_before(self) -> None:
        world = serving()
        world.takes.table = world.takes.slow_table = NEVER
        _refresh_with_new_data(world, "monday")
        world.settle(until=lambda: world.status.table is not None and world.status.table.rollout == "r2")
        _refresh_with_new_data(world, "tuesday")
        world.settle(until=lambda: world.status.refreshed == "tuesday")
        assert world.reconcile().status.last_rollout == 2
        assert _after(world, 602).look().status.last_rollout == 3, "a router that hangs does not keep data from others"


def _break(world: World, suffix: str) -> None:
    for pod in _servers(world, "r2"):
        pod.trouble = UNSCHEDULABLE if pod.name.endswith(suffix) else None


MISSING = [
    pytest.param(2, ("s0-1",), UNSCHEDULABLE, 30, "r1", id="one of two, in trouble, for a moment"),
    pytest.param(2, ("s0-1",), UNSCHEDULABLE, 62, "r2", id="one of two, in trouble"),
    pytest.param(2, ("-1",), UNSCHEDULABLE, 62, "r2", id="one of two of every shard: a node was drained"),
    pytest.param(2, ("s0-1",), None, 62, "r1", id="one of two, which starts"),
    pytest.param(2, ("s0-1",), None, 602, "r2", id="one of two, past the deadline"),
    pytest.param(2, ("s0-0", "s0-1"), UNSCHEDULABLE, 602, "r1", id="both of two"),
    pytest.param(3, ("s0-2",), UNSCHEDULABLE, 62, "r2", id="one of three"),
    pytest.param(3, ("s0-1", "s0-2"), UNSCHEDULABLE, 602, "r1", id="two of three"),
    pytest.param(1, ("s0-0",), UNSCHEDULABLE, 602, "r1", id="the only one"),
]


class TestMissingServers:
    @pytest.mark.parametrize(("replicas", "missing", "why", "seconds", "rollout"), MISSING)
    def test_keep_from_serving_or_not(
        self, replicas: int, missing: tuple[str, ...], why: Trouble | None, seconds: float, rollout: str
    ) -> None:
        world = _after(_candidate(replicas, missing, why), seconds)
        table = world.look().status.table
        assert table is not None
        assert (table.rollout, table.replicas) == (rollout, replicas)

    def test_are_looked_for_when_the_grace_and_the_deadline_pass(self) -> None:
        world = _candidate(2, ("s0-1",), UNSCHEDULABLE)
        begin = world.now
        planned = world.reconcile()
        while planned.status.table is not None and planned.status.table.rollout == "r1":
            assert planned.next_look_in is not None
            _after(world, planned.next_look_in)
            planned = world.reconcile()
        assert world.now - begin < timedelta(seconds=90)

    def test_are_in_the_table_and_reported_until_they_come(self) -> None:
        world = _after(_candidate(2, ("s0-1",), UNSCHEDULABLE), 62)
        world.reconcile()
        written = world.things["ConfigMap", "airports-routing-table"].manifest["data"][names.TABLE_FILE]
        assert "airports-r2-s0-1.airports-r2.default.svc:7000" in written
        world.live(30)
        planned = world.look()
        assert planned.status.generation == "g2"
        assert says(planned)["Ready"] == "True Serving"
        assert says(planned)["Degraded"] == "True Unschedulable"
        assert "airports-r2-s0 has 1 of 2 servers ready" in condition(planned, "Degraded").message
        version = planned.status.table
        for pod in _servers(world, "r2"):
            pod.trouble = None
        world.takes.start = 1
        world.settle()
        assert world.status.table == version

    def test_of_more_that_are_asked_for_do_not_keep_the_others_from_serving(self) -> None:
        world = serving()
        world.takes.start = NEVER
        world.edit(replicas=3)
        world.reconcile()
        world.step()
        for pod in _servers(world, "r1"):
            pod.trouble = UNSCHEDULABLE if pod.name.endswith("s0-2") else None
            pod.ready = pod.trouble is None
        assert world.look().status.table == world.status.table, "not before its grace"
        table = _after(world, 62).look().status.table
        assert table is not None
        assert (table.version, table.replicas) == (2, 3)

    def test_of_more_that_are_asked_for_are_waited_for_though_the_rollout_began_long_ago(self) -> None:
        world = _after(serving(), 2000)
        world.takes.start = NEVER
        world.edit(replicas=3)
        world.reconcile()
        world.step()
        assert world.look().status.table == world.status.table, "the third ones start, and nothing is wrong with them"

    def test_of_more_that_are_asked_for_are_in_the_table_when_they_take_longer_than_the_deadline(self) -> None:
        """Otherwise nobody would report them: they count as servers that serve."""
        world = serving()
        world.takes.start = NEVER
        world.edit(replicas=3)
        begin, planned = world.now, world.reconcile()
        while planned.status.table == world.status.table and world.now - begin < timedelta(seconds=620):
            world.step(planned.next_look_in or 10)
            planned = world.look()
        planned = world.reconcile()
        assert planned.status.table is not None
        assert (planned.status.table.replicas, says(planned)["Degraded"]) == (3, "True ShardsUnavailable")
        assert world.now - begin > timedelta(seconds=590)


class TestDeadline:
    def test_of_a_candidate_that_never_gets_ready_is_reported(self) -> None:
        world = rebuilt(serving())
        assert says(world.look())["Degraded"] == "False Healthy"
        for _ in range(80):
            planned = world.reconcile()
            _after(world, planned.next_look_in or 10)
        planned = world.look()
        assert says(planned) == {
            "Ready": "True Serving",
            "Built": "True GenerationBuilt",
            "RolledOut": "False ProgressDeadlineExceeded",
            "Degraded": "True ProgressDeadlineExceeded",
        }
        message = condition(planned, "Degraded").message
        assert "airports-r2 (generation g2) is not ready 600 s after 2026-01-01T12:" in message
        assert "airports-r2-s0 has 0 of 2, airports-r2-s1 has 0 of 2 servers ready" in message
        assert "raise spec.rollout.progressDeadlineSeconds" in message
        assert deleted(planned) == set(), "it may still come"
        world.takes.start = 1
        world.settle()

    def test_says_what_its_servers_are_in_trouble_about(self) -> None:
        world = _after(_candidate(2, ("s0-0", "s0-1"), UNSCHEDULABLE), 602)
        degraded = condition(world.look(), "Degraded")
        assert degraded.reason == "Unschedulable"
        assert "airports-r2-s0 has 0 of 2 servers ready; no node takes pod" in degraded.message

    def test_is_the_users(self) -> None:
        world = rebuilt(serving(rollout={"progressDeadlineSeconds": 3600}))
        assert says(_after(world, 3000).look())["Degraded"] == "False Healthy"
        assert says(_after(world, 700).look())["Degraded"] == "True ProgressDeadlineExceeded"

    def test_begins_again_when_the_clock_is_set_back(self) -> None:
        world = rebuilt(serving())
        world.now -= timedelta(days=1)
        world.reconcile()
        assert says(_after(world, 602).look())["Degraded"] == "True ProgressDeadlineExceeded"

    def test_passing_writes_once_and_time_alone_writes_nothing_more(self) -> None:
        world = _after(rebuilt(serving()), 602)
        world.reconcile()
        _after(world, 86_400)
        assert world.look().status == world.status
