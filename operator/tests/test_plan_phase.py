"""The phase of a dataset: each with an example status, and which comes first when several hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from docs_tools import reference
from operator_support.plan_samples import broken, rebuilt, serving, unconfirmed
from operator_support.plan_world import NEVER, World

from lookupdb.dataset import schema
from lookupdb_operator.plan import planner as phase
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import BuildFailure, Condition, DatasetStatus, TableStatus

NOW = "2026-01-01T00:00:00Z"
TABLE = TableStatus(1, "r1", "g1", 1, 1, NOW, NOW)


def _status(
    ready: str = "True Serving",
    built: str = "True GenerationBuilt",
    rolled_out: str = "True UpToDate",
    degraded: str = "False Healthy",
    **members: Any,
) -> DatasetStatus:
    told = {"Ready": ready, "Built": built, "RolledOut": rolled_out, "Degraded": degraded}
    split = {kind: text.split(" ") for kind, text in told.items()}
    conditions = tuple(Condition(kind, truth, reason, "why") for kind, (truth, reason) in split.items())  # type: ignore[arg-type]
    return replace(DatasetStatus(conditions=conditions, table=TABLE), **members)


def _failure(reason: str) -> BuildFailure:
    return BuildFailure(reason, "why", "g2", "c", "", 1, NOW)


GATE_CLOSED: dict[str, Any] = {
    "built": "False GateClosed",
    "degraded": "True GateClosed",
    "failure": _failure(reasons.GATE_CLOSED),
}
CASES: dict[str, tuple[DatasetStatus, dict[str, Any]]] = {
    "Invalid": (_status(built="False InvalidSpec", degraded="True InvalidSpec"), {"generation": "g1"}),
    "Waiting": (_status("False WaitingForPredecessor", "False WaitingForPredecessor", table=None), {}),
    "Recovering": (_status("Unknown StatusLost", "False Building", "False WaitingForBuild", table=None), {}),
    "Unavailable": (_status("False ShardsUnavailable", "False Building", degraded="True ShardsUnavailable"), {}),
    "Suspended": (_status(**GATE_CLOSED), {"suspend": True}),
    "GateClosed": (_status(**GATE_CLOSED), {"generation": "g1"}),
    "Stuck": (_status(rolled_out="False Unschedulable", degraded="True Unschedulable"), {}),
    "Degraded": (_status(degraded="True ShardsUnavailable"), {}),
    "RollingOut": (_status(rolled_out="False Confirming"), {"generation": "g1"}),
    "Queued": (_status("False NoRoutingTable", "False WaitingForTurn", "False WaitingForBuild", table=None), {}),
    "CandidateWaiting": (_status(rolled_out="False CandidateWaiting", built="False Building"), {}),
    "Pinned": (_status(built="False Building"), {"generation": "g1"}),
    "RolledBack": (_status(rolled_out="True RolledBack"), {}),
    "Rejected": (_status(rolled_out="True Rejected"), {}),
    "WaitingForSource": (_status(built="False WaitingForSource"), {}),
    "Building": (_status("False NoRoutingTable", "False Building", "False WaitingForBuild", table=None), {}),
    "Ready": (_status(), {}),
    "Pending": (DatasetStatus(), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_phase(name: str) -> None:
    assert phase.find_phase(*CASES[name]) == name


def test_every_phase_has_its_case_and_its_line_in_the_docs_in_the_order_in_which_they_are_looked_for() -> None:
    names = list(phase.PHASES)
    assert list(CASES) == names
    _, _, section = reference.page("reference/conditions.md").partition("## In one word")
    rows = [line.split("|")[1].strip() for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert rows[2:] == names
    for name, means in phase.PHASES.items():
        assert f"| {name} | {means} |" in section


@pytest.mark.parametrize("built", ["BadSource", "OutOfMemory", "StoreUnavailable"])
def test_a_build_that_failed_is_stuck_until_one_succeeds(built: str) -> None:
    status = _status(built=f"False {built}", degraded=f"True {built}", failure=_failure(built))
    assert phase.find_phase(status, {}) == "Stuck"


def _never_built() -> World:
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    return world


def _failed() -> World:
    world = serving()
    world.fails = lambda spec: broken("GateClosed", "too few records")
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle(until=lambda: world.status.failure is not None)
    return world


def _refused() -> World:
    world = serving()
    world.closes_gate = lambda content: "bad" in content
    world.edit(source={"url": "s3://data/bad.csv"})
    world.settle(until=lambda: world.status.refused is not None)
    return world


@pytest.mark.parametrize(
    ("state", "name"),
    [
        pytest.param(serving, "Ready", id="all serves"),
        pytest.param(_never_built, "Building", id="a first build"),
        pytest.param(_failed, "GateClosed", id="a gate is closed"),
        pytest.param(_refused, "GateClosed", id="a gate has refused a whole generation"),
        pytest.param(lambda: rebuilt(serving()), "RollingOut", id="servers start"),
        pytest.param(lambda: unconfirmed(serving()), "RollingOut", id="routers take up a table"),
    ],
)
def test_what_is_planned_says_it(state: Any, name: str) -> None:
    assert state().look().status.phase == name


def test_the_age_of_the_data_is_that_of_the_active_generation() -> None:
    world = serving()
    assert world.status.built_at == world.status.generations[0].built_at != ""
    assert rebuilt(world).status.built_at == world.status.generations[0].built_at, "the candidate's does not count"


def test_what_kubectl_shows_without_asking() -> None:
    columns = schema.crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["Ready", "Phase", "Health", "Generation", "Data Age", "Shards", "Records", "Age"]
