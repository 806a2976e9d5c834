"""Two datasets of one operator, in a cluster where one is built and one rolled out at a time: while one lives, so does
the other. What they have in common is whose turn it is; which objects are whose is read before ``plan()`` is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from lookupdb_operator.config import Config
from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import plan, turns
from lookupdb_operator.plan.turns import Key, TurnQueues
from lookupdb_operator.status import DatasetStatus
from operator_support.plan_invariants import Broken
from operator_support.plan_settled import check_settled
from operator_support.plan_world import Planner, World
from operator_support.simulation import CONVERGES_WITHIN, Simulation

_KEYS: Final[tuple[Key, Key]] = (("shop", "airports"), ("shop", "airports-r2"))
_SLICE: Final = 5.0
"""Seconds between two looks at a dataset of which something is left to be done."""


class Neighbours:
    """One life of two datasets."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        self._random = random.Random(f"neighbours {seed}")
        self._planner = planner
        self._is_nested = self._is_calm = False
        self.waits = 0
        """Passes that ended without the turn that they asked for."""
        self._holds: dict[Key, tuple[bool, bool]] = {}
        """Dataset → whether it has the turn to build, and the one to roll out, as its status was last noted."""
        self.first, self.second = (
            Simulation(own_seed, self._planner_of(key)) for own_seed, key in zip((seed, -1 - seed), _KEYS, strict=True)
        )
        for simulation, other in ((self.first, self.second), (self.second, self.first)):
            simulation.has_neighbour = True
            simulation.world.also_steps = partial(self._catch_up, other, simulation.world)
        self._restart()

    @property
    def steps(self) -> int:
        """Passes of ``plan()`` so far, of both."""
        return self.first.steps + self.second.steps

    @property
    def world(self) -> World:
        """Where the first one lives: both have the same time."""
        return self.first.world

    def live(self, moments: int) -> None:
        """A life of ``moments`` with faults, then one without: both come to what is asked for."""
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
        apart = abs((self.first.world.now - self.second.world.now).total_seconds())  # one may wait for the other's hour
        for simulation in both:
            simulation.world.settle(CONVERGES_WITHIN + apart)
            check_settled(simulation.world)  # the other one goes on looking at its source meanwhile

    def _restart(self) -> None:
        """Another operator takes over, which knows what statuses hold."""
        self._queues = TurnQueues(builds=1, rollouts=1)
        for key, simulation in zip(_KEYS, (self.first, self.second), strict=True):
            simulation.world.start_operator()
            self._queues.note(key, simulation.world.status, simulation.world.now)
            self._holds[key] = _held_turns(simulation.world.status)

    def _catch_up(self, other: Simulation, ahead: World, _: float) -> None:
        """``other`` lives until it is as late there as in ``ahead``."""
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
        """No pass begins a build or servers while the other one has that turn. What a status that was set back holds,
        nobody has granted; nor what has served, and is asked for again: its servers are there."""
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
