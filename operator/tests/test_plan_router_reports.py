"""Reports of routers that confirm a routing table: those with its version and digest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_support.plan_invariants import Broken
from operator_support.plan_routers import digest_held, edit_table, with_version, with_wrong_address
from operator_support.plan_samples import condition, says, serving, unconfirmed
from operator_support.plan_world import World
from operator_support.world_tables import TABLE, read_tables, table_of, written_table

from lookupdb_operator import names
from lookupdb_operator.loop.reconcile import Repairs
from lookupdb_operator.model import Observed, RouterReport
from lookupdb_operator.plan import routing_tables

pytestmark = pytest.mark.long  # whole lives

RIGHT, WRONG = "00112233445566aa", "ffeeddccbbaa9988"


def _reported(world: World, report: RouterReport) -> Observed:
    """Return what is seen when every router of ``world`` reports this."""
    observed = world.observe()
    routers = [pod for pod in observed.pods if pod.component == names.ROUTER]
    return replace(observed, routers={pod.uid: report for pod in routers})


class TestAReport:
    @pytest.mark.parametrize(
        ("report", "confirms", "contradicts"),
        [
            pytest.param(RouterReport(1, newest=1, digests=frozenset({RIGHT})), True, False, id="of what was written"),
            pytest.param(RouterReport(1, newest=1), True, False, id="of an older router, without a digest"),
            pytest.param(RouterReport(1, newest=1, digests=frozenset({WRONG})), False, True, id="of something else"),
            pytest.param(RouterReport(1, newest=1, digests=frozenset({RIGHT, WRONG})), False, True, id="of both"),
            pytest.param(RouterReport(1, newest=2, digests=frozenset({RIGHT, WRONG})), False, False, id="on its way"),
            pytest.param(RouterReport(1, newest=2), False, False, id="of a worker that is ahead"),
            pytest.param(RouterReport(2, newest=2, digests=frozenset({WRONG})), False, False, id="of a newer table"),
        ],
    )
    def test_confirms(self, report: RouterReport, confirms: bool, contradicts: bool) -> None:
        world = serving()
        observed, table = _reported(world, report), table_of(world)
        assert bool(routing_tables.diagnose_late_routers(observed, table, RIGHT)) != confirms
        assert routing_tables.is_contradicted_by_reports(observed, table, RIGHT) == contradicts

    def test_is_believed_by_its_version_where_it_is_not_known_what_is_right(self) -> None:
        world = serving()
        observed = _reported(world, RouterReport(1, newest=1, digests=frozenset({WRONG})))
        assert routing_tables.diagnose_late_routers(observed, table_of(world), "") == {}

    @pytest.mark.parametrize(
        ("report", "told"),
        [
            (
                RouterReport(1, newest=1, digests=frozenset({WRONG})),
                "it answers from table 1 with other content than was written",
            ),
            (RouterReport(1, newest=7), "it answers from table 1 to 7"),
            (RouterReport(7, newest=7), "it answers from table 7"),
        ],
    )
    def test_tells_what_it_answers_from(self, report: RouterReport, told: str) -> None:
        world = serving()
        late = routing_tables.diagnose_late_routers(_reported(world, report), table_of(world), RIGHT)
        assert set(late.values()) == {told}

    def test_of_what_was_written_has_the_digest_of_its_text(self) -> None:
        world = serving()
        assert world.observe().other_objects
        [content] = {item.content for item in world.observe().other_objects if item.ref.name == TABLE[1]}
        assert {digest_held(table or {}) for table in read_tables(world)} == {content}


def _read_and_put_back(world: World, version: int) -> None:
    """Routers take up an edit of another version, which is put back unseen."""
    thing = world.things[TABLE]
    right = thing.manifest
    world.invariants.edited.add(version)
    edit_table(world, lambda text: with_version(with_wrong_address(text), version))
    world.step(30.0)
    world.step(35.0)
    assert {table["version"] for table in read_tables(world) if table} == {version}
    thing.manifest, thing.edited, thing.changed = right, None, world.now


CHANGES = [
    pytest.param({"serving": {"workers": 2}}, id="the pod template"),
    pytest.param({"replicas": 1}, id="fewer replicas"),
    pytest.param({"replicas": 3}, id="more replicas"),
    pytest.param({"source": {"url": "s3://data/v2.csv"}}, id="data"),
]


class TestAnEditThatRoutersHaveReadAndThatIsPutBackUnseen:
    """The operator's next table has the same version. Kubelets sync late, so routers see nothing else until the old
    servers are gone."""

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("strategy", ["Atomic", "PerShard"])
    def test_is_not_taken_for_the_next_table(self, change: dict[str, Any], strategy: str) -> None:
        world = serving(shards=4, rollout={"drainSeconds": 10, "strategy": strategy})
        world.invariants.may_mix = True
        world.loses_nudge = lambda: True
        _read_and_put_back(world, 2)
        world.edit(**change)
        for _ in range(400):
            world.reconcile()
            world.step(0.5)  # no server goes that a router names
        world.settle()
        assert table_of(world).version > 2
        assert read_tables(world) == [written_table(world)] * 2

    def test_opens_the_table_again_when_a_router_comes_up_with_it(self) -> None:
        world = serving(rollout={"drainSeconds": 400})
        world.edit(serving={"workers": 2})
        world.settle(until=lambda: table_of(world).rollout == "r2" and table_of(world).confirmed_at != "")
        edited = frozenset({digest_held({**written_table(world), "notes": "edited"})})
        right = frozenset({digest_held(written_table(world))})
        observed = _reported(world, RouterReport(2, newest=2, digests=right))
        assert world.planner(observed, world.config, world.now).status.table == table_of(world)
        observed = _reported(world, RouterReport(2, newest=2, digests=edited))
        table = world.planner(observed, world.config, world.now).status.table
        assert table is not None
        assert (table.version, table.confirmed_at) == (3, "")


def test_routers_that_report_no_digest_are_believed_by_their_versions() -> None:
    """They are older than the operator; some are not."""
    for reports_digest in (lambda pod: False, lambda pod: pod.name.endswith("9")):
        world = serving()
        world.reports_digest = reports_digest
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle()
        assert (table_of(world).version, world.status.generation) == (2, "g2")
        assert read_tables(world) == [written_table(world)] * 2


def _hostile(world: World) -> RouterReport:
    version = table_of(world).version
    return RouterReport(version, newest=version, digests=frozenset({WRONG}))


def test_a_router_that_always_reports_another_text_is_overtaken_ever_more_seldom() -> None:
    world = unconfirmed(serving())
    repairs = Repairs(world._seconds)
    for _ in range(3600):
        observed = replace(_reported(world, _hostile(world)), contests=repairs.list_contests())
        planned = world.planner(observed, world.config, world.now)
        world.carry_out(planned, world.dataset)
        for manifest in planned.apply:
            repairs.note_write(observed, manifest)
        world.step(1.0)
    assert table_of(world).version < 25
    assert table_of(world).confirmed_at == ""
    assert says(planned)["RolledOut"] == "False NotConfirmed"
    assert "other content than was written" in condition(planned, "RolledOut").message
    assert {rollout.rollout for rollout in world.status.rollouts} == {"r1", "r2"}, "what served before stays"


def test_the_model_cluster_keeps_the_servers_of_each_of_two_tables_of_one_version() -> None:
    """Otherwise a life would pass in which servers are deleted that only an edit names."""
    world = serving()
    right = read_tables(world)[0]
    assert right is not None
    sets = {("r1", 0): 2, ("r1", 1): 2}
    world.invariants.serving((right,), sets, world.now)
    entry = right["generations"][0]
    endpoints = [*entry["shards"][0]["endpoints"], "airports-r1-s0-2.airports-r1.default.svc:7000"]
    edited = {**right, "generations": [{**entry, "shards": [{"endpoints": endpoints}, entry["shards"][1]]}]}
    for tables in ((right, edited), (edited, right)):
        with pytest.raises(Broken, match="names 3"):
            world.invariants.serving(tables, sets, world.now)
