"""A promoted candidate takes effect, however many newer generations are queued. The simulation itself is tested with
plans that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from operator_support.plan_world import Planner
from operator_support.promoting_simulation import PromotingSimulation

from lookupdb_operator.model import Config, Observed, Plan
from lookupdb_operator.plan import plan

pytestmark = pytest.mark.long

MOMENTS = 200
SEEDS_TO_FIND_A_MUTANT = 40


def test_what_is_promoted_while_something_newer_waits_takes_effect() -> None:
    simulations = [PromotingSimulation(seed) for seed in range(15)]
    for simulation in simulations:
        simulation.live(MOMENTS)
    assert sum(simulation.hurried for simulation in simulations) > 5


def _prefers_what_is_newest(observed: Observed, config: Config, now: datetime) -> Plan:
    """Forgets a promoted candidate while something newer is built."""
    dataset, candidate = observed.dataset, observed.dataset.status.candidate
    newest = dataset.status.generations[-1].generation if dataset.status.generations else ""
    if candidate is not None and newest != candidate.generation == dataset.promote:
        dataset = replace(dataset, status=replace(dataset.status, candidate=None))
    return plan(replace(observed, dataset=dataset), config, now)


def _waits_though_it_is_promoted(observed: Observed, config: Config, now: datetime) -> Plan:
    """Ignores a promotion."""
    return plan(replace(observed, dataset=replace(observed.dataset, promote="")), config, now)


MUTANTS = [
    pytest.param(_prefers_what_is_newest, id="prefers what is newest"),
    pytest.param(_waits_though_it_is_promoted, id="lets what is promoted wait"),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_plan_that(mutant: Planner) -> None:
    with pytest.raises(AssertionError):
        _live(mutant)


def _live(planner: Planner) -> None:
    for seed in range(SEEDS_TO_FIND_A_MUTANT):
        PromotingSimulation(seed, planner).live(MOMENTS)
