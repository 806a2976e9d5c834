"""Edits of the routing table at any moment: in the end routers answer from the right table. The simulation itself is
tested with plans that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import pytest
from operator_support.editing_simulation import EditingSimulation
from operator_support.plan_world import Planner

from lookupdb_operator.model import Config, Observed, Plan
from lookupdb_operator.plan import plan

pytestmark = pytest.mark.long

MOMENTS = 100
ROUNDS = 6
SEEDS_TO_FIND_A_MUTANT = 100
RAISED_AND_PUT_BACK = (920034, 920250, 920361, 920394)
"""Lives in which a version raised by more than one was read, and put back while the operator held back."""

RAISED_WITHOUT_SERVERS = (910013, 910505)
"""Lives in which routers read a raised version while a shard had too few servers."""


def test_in_the_end_routers_answer_from_what_should_be_there() -> None:
    simulations = [EditingSimulation(seed, promotes=seed % 3 == 1, surges=seed % 3 == 2) for seed in range(15)]
    simulations += [EditingSimulation(seed, promotes=True) for seed in RAISED_WITHOUT_SERVERS]
    for simulation in simulations:
        simulation.live(MOMENTS)
    assert sum(simulation.edits for simulation in simulations) > 30
    assert sum(simulation.raises for simulation in simulations) > 10
    assert sum(simulation.held for simulation in simulations) > 100


def test_what_routers_have_read_is_overtaken_though_it_was_put_back_before_anybody_looked() -> None:
    simulations = [EditingSimulation(seed, surges=seed % 3 == 2, hides=True) for seed in range(10)]
    for simulation in simulations:
        simulation.live(MOMENTS)
    _live_unnoticed(plan, 10)


def test_what_is_edited_while_the_operator_holds_back_is_overtaken_though_it_is_put_back() -> None:
    _live_contested(plan, (*range(6), *RAISED_AND_PUT_BACK))
    EditingSimulation(920320, promotes=True).live_contested(MOMENTS)


def _believes_that_nobody_refuses_a_table(observed: Observed, config: Config, now: datetime) -> Plan:
    """Trusts a router that answers from an edit under the same version."""
    reports = {uid: replace(report, problem="", digests=frozenset()) for uid, report in observed.routers.items()}
    return plan(replace(observed, routers=reports), config, now)


def _sees_no_edits(observed: Observed, config: Config, now: datetime) -> Plan:
    others = tuple(replace(other, changed="") for other in observed.other_objects)
    return plan(replace(observed, other_objects=others), config, now)


def _goes_by_versions_alone(observed: Observed, config: Config, now: datetime) -> Plan:
    """Trusts a router with the right version, whatever it has read under it."""
    reports = {uid: replace(report, digests=frozenset()) for uid, report in observed.routers.items()}
    return plan(replace(observed, routers=reports), config, now)


def _goes_by_annotations_alone(observed: Observed, config: Config, now: datetime) -> Plan:
    """Reads no version in a text, and trusts a router with the right one."""
    others = tuple(replace(other, text_version=0) for other in observed.other_objects)
    reports = {
        uid: replace(report, generations=frozenset(), digests=frozenset()) for uid, report in observed.routers.items()
    }
    return plan(replace(observed, other_objects=others, routers=reports), config, now)


MUTANTS = [
    pytest.param(_believes_that_nobody_refuses_a_table, id="takes who refuses a table for one that has it"),
    pytest.param(_sees_no_edits, id="does not see what was edited"),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_plan_that(mutant: Planner) -> None:
    with pytest.raises(AssertionError):
        _live(mutant)


def test_the_simulation_of_hidden_edits_finds_a_plan_that_goes_by_versions_alone() -> None:
    with pytest.raises(AssertionError):
        _live_unnoticed(_goes_by_versions_alone, SEEDS_TO_FIND_A_MUTANT)


def _forgets_what_it_has_left_alone(observed: Observed, config: Config, now: datetime) -> Plan:
    """Goes by the routing table's ConfigMap when it is written again, whatever it said before."""
    planned = plan(observed, config, now)
    table = planned.status.table
    if table is None:
        return planned
    return replace(planned, status=replace(planned.status, last_table=table.version))


CONTEST_MUTANTS = [
    pytest.param(_goes_by_annotations_alone, id="does not see a version that was raised in the text alone"),
    pytest.param(_forgets_what_it_has_left_alone, id="forgets what it has left alone"),
]


@pytest.mark.parametrize("mutant", CONTEST_MUTANTS)
def test_the_simulation_of_contests_finds_a_plan_that(mutant: Planner) -> None:
    with pytest.raises(AssertionError):
        _live_contested(mutant, range(SEEDS_TO_FIND_A_MUTANT))


def _live_contested(planner: Planner, seeds: Iterable[int]) -> None:
    for seed in seeds:
        EditingSimulation(seed, planner).live_contested(MOMENTS)


def _live_unnoticed(planner: Planner, lives: int) -> None:
    simulations = [EditingSimulation(seed, planner, surges=seed % 3 == 2) for seed in range(lives)]
    for simulation in simulations:
        simulation.live_unnoticed(ROUNDS)
    assert sum(simulation.taken for simulation in simulations) > lives * ROUNDS / 2


def _live(planner: Planner) -> None:
    for seed in range(SEEDS_TO_FIND_A_MUTANT):
        EditingSimulation(seed, planner).live(MOMENTS)
