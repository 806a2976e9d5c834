"""The routing table gets the next version when its own has, or had, other content: a router takes up no second content
under one version."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from operator_support.plan_routers import edit_label, edit_table, with_version, with_wrong_address
from operator_support.plan_samples import applied, condition, deleted, says, serving
from operator_support.plan_world import NEVER, World
from operator_support.world_tables import TABLE, read_tables, table_of, written_table

from lookupdb.router.routing_table import describe_contradiction
from lookupdb_operator import names
from lookupdb_operator.loop.reconcile import Repairs, list_event_reports
from lookupdb_operator.model import Observed, Plan, RouterReport
from lookupdb_operator.plan import routing_tables, windows

pytestmark = pytest.mark.long  # whole lives


def _restart_routers(world: World) -> None:
    for pod in world.pods.values():
        if pod.component == names.ROUTER:
            world.crash(pod, 1.0)
    world.step(60.0)
    world.step(60.0)


def _edit_generation(world: World) -> None:
    """Edit the generation of the routing table in the status."""
    generations = tuple(replace(one, records=one.records + 1) for one in world.status.generations)
    world.status = replace(world.status, generations=generations)
    world.version += 1


def _edit_with_its_version(world: World) -> None:
    edit_table(world, with_wrong_address, annotations={names.TABLE_VERSION: "0"})


def _raise_version(world: World, version: int, *, annotates: bool = True) -> None:
    """Edit the table and its version, as a router's refusal suggests; the annotation too, or the text alone."""

    def change(text: str) -> str:
        return with_wrong_address(text).replace('"version":1,', f'"version":{version},')

    edit_table(world, change, annotations={names.TABLE_VERSION: str(version)} if annotates else {})
    assert written_table(world)["version"] == version
    world.invariants.edited.add(version)  # routers may take it


EDITS = [
    pytest.param(lambda world: edit_table(world, with_wrong_address), id="the table"),
    pytest.param(_edit_with_its_version, id="the table, and the annotation of its version"),
    pytest.param(_edit_generation, id="a generation in status"),
]


class TestWhatSomebodyHasEdited:
    @pytest.mark.parametrize("edit", EDITS)
    def test_goes_out_under_the_next_version(self, edit: Callable[[World], None]) -> None:
        world = serving()
        edit(world)
        planned = world.reconcile()
        assert TABLE[0] + "/" + TABLE[1] in applied(planned)
        assert (table_of(world).version, world.status.last_table, table_of(world).confirmed_at) == (
            2,
            2,
            "",
        )
        assert (written_table(world)["version"], says(planned)["RolledOut"]) == (2, "False Confirming")
        world.settle()
        assert table_of(world).version == 2
        assert read_tables(world) == [written_table(world)] * 2
        assert not world.look().ask_routers

    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    def test_never_has_the_version_that_was_claimed_before_and_not_written_yet(self, *, annotates: bool) -> None:
        """Routers may read it next: kubelets may deliver the edit later."""
        world = serving()
        world.edit(replicas=1)
        world.carry_out(world.look(), world.dataset, steps=0)
        assert (world.status.last_table, written_table(world)["version"]) == (2, 1)
        _raise_version(world, 2, annotates=annotates)
        world.reconcile()
        assert (table_of(world).version, written_table(world)["version"]) == (3, 3)
        world.settle()
        assert read_tables(world) == [written_table(world)] * 2

    def test_is_healed_in_routers_that_have_read_it_while_no_operator_ran(self) -> None:
        world = serving()
        right = written_table(world)
        edit_table(world, with_wrong_address)
        _restart_routers(world)
        assert right not in read_tables(world)
        world.settle()
        assert read_tables(world) == [{**right, "version": 2}] * 2

    @pytest.mark.parametrize("edit", EDITS)
    def test_claims_one_version_though_operators_end_before_they_have_written_it(
        self, edit: Callable[[World], None]
    ) -> None:
        world = serving()
        edit(world)
        for _ in range(5):
            world.carry_out(world.look(), world.dataset, 0)
            world.start_operator()
            assert table_of(world).version == 2
            assert written_table(world)["version"] == 1
        world.settle()
        assert read_tables(world) == [written_table(world)] * 2
        assert written_table(world)["version"] == 2

    @pytest.mark.parametrize("edit", EDITS)
    def test_claims_one_version_though_its_write_is_refused_again_and_again(
        self, edit: Callable[[World], None]
    ) -> None:
        world = serving()
        edit(world)
        world.refuses = lambda manifest: "a webhook says no" if manifest["kind"] == "ConfigMap" else ""
        for _ in range(20):
            world.reconcile()
            world.step(30.0)
        assert (table_of(world).version, written_table(world)["version"]) == (2, 1)

    def test_claims_one_version_though_the_answer_of_its_write_is_lost(self) -> None:
        world = serving()
        edit_table(world, with_wrong_address)
        before = world.snapshot()
        world.reconcile()
        seen = replace(before, dataset=world.dataset)
        planned = world.planner(seen, world.config, world.now)
        assert planned.status.table == world.status.table
        world.carry_out(planned, world.dataset)
        assert written_table(world)["version"] == 2

    def test_takes_nothing_from_what_serves_while_an_older_table_drains(self) -> None:
        world = serving(rollout={"drainSeconds": 30})
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: world.status.generation == "g2" and windows.is_draining(world.status))
        edit_table(world, with_wrong_address)
        world.takes.table = world.takes.slow_table = NEVER
        for _ in range(20):
            planned = world.reconcile()
            assert not {name for name in deleted(planned) if name.startswith("StatefulSet")}
            world.step(10.0)
        assert (table_of(world).version, table_of(world).rollout, world.status.generation) == (
            3,
            "r2",
            "g2",
        )
        world.takes.table = 1
        world.settle()
        assert read_tables(world) == [written_table(world)] * 2
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]

    def test_keeps_its_parts_when_a_rollout_goes_on_shard_by_shard(self) -> None:
        world = serving(shards=4, rollout={"drainSeconds": 5, "strategy": "PerShard"})
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: bool(table_of(world).parts))
        parts, version = table_of(world).parts, table_of(world).version
        edit_table(world, with_wrong_address)
        world.reconcile()
        assert (table_of(world).parts, table_of(world).version) == (parts, version + 1)
        world.settle(1000)
        assert read_tables(world) == [written_table(world)] * 2

    def test_is_put_right_while_the_dataset_is_suspended(self) -> None:
        world = serving()
        world.edit(suspend=True)
        world.settle()
        edit_table(world, with_wrong_address)
        world.settle()
        assert (table_of(world).version, read_tables(world)) == (2, [written_table(world)] * 2)

    def test_is_reported(self) -> None:
        world = serving()
        edit_table(world, with_wrong_address)
        (told,) = (
            report
            for report in list_event_reports(world.status, world.look().status)
            if report.reason == "RoutingTableRenewed"
        )
        assert told.type == "Warning"
        assert "Routing table 1 is written again, as 2" in told.message

    def test_is_no_reason_when_another_table_is_due_at_once(self) -> None:
        world = serving(replicas=2)
        world.edit(replicas=1)
        edit_table(world, with_wrong_address)
        world.reconcile()
        assert (table_of(world).version, table_of(world).replicas) == (2, 1)
        assert not any(
            report.reason == "RoutingTableRenewed" for report in list_event_reports(serving().status, world.status)
        )


def _contest(
    world: World, edit: Callable[[World], None], looks: int, seconds: float, repairs: Repairs | None = None
) -> Plan:
    """Make so many ``looks`` while somebody edits the routing table after each write; with the ``repairs`` of earlier
    passes, if any. Return the last plan."""
    repairs = repairs or Repairs(world._seconds)
    for _ in range(looks):
        observed = replace(world.observe(), contests=repairs.list_contests())
        planned = world.planner(observed, world.config, world.now)
        world.carry_out(planned, world.dataset)
        for manifest in planned.apply:
            repairs.note_write(observed, manifest)
            if manifest["kind"] == "ConfigMap":
                edit(world)
        world.step(seconds)
    return planned


def test_who_edits_again_and_again_is_left_alone_and_no_table_is_written_meanwhile() -> None:
    world = serving()
    edit_table(world, with_wrong_address)
    last = _contest(world, lambda world: edit_table(world, with_wrong_address), looks=600, seconds=1.0)
    assert 4 < len(world.invariants.tables) < 12
    assert world.status.last_table <= 2 * len(world.invariants.tables)
    assert "Contested" in condition(last, "Degraded").reason
    assert "'by-hand'" in condition(last, "Degraded").message


class TestWhatIsLeftAloneAndPutBack:
    """Somebody edits the table while the operator holds back, routers read it, and it is put back meanwhile."""

    def _put_back(self, *, looks: int) -> tuple[World, Repairs]:
        """Put the table back after so many ``looks`` at the edit."""
        world = serving()
        repairs = Repairs(world._seconds)
        edit_label(world)
        _contest(world, edit_label, looks=200, seconds=2.0, repairs=repairs)
        right = world.things[TABLE].manifest["data"][names.TABLE_FILE]
        edit_table(world, with_wrong_address)
        _contest(world, lambda world: None, looks=looks, seconds=1.0, repairs=repairs)
        _restart_routers(world)
        edit_table(world, lambda text: right)
        return world, repairs

    def test_goes_out_under_another_version_when_the_operator_holds_back_no_more(self) -> None:
        world, repairs = self._put_back(looks=3)
        assert (
            table_of(world).version,
            world.status.last_table,
            table_of(world).confirmed_at != "",
        ) == (1, 2, True)
        _contest(world, lambda world: None, looks=1, seconds=1.0, repairs=repairs)
        assert (table_of(world).version, world.status.last_table) == (1, 2)
        _contest(world, lambda world: None, looks=300, seconds=1.0, repairs=repairs)
        assert (table_of(world).version, world.status.last_table) == (3, 3)
        assert read_tables(world) == [written_table(world)] * 2

    def test_is_known_to_an_operator_that_starts_again(self) -> None:
        world, _ = self._put_back(looks=1)
        world.start_operator()
        world.settle()
        assert table_of(world).version == 3
        assert read_tables(world) == [written_table(world)] * 2

    def test_goes_out_above_any_version_that_it_said_meanwhile(self) -> None:
        world = serving()
        repairs = Repairs(world._seconds)
        edit_label(world)
        _contest(world, edit_label, looks=200, seconds=2.0, repairs=repairs)
        right = world.things[TABLE].manifest["data"][names.TABLE_FILE]
        for version, noted in ((1, 2), (3, 3), (2, 3), (7, 7)):
            edit_table(world, with_wrong_address)
            edit_table(world, functools.partial(with_version, version=version))
            world.invariants.edited.add(version)
            _contest(world, lambda world: None, looks=1, seconds=1.0, repairs=repairs)
            writes = world.writes
            _contest(world, lambda world: None, looks=2, seconds=1.0, repairs=repairs)
            assert (world.status.last_table, world.writes) == (noted, writes), "noted once"
        _restart_routers(world)
        assert {table["version"] for table in read_tables(world) if table} == {7}
        edit_table(world, lambda text: right)
        _contest(world, lambda world: None, looks=300, seconds=1.0, repairs=repairs)
        assert (table_of(world).version, world.status.last_table) == (8, 8)
        world.settle()
        assert read_tables(world) == [written_table(world)] * 2

    def test_is_not_noted_of_a_label_alone(self) -> None:
        world = serving()
        edit_label(world)
        _contest(world, edit_label, looks=200, seconds=2.0)
        assert (table_of(world).version, world.status.last_table) == (1, 1)


class TestALabelThatSomebodyHasEdited:
    @pytest.mark.parametrize("version", ["1", "0"])
    def test_is_put_right_under_the_same_version(self, version: str) -> None:
        """The annotation of the version, too: routers read the content alone."""
        world = serving()
        edit_label(world)
        edit_table(world, lambda text: text, annotations={names.TABLE_VERSION: version})
        before = table_of(world)
        planned = world.reconcile()
        assert TABLE[0] + "/" + TABLE[1] in applied(planned)
        assert world.things[TABLE].edited is not world.things[TABLE].manifest
        assert (table_of(world), written_table(world)["version"]) == (before, 1)
        assert says(planned)["RolledOut"] == "True UpToDate"
        assert not planned.ask_routers

    @pytest.mark.parametrize("strategy", ["Atomic", "PerShard"])
    def test_again_and_again_keeps_no_drain_from_its_end(self, strategy: str) -> None:
        world = serving(shards=4, rollout={"drainSeconds": 400, "strategy": strategy})
        world.edit(source={"url": "s3://data/v2.csv"})
        edit_label(world)
        planned = _contest(world, edit_label, looks=2500, seconds=2.0)
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]
        assert says(planned)["RolledOut"] == "True UpToDate"

    def test_does_not_hide_what_else_was_edited(self) -> None:
        world = serving()
        edit_label(world)
        edit_table(world, with_wrong_address)
        world.reconcile()
        assert (table_of(world).version, written_table(world)["version"]) == (2, 2)


class TestAVersionThatSomebodyHasRaised:
    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    @pytest.mark.parametrize("version", [2, 100])
    @pytest.mark.parametrize(
        "spec",
        [{}, {"generation": "g1"}, {"rollout": {"promotion": "Manual"}}],
        ids=["no more is asked for", "pinned", "by hand"],
    )
    def test_is_overtaken_and_what_serves_stays(self, spec: dict[str, Any], version: int, annotates: bool) -> None:
        world = serving()
        if spec:
            world.edit(**spec)
            world.settle()
        _raise_version(world, version, annotates=annotates)
        _restart_routers(world)
        assert read_tables(world) == [written_table(world)] * 2
        status = world.status
        planned = world.reconcile()
        assert (table_of(world).version, world.status.last_table) == (version + 1, version + 1)
        assert (world.status.generations, world.status.rollouts) == (status.generations, status.rollouts)
        assert says(planned)["Ready"] == "True Serving"
        world.settle()
        assert (table_of(world).version, world.status.generation) == (version + 1, "g1")
        assert read_tables(world) == [written_table(world)] * 2

    @pytest.mark.parametrize("annotates", [True, False], ids=["with its annotation", "in the text alone"])
    def test_is_overtaken_though_the_table_is_not_confirmed_yet(self, annotates: bool) -> None:
        world = serving()
        world.status = replace(world.status, table=replace(table_of(world), confirmed_at=""))
        world.version += 1
        _raise_version(world, 100, annotates=annotates)
        planned = world.planner(replace(world.observe(), routers={}), world.config, world.now)
        assert planned.status.table is not None
        assert planned.status.table.version == 101

    def test_in_the_text_alone_is_overtaken_by_other_data_while_the_table_is_left_alone(self) -> None:
        world = serving(rollout={"drainSeconds": 30})
        repairs = Repairs(world._seconds)
        edit_label(world)
        _contest(world, edit_label, looks=200, seconds=2.0, repairs=repairs)
        _raise_version(world, 2, annotates=False)
        _restart_routers(world)
        assert read_tables(world) == [written_table(world)] * 2
        world.edit(source={"url": "s3://data/v2.csv"})
        world.loses_nudge = lambda: True
        _contest(world, lambda world: None, looks=20, seconds=1.0, repairs=repairs)
        assert (
            table_of(world).rollout,
            table_of(world).version,
            table_of(world).confirmed_at,
        ) == ("r2", 3, "")
        world.settle()
        assert read_tables(world) == [written_table(world)] * 2

    def test_is_put_back_when_it_is_the_annotation_alone(self) -> None:
        world = serving()
        edit_table(world, lambda text: text, annotations={names.TABLE_VERSION: "100"})
        before = world.status
        planned = world.reconcile()
        assert TABLE[0] + "/" + TABLE[1] in applied(planned)
        assert (world.status.table, world.status.generations) == (before.table, before.generations)
        assert world.things[TABLE].manifest["metadata"]["annotations"][names.TABLE_VERSION] == "1"
        world.settle()
        assert (table_of(world).version, world.status.last_table) == (1, 1)


def test_an_operator_that_renders_another_label_writes_each_table_under_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = serving()
    render = names.labels
    before, written = table_of(world), world.things[TABLE].manifest
    world.start_operator()
    with monkeypatch.context() as newer:
        newer.setattr(names, "labels", lambda *of: {**render(*of), "app.kubernetes.io/version": "2"})
        world.dataset.renderings.clear()
        planned = world.reconcile()
        world.dataset.renderings.clear()  # worlds share them
    assert TABLE[0] + "/" + TABLE[1] in applied(planned)
    assert table_of(world) == before
    assert world.things[TABLE].manifest["data"] == written["data"]
    assert world.things[TABLE].manifest["metadata"]["labels"]["app.kubernetes.io/version"] == "2"


def _contradicted(world: World) -> Observed:
    """Return what is seen when every router reports other content under the version of the table."""
    observed, version = world.observe(), table_of(world).version
    why = f"{describe_contradiction(version)}; a change needs a greater version"
    routers = [pod for pod in observed.pods if pod.component == names.ROUTER]
    return replace(observed, routers={pod.uid: RouterReport(version, why, version) for pod in routers})


def _answered_by(world: World, *generations: str) -> Observed:
    """Return what is seen when workers of every router answer from ``generations``, under the version of the table."""
    observed, version = world.observe(), table_of(world).version
    routers = [pod for pod in observed.pods if pod.component == names.ROUTER]
    report = RouterReport(version, newest=version, generations=frozenset(generations))
    return replace(observed, routers={pod.uid: report for pod in routers})


class TestARouterThatAnswersFromAnotherGeneration:
    """Another table has the same version. The router may still have that one mounted, so it refuses nothing."""

    def test_has_not_confirmed_and_says_from_which(self) -> None:
        world = serving()
        table = table_of(world)
        for generations in (("g7",), ("g1", "g7")):
            observed = _answered_by(world, *generations)
            late = routing_tables.diagnose_late_routers(observed, table, "")
            assert set(late.values()) == {f"it answers from table 1, of {', '.join(generations)}"}
        assert routing_tables.diagnose_late_routers(_answered_by(world, "g1"), table, "") == {}
        assert routing_tables.diagnose_late_routers(_answered_by(world), table, "") == {}  # an older router

    def test_is_overtaken(self) -> None:
        world = serving()
        planned = world.planner(_answered_by(world, "g7"), world.config, world.now)
        assert planned.status.table is not None
        assert (planned.status.table.version, planned.status.table.confirmed_at) == (2, "")


class TestARouterThatHasOtherContent:
    def test_has_not_confirmed(self) -> None:
        world = serving()
        observed, table = _contradicted(world), table_of(world)
        late = routing_tables.diagnose_late_routers(observed, table, "")
        assert [why for why in late.values() if why.startswith("version 1 is in effect with other content")]
        assert not routing_tables.is_contradicted_by_reports(observed, replace(table, version=2), "")
        assert not routing_tables.is_contradicted_by_reports(replace(observed, routers={}), table, "")

    def test_is_given_the_next_version_once(self) -> None:
        world = serving()
        world.takes.table = world.takes.slow_table = NEVER
        planned = world.planner(_contradicted(world), world.config, world.now)
        assert planned.ask_routers
        assert says(planned)["RolledOut"] == "False Confirming"
        first = _contradicted(world)
        world.carry_out(planned, world.dataset)
        assert (table_of(world).version, written_table(world)["version"]) == (2, 2)
        for _ in range(10):
            seen = replace(world.observe(), routers=first.routers)
            world.carry_out(world.planner(seen, world.config, world.now), world.dataset)
            world.step(10.0)
        assert table_of(world).version == 2
        told = condition(
            world.planner(replace(world.observe(), routers=first.routers), world.config, world.now), "Degraded"
        )
        assert told.reason == "NotConfirmed"
        assert "version 1 is in effect with other content" in told.message

    def test_is_healed_though_what_it_has_read_was_put_back_before_anybody_looked(self) -> None:
        world = serving()
        thing = world.things[TABLE]
        right = thing.manifest
        edit_table(world, with_wrong_address)
        _restart_routers(world)
        thing.manifest, thing.edited, thing.changed = right, None, world.now
        world.step(60.0)
        assert world.look().apply == (), "nobody knows"
        world.asked = True  # as now and then
        world.settle()
        assert (table_of(world).version, read_tables(world)) == (2, [written_table(world)] * 2)
