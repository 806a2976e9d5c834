"""Announcements in the store: what every router has confirmed, once, and nothing waits for them."""

from __future__ import annotations

from dataclasses import replace

from operator_support.gateway_lives import GATEWAY
from operator_support.plan_samples import condition, says
from operator_support.plan_world import CONFIG, SPEC, World

from lookupdb.manifest import Announcement
from lookupdb_operator.model import AnnouncementReport, Plan, StoreAccess
from lookupdb_operator.plan import plan
from lookupdb_operator.status import AnnouncedStatus, DatasetStatus

ANNOUNCING = replace(CONFIG, gateway=GATEWAY, announces=True)


def announcing_world(**spec: object) -> World:
    world = World(config=ANNOUNCING, store=StoreAccess(), spec={**SPEC, **spec})
    world.start_operator()
    return world


def served() -> World:
    """A dataset that serves, without an announcement so far."""
    world = announcing_world()
    world.settle()
    return world


def look_with(world: World, report: AnnouncementReport) -> Plan:
    """Plan with ``report`` seen."""
    return plan(replace(world.observe(), announcement=report), world.config, world.now)


def test_it_is_due_when_all_routers_have_confirmed_and_not_before() -> None:
    world = announcing_world()
    seen: list[tuple[DatasetStatus, Announcement | None]] = []

    def is_confirmed() -> bool:
        planned = world.look()
        seen.append((planned.status, planned.announce))
        return world.status.table is not None and bool(world.status.table.confirmed_at)

    world.settle(until=is_confirmed)
    for status, announce in seen:
        assert (announce is not None) == (status.table is not None and bool(status.table.confirmed_at))
    table = world.status.table
    assert table is not None
    due = world.look().announce
    assert due is not None
    assert (due.namespace, due.name, due.uid) == world.observe().dataset.key + (world.observe().dataset.uid,)
    assert (due.generation, due.version, due.announced_at) == ("g1", table.version, table.confirmed_at)


def test_what_the_store_has_is_in_status_and_a_second_pass_writes_nothing() -> None:
    world = served()
    due = world.look().announce
    assert due is not None
    planned = look_with(world, AnnouncementReport(written=due))
    assert planned.announce is None
    assert planned.status.announced == AnnouncedStatus("g1", due.version)
    world.status = planned.status
    again = world.look()
    assert (again.announce, again.status, again.apply, again.delete) == (None, world.status, (), ())


def test_an_operator_that_ends_before_it_is_in_status_announces_it_again() -> None:
    world = served()
    due = world.look().announce
    world.start_operator()
    assert world.look().announce == due


def test_another_generation_is_announced_and_other_tables_of_the_same_are_not() -> None:
    world = served()
    first = world.look().announce
    assert first is not None
    world.status = look_with(world, AnnouncementReport(written=first)).status
    world.edit(replicas=3)
    world.settle()
    assert world.status.table is not None
    assert world.status.table.version > first.version
    assert world.look().announce is None, "it is the same generation"
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    second = world.look().announce
    assert second is not None
    assert (second.generation, second.version > first.version) == ("g2", True)


def test_what_was_announced_before_is_due_again_when_the_answer_of_another_one_is_lost() -> None:
    """The store may have g2 by then, whether or not an operator has seen it."""
    world = served()
    first = world.look().announce
    assert first is not None
    world.status = look_with(world, AnnouncementReport(written=first)).status
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    second = world.look().announce
    assert second is not None
    assert second.generation == "g2"
    assert world.status.announced is None, "nobody knows what the store has"
    world.edit(generation="g1")
    world.settle()
    world.start_operator()
    again = world.look().announce
    assert again is not None
    assert (again.generation, again.version > second.version) == ("g1", True)


def test_a_report_of_an_earlier_one_is_not_taken_for_it() -> None:
    world = served()
    due = world.look().announce
    assert due is not None
    for other in (replace(due, generation="g2"), replace(due, version=due.version - 1), replace(due, uid="other")):
        planned = look_with(world, AnnouncementReport(written=other))
        assert (planned.status.announced, planned.announce) == (None, due)


def test_a_store_of_the_datasets_own_or_no_token_and_nothing_is_announced() -> None:
    own = announcing_world(store={"url": "s3://team/x"})
    own.settle()
    assert own.look().announce is None
    without = served()
    without.config = replace(ANNOUNCING, announces=False)
    without.start_operator()
    assert without.look().announce is None


def test_one_that_fails_for_long_is_reported_and_holds_nothing_up() -> None:
    world = served()
    planned = look_with(world, AnnouncementReport(problem="the gateway does not answer"))
    assert says(planned)["Ready"] == "True Serving"
    assert says(planned)["Degraded"] == "True AnnouncementFailed"
    assert "lags behind: the gateway does not answer" in condition(planned, "Degraded").message
    assert planned.announce is not None, "it goes on being tried"
    assert says(world.look())["Degraded"] == "False Healthy"


def test_status_keeps_it_as_json() -> None:
    status = DatasetStatus(announced=AnnouncedStatus("g12", 17))
    assert status.to_json()["announced"] == {"generation": "g12", "version": 17}
    assert DatasetStatus.from_json(status.to_json()) == status
