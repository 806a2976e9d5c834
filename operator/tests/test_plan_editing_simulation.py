"""Whoever edits the routing table, and whenever: in the end routers answer from what should be there. And the lives
that say so are themselves tried on plans that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from operator_support.editing_simulation import EditingSimulation
from operator_support.plan_world import Planner

from lookupdb_operator.config import Config
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import plan

pytestmark = pytest.mark.long

MOMENTS = 100
SEEDS_TO_FIND_A_MUTANT = 100


def test_in_the_end_routers_answer_from_what_should_be_there() -> None:
    simulations = [EditingSimulation(seed, promotes=seed % 3 == 1, surges=seed % 3 == 2) for seed in range(30)]
    for simulation in simulations:
        simulation.live(MOMENTS)
    assert sum(simulation.edits for simulation in simulations) > 60


def _believes_that_nobody_refuses_a_table(observed: Observed, config: Config, now: datetime) -> Plan:
    """Takes a router that answers from what somebody has edited, under the same version, for one that has confirmed."""
    reports = {uid: replace(report, problem="") for uid, report in observed.routers.items()}
    return plan(replace(observed, routers=reports), config, now)


def _sees_no_edits(observed: Observed, config: Config, now: datetime) -> Plan:
    others = tuple(replace(other, changed="") for other in observed.other_objects)
    return plan(replace(observed, other_objects=others), config, now)


MUTANTS = [
    pytest.param(_believes_that_nobody_refuses_a_table, id="takes who refuses a table for one that has it"),
    pytest.param(_sees_no_edits, id="does not see what was edited"),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_plan_that(mutant: Planner) -> None:
    with pytest.raises(AssertionError):
        _live(mutant)


def _live(planner: Planner) -> None:
    for seed in range(SEEDS_TO_FIND_A_MUTANT):
        EditingSimulation(seed, planner).live(MOMENTS)
