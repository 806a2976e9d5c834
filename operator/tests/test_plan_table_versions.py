"""A version that somebody writes into the routing table by hand is overtaken, even if a shard has no server. One that
leaves too few versions above it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_support.plan_routers import edit_table, with_version, with_wrong_address
from operator_support.plan_samples import condition, serving
from operator_support.plan_world import World
from operator_support.world_tables import read_tables, table_of, written_table

from lookupdb.dataset import schema
from lookupdb_operator import names
from lookupdb_operator.model import Observed, RouterReport, Trouble
from lookupdb_operator.plan import reasons, routing_tables
from lookupdb_operator.status import check_bounds

BELIEVED = 10**14 - 1


def _raise_version(world: World, version: int, *, annotates: bool = False) -> None:
    """Edit the table and its version by hand; routers have read it then."""
    annotations = {names.TABLE_VERSION: str(version)} if annotates else {}
    edit_table(world, lambda text: with_version(with_wrong_address(text), version), annotations=annotations)
    world.invariants.edited.add(version)
    world.step(60.0)
    world.step(60.0)
    assert read_tables(world) == [written_table(world)] * 2


def _restart_routers(world: World) -> None:
    """Restart routers, which read the present table."""
    for pod in world.pods.values():
        if pod.component == names.ROUTER:
            world.crash(pod, 1.0)
            pod.mounted = None
    world.step(60.0)
    world.step(60.0)


def _lose_server(world: World) -> None:
    """Lose the only server of a shard."""
    for pod in world.pods.values():
        if pod.component == names.SHARDS and pod.labels[names.SHARD] == "0":
            pod.ready, pod.trouble = False, Trouble(reasons.UNSCHEDULABLE, "no node takes it")


class TestAVersionThatLeavesTooFewAboveIt:
    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    @pytest.mark.parametrize("version", [BELIEVED + 1, 10**15 - 1, 20261126070000000])
    def test_is_put_right_and_reported_until_routers_are_started_again(self, version: int, *, annotates: bool) -> None:
        world = serving()
        _raise_version(world, version, annotates=annotates)
        for _ in range(5):
            planned = world.reconcile()
            world.step(60.0)
        assert (table_of(world).version, world.status.last_table, written_table(world)["version"]) == (2, 2, 2)
        told = condition(planned, "RolledOut")
        assert (told.status, told.reason) == ("False", reasons.NOT_CONFIRMED)
        assert f"table {version}" in told.message
        writes = world.writes
        for _ in range(20):
            world.reconcile()
            world.step(60.0)
        assert world.writes == writes
        _restart_routers(world)
        world.settle()
        assert (table_of(world).version, read_tables(world)) == (2, [written_table(world)] * 2)

    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    def test_makes_one_next_version_while_that_cannot_be_written(self, *, annotates: bool) -> None:
        world = serving()
        _raise_version(world, BELIEVED + 1, annotates=annotates)
        world.refuses = lambda manifest: "field is immutable" if manifest["kind"] == "ConfigMap" else ""
        for _ in range(20):
            world.reconcile()
            world.step(0.5)
        assert (table_of(world).version, world.status.last_table) == (2, 2)
        world.refuses = lambda manifest: ""
        world.reconcile()
        assert written_table(world)["version"] == 2

    def test_is_no_next_one_of_what_is_left_alone(self) -> None:
        observed = serving().observe()
        report = RouterReport(2**53, newest=2**53)
        observed = replace(observed, routers={"a": report, "b": RouterReport(7, newest=7)})
        assert routing_tables.newest_read_version(observed) == 7
        assert routing_tables.newest_table_version(observed) == 7

    def test_is_believed_where_it_is_the_operators_own(self) -> None:
        """Nobody has edited it: the status was lost."""
        world = serving()
        observed = _annotated(world, BELIEVED + 1, changed="")
        assert routing_tables.is_newer_written(world.status, observed)
        assert not routing_tables.is_newer_written(world.status, _annotated(world, BELIEVED + 1, changed="by hand"))


def _annotated(world: World, version: int, *, changed: str) -> Observed:
    """Return what is seen when the annotation of the routing table says ``version``; its ``changed`` is empty if nobody
    edited it."""
    observed = world.observe()
    others = (
        replace(other, table_version=version, changed=changed) if other.table_version else other
        for other in observed.other_objects
    )
    return replace(observed, other_objects=tuple(others))


def test_the_highest_version_that_is_believed_is_overtaken_and_status_can_hold_that() -> None:
    world = serving()
    _raise_version(world, BELIEVED)
    world.settle()
    assert (table_of(world).version, read_tables(world)) == (BELIEVED + 1, [written_table(world)] * 2)
    check_bounds(world.status.to_json(), schema.resource_schema()["properties"]["status"])
    edit_table(world, with_wrong_address)
    world.settle()
    assert (table_of(world).version, read_tables(world)) == (BELIEVED + 2, [written_table(world)] * 2)


class TestWhileAShardHasNoServer:
    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    def test_a_version_that_routers_have_read_is_overtaken_at_once(self, *, annotates: bool) -> None:
        world = serving(replicas=1)
        _lose_server(world)
        _raise_version(world, 3, annotates=annotates)
        world.asked = True
        world.reconcile()
        assert (table_of(world).version, world.status.last_table) == (4, 4)
        for _ in range(10):
            world.reconcile()
            world.step(10.0)
        assert read_tables(world) == [written_table(world)] * 2
        assert table_of(world).version == 4

    def test_a_version_that_was_noted_is_overtaken_though_it_was_put_back(self) -> None:
        world = serving(replicas=1)
        _lose_server(world)
        world.status = replace(world.status, last_table=3)
        world.version += 1
        planned = world.planner(_answered(world, 3), world.config, world.now)
        assert planned.status.last_table == 4

    def test_a_newer_table_of_which_status_knows_nothing_stays(self) -> None:
        """The cluster was set back: routers would be sent to servers that do not exist."""
        world = serving(replicas=1)
        observed = _answered(world, 3)
        assert world.planner(observed, world.config, world.now).status.last_table == 4
        _lose_server(world)
        planned = world.planner(_answered(world, 3), world.config, world.now)
        assert (planned.status.table, planned.status.last_table) == (world.status.table, 1)

    def test_what_is_to_be_written_with_other_content_goes_out_above_it_all_the_same(self) -> None:
        """A version never has two contents: restarting routers read what is written now."""
        world = serving(replicas=1)
        _lose_server(world)
        world.status = replace(
            world.status, generations=tuple(replace(one, records=one.records + 1) for one in world.status.generations)
        )
        world.version += 1
        planned = world.planner(_answered(world, 3), world.config, world.now)
        assert planned.status.last_table == 4
        world.carry_out(planned, world.dataset)
        assert written_table(world)["version"] == 4


def _answered(world: World, version: int) -> Observed:
    """Return what is seen when every router answers from table ``version``."""
    observed = world.observe()
    routers = [pod for pod in observed.pods if pod.component == names.ROUTER]
    return replace(observed, routers={pod.uid: RouterReport(version, newest=version) for pod in routers})
