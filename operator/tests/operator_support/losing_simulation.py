"""Random lives in which the store loses generations, and at times has them again."""

from __future__ import annotations

import random

from lookupdb_operator.plan import plan
from operator_support.plan_world import Planner
from operator_support.simulation import Simulation


class LosingSimulation(Simulation):
    """One life of a dataset whose store loses what it was given."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        super().__init__(seed, planner)
        self._losses = random.Random(f"losses {seed}")

    def act(self) -> None:
        """What happens in one moment; at times a generation is lost, or all are there again."""
        world = self.world
        if world.published and self._losses.random() < 0.08:
            world.lost.add(self._losses.choice(list(world.published)))
        if self._losses.random() < 0.02:
            world.lost.clear()
        super().act()

    def calm(self) -> None:
        """No faults any more. What is pinned or held back is not built again: it is brought back."""
        super().calm()
        status = self.world.status
        if self.world.spec.get("generation") or status.rolled_back or status.rejected:
            self.world.lost.clear()
