"""Several datasets in one cluster with limited room, and the operator that queues them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from lookupdb_operator import names
from lookupdb_operator.model import Config, Observed, Plan, Trouble
from lookupdb_operator.plan import plan, reasons, turns
from lookupdb_operator.plan.turns import Key, TurnQueues
from operator_support.plan_objects import Process, Takes
from operator_support.plan_world import Planner, World

SERVERS = 4
"""Servers of one rollout: four shards, one replica."""
LACK_OF_ROOM = Trouble(reasons.UNSCHEDULABLE, "no node takes the pod")


@dataclass
class Fleet:
    """A fleet of ``count`` datasets. Servers are placed in random order, as a scheduler may do; a placed one stays."""

    count: int
    room: int
    builds: int = 4
    rollouts: int = 4
    seed: int = 0
    worlds: list[World] = field(default_factory=list)
    most_builds: int = 0
    most_candidates: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._placed: set[tuple[int, str]] = set()
        self._looked: dict[int, Config] = {}
        self._cut_off: tuple[int, ...] = ()
        self._trouble = LACK_OF_ROOM
        for index in range(self.count):
            world = World(takes=Takes(build=3, start=5), planner=self._planner(index))
            world.edit(rollout={"drainSeconds": 5}, shards=SERVERS, replicas=1)
            self.worlds.append(world)
        self.restart()

    def restart(self) -> None:
        """Replace the operator: the new one knows only the statuses."""
        self.queues = TurnQueues(builds=self.builds, rollouts=self.rollouts)
        for index, world in enumerate(self.worlds):
            self.queues.note(_key(index), world.status, world.now)

    def upgrade(self, image: str) -> None:
        """Upgrade the chart's image for one operator: renderings are cached by its configuration."""
        config = replace(self.worlds[0].config, image=image)
        for world in self.worlds:
            world.config = config

    def step(self, seconds: float = 1.0) -> None:
        """Reconcile each dataset with work left, and let time pass."""
        for world in self._random.sample(self.worlds, len(self.worlds)):
            if not self._is_at_rest(world):
                self._looked[id(world)] = world.config
                world.reconcile()
        for world in self.worlds:
            world.step(seconds)
        self._schedule()
        self.most_builds = max(self.most_builds, sum(world.status.build is not None for world in self.worlds))
        candidates = [turns.find_candidate(world.status) for world in self.worlds]
        self.most_candidates = max(self.most_candidates, sum(candidate is not None for candidate in candidates))

    def cut_off(self, worlds: list[World], trouble: Trouble) -> None:
        """Give all new servers of these datasets ``trouble``."""
        self._cut_off = tuple(self.worlds.index(world) for world in worlds)
        self._trouble = trouble

    def settle(self, seconds: int, step: int = 1, only: list[World] | None = None) -> None:
        """Let time pass until every dataset, or those in ``only``, serve what their specs ask for."""
        worlds = only or self.worlds
        for _ in range(0, seconds, step):
            self.step(step)
            if all(self._is_at_rest(world) for world in worlds):
                return
        unsettled = next(world for world in worlds if not world.is_settled())
        raise AssertionError(f"not all is settled after {seconds} s:\n{unsettled.describe()}")

    def _is_at_rest(self, world: World) -> bool:
        is_looked_at = self._looked.get(id(world)) is world.config
        is_seen = world.status.observed_generation == world.metadata_generation
        return is_looked_at and is_seen and world.is_settled() and world.is_quiet()

    def _planner(self, index: int) -> Planner:
        def planner(observed: Observed, config: Config, now: datetime) -> Plan:
            key, status = _key(index), observed.dataset.status
            self.queues.note(key, status, now)
            planned = plan(replace(observed, turns=self.queues.find_turns(key, status, now)), config, now)
            self.queues.note(key, planned.status, now)
            return planned

        return planner

    def _schedule(self) -> None:
        servers = dict(self._servers())
        self._placed &= servers.keys()
        waiting = [place for place in servers if place not in self._placed]
        self._random.shuffle(waiting)
        for place in waiting:
            pod = servers[place]
            if place[0] in self._cut_off:
                pod.trouble = self._trouble
            elif len(self._placed) < self.room:
                self._placed.add(place)
                pod.trouble, pod.born = None, self.worlds[place[0]].now
            else:
                pod.trouble = LACK_OF_ROOM

    def _servers(self) -> Iterator[tuple[tuple[int, str], Process]]:
        for index, world in enumerate(self.worlds):
            for pod in world.pods.values():
                if pod.component == names.SHARDS:
                    yield (index, pod.uid), pod


def _key(index: int) -> Key:
    return "shop", f"d{index}"
