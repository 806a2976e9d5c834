"""Two datasets of one operator with one build slot and one rollout slot. They share only the slots; the objects of each
are separated before ``plan()`` is called."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from lookupdb_operator.model import Config, Observed, Plan
from lookupdb_operator.plan import plan, turns
from lookupdb_operator.plan.turns import Key, TurnQueues
from lookupdb_operator.status import DatasetStatus
from operator_support.plan_invariants import Broken
from operator_support.plan_settled import check_settled
from operator_support.plan_world import Planner, World
from operator_support.simulation import CONVERGES_WITHIN, Simulation

_KEYS: Final[tuple[Key, Key]] = (("shop", "airports"), ("shop", "airports-r2"))
_SLICE: Final = 5.0
"""Seconds between two passes of a dataset with work left."""


class Neighbours:
    """One life of two datasets."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        self._random = random.Random(f"neighbours {seed}")
        self._planner = planner
        self._is_nested = self._is_calm = False
        self.waits = 0
        """Passes that ended without the slot that they requested."""
        self._holds: dict[Key, tuple[bool, bool]] = {}
        """Dataset → whether it has the build slot and the rollout slot, as last noted from its status."""
        self.first, self.second = (
            Simulation(own_seed, self._planner_of(key)) for own_seed, key in zip((seed, -1 - seed), _KEYS, strict=True)
        )
        for simulation, other in ((self.first, self.second), (self.second, self.first)):
            simulation.has_neighbour = True
            simulation.world.also_steps = partial(self._catch_up, other, simulation.world)
        self._restart()

    @property
    def steps(self) -> int:
        """Number of passes of ``plan()`` so far, of both."""
        return self.first.steps + self.second.steps

    @property
    def world(self) -> World:
        """The world of the first one; both have the same time."""
        return self.first.world

    def live(self, moments: int) -> None:
        """Live ``moments`` with faults, then one without: both come to serve what is asked for."""
        both = self.first, self.second
        for simulation in both:
            simulation.begin()
        for _ in range(moments):
            if self._random.random() < 0.05:
                self._restart()
            self.first.act()
            self.world.step(self._random.choice([0.2, 0.5, 1.0, 2.0, 4.0]))
        self._is_calm = True
        for simulation in both:
            simulation.calm()
        apart = abs((self.first.world.now - self.second.world.now).total_seconds())  # one may wait for the other
        for simulation in both:
            simulation.world.settle(CONVERGES_WITHIN + apart)
            check_settled(simulation.world)  # meanwhile the other one keeps checking its source

    def _restart(self) -> None:
        """Replace the operator: the new one knows only the statuses."""
        self._queues = TurnQueues(builds=1, rollouts=1)
        for key, simulation in zip(_KEYS, (self.first, self.second), strict=True):
            simulation.world.start_operator()
            self._queues.note(key, simulation.world.status, simulation.world.now)
            self._holds[key] = _held_turns(simulation.world.status)

    def _catch_up(self, other: Simulation, ahead: World, _: float) -> None:
        """Let ``other`` live until its time is that of ``ahead``."""
        if self._is_nested:
            return
        self._is_nested, world = True, other.world
        while world.now < ahead.now:
            if self._is_calm:
                world.reconcile()
            else:
                other.act()
            left = max(0.0, (ahead.now - world.now).total_seconds())
            is_at_rest = world.is_quiet() and bool(world.status.conditions) and world.is_settled()
            world.step(left if is_at_rest or not self._is_calm else min(left, _SLICE))
        self._is_nested = False

    def _planner_of(self, key: Key) -> Callable[[Observed, Config, datetime], Plan]:
        def planner(observed: Observed, config: Config, now: datetime) -> Plan:
            status = observed.dataset.status
            self._queues.note(key, status, now)
            planned = self._planner(replace(observed, turns=self._queues.find_turns(key, status, now)), config, now)
            self._queues.note(key, planned.status, now)
            self._check_turns(key, status, planned.status)
            self.waits += any(map(turns.is_waiting, (planned.status.build_ticket, planned.status.rollout_ticket)))
            return planned

        return planner

    def _check_turns(self, key: Key, before: DatasetStatus, after: DatasetStatus) -> None:
        """Check that no pass begins a build or servers while the other dataset has that slot. Exceptions: a status that
        was set back holds slots that nobody granted, and what has served and is asked for again has its servers
        already."""
        (other,) = set(_KEYS) - {key}
        begins_build = after.build is not None and before.build is None
        candidate, known = turns.find_candidate(after), before.rollouts
        is_there = candidate is not None and candidate.rollout in {rollout.rollout for rollout in known}
        is_new = candidate is not None and (not is_there or bool(candidate.window))
        begins_servers = is_new and turns.find_candidate(before) is None
        begins = (("build", begins_build), ("roll out", begins_servers))
        for (kind, is_begun), other_has in zip(begins, self._holds[other], strict=True):
            if is_begun and other_has:
                raise Broken(f"{key} takes the turn to {kind} while {other} has it")
        self._holds[key] = _held_turns(after)


def _held_turns(status: DatasetStatus) -> tuple[bool, bool]:
    return status.build is not None, turns.find_candidate(status) is not None
