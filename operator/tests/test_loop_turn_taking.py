"""Passes of several datasets: no slot is granted twice, and a dataset with a new slot is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import pytest

from lookupdb.dataset import spec
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.parse import parse_dataset
from lookupdb_operator.loop.reconcile import TurnTaking
from lookupdb_operator.model import Config, Observed, ObservedDataset, Plan
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.status import BuildStatus, DatasetStatus, Ticket

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOMENT = "2026-01-01T12:00:00Z"
CONFIG = Config(image="image", store="s3://store", cluster="c", identity="own/release")
BUILDING = DatasetStatus(operator="own/release", build=BuildStatus("g1", "c", "", "d", MOMENT))
WAITING = DatasetStatus(operator="own/release", build_ticket=Ticket(MOMENT))
SETTLED = DatasetStatus(operator="own/release")


def dataset(name: str, status: DatasetStatus = SETTLED) -> ObservedDataset:
    body = {
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"source": {"url": "s3://data/a.csv"}, "key": {"columns": ["id"]}},
    }
    return replace(parse_dataset(body), status=status)


@dataclass
class Bench:
    """An operator with one build slot."""

    known: tuple[ObservedDataset, ...] = ()
    woken: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.taking = TurnTaking(
            TurnQueues(builds=1, rollouts=1), cache=cast(ObjectCache, self), config=CONFIG, wake=self.woken.append
        )

    def datasets(self) -> tuple[ObservedDataset, ...]:
        return self.known

    def look(self, seen: ObservedDataset) -> DatasetStatus:
        """Build if there is a slot, wait otherwise, and end a build under way."""

        def decide(observed: Observed, config: Config, now: datetime) -> Plan:
            if observed.dataset.status.build is not None:
                return Plan(SETTLED)
            return Plan(BUILDING if observed.turns.build.is_granted else WAITING)

        return self.taking.plan(Observed(seen), decide, NOW).status


def test_one_turn_is_not_granted_twice_though_nothing_is_written_yet() -> None:
    bench = Bench()
    assert [bench.look(dataset("a")), bench.look(dataset("b"))] == [BUILDING, WAITING]


def test_what_others_hold_is_known_from_the_first_look_on() -> None:
    bench = Bench(known=(dataset("a"), dataset("b", BUILDING)))
    assert bench.look(dataset("a")) == WAITING


def test_who_waits_is_looked_at_once_when_its_turn_has_come() -> None:
    bench = Bench()
    bench.look(dataset("a"))
    bench.look(dataset("b"))
    assert bench.woken == []
    bench.look(dataset("a", BUILDING))
    assert bench.woken == [("shop", "b")]
    bench.look(dataset("c", BUILDING))
    assert bench.woken == [("shop", "b")], "two that wait do not wake each other for ever"
    assert bench.look(dataset("b", WAITING)) == BUILDING


def test_who_gives_its_turn_back_and_could_have_the_next_one_is_looked_at_again() -> None:
    """For example, a build ends and the next one is to begin, or a corrected spec shortens a wait."""
    bench = Bench()
    plan = bench.taking.plan(Observed(dataset("a", BUILDING)), lambda *_: Plan(WAITING), NOW)
    assert bench.woken == [("shop", "a")]
    assert bench.look(dataset("a", plan.status)) == BUILDING


@pytest.mark.parametrize("status", [BUILDING, WAITING])
def test_one_that_cannot_be_planned_keeps_nobody_from_a_turn(status: DatasetStatus) -> None:
    def fail(observed: Observed, config: Config, now: datetime) -> Plan:
        raise AssertionError("a defect")

    bench = Bench(known=(dataset("a", status), dataset("b", WAITING)))
    with pytest.raises(AssertionError, match="a defect"):
        bench.taking.plan(Observed(dataset("a", status)), fail, NOW)
    assert bench.woken == [("shop", "b")]
    assert bench.look(dataset("b", WAITING)) == BUILDING


def test_who_waits_is_looked_at_when_a_holder_is_gone() -> None:
    bench = Bench()
    bench.look(dataset("a"))
    bench.look(dataset("b"))
    bench.taking.forget(("shop", "a"), NOW)
    assert bench.woken == [("shop", "b")]


def test_a_claim_that_could_not_be_written_is_none() -> None:
    bench = Bench()
    bench.look(dataset("a"))
    bench.look(dataset("b"))
    bench.taking.withdraw(dataset("a"), NOW, postpone=True)
    assert bench.woken == [("shop", "b")]
    assert bench.look(dataset("b", WAITING)) == BUILDING


NOT_IN_TURN = [
    pytest.param({"assigned": "other/release"}, id="another operator's"),
    pytest.param({"deleting": True}, id="one that is being deleted"),
    pytest.param({"parsed": None, "problem": "it is bad"}, id="one whose spec cannot be used: its build is not read"),
    pytest.param({"status_problem": "it is bad"}, id="one whose status cannot be read"),
]


@pytest.mark.parametrize("members", NOT_IN_TURN)
def test_no_turn_is_held_by(members: dict[str, spec.DatasetSpec | str | bool | None]) -> None:
    holder = replace(dataset("a", BUILDING), **members)  # type: ignore[arg-type]
    assert Bench(known=(holder,)).look(dataset("b")) == BUILDING
