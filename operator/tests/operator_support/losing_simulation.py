"""Random lives in which the store loses generations, and at times has them again."""

from __future__ import annotations

import random

from lookupdb_operator.plan import plan
from operator_support.plan_world import Planner
from operator_support.simulation import Simulation


class LosingSimulation(Simulation):
    """One life of a dataset whose store loses what it was given."""

    def __init__(self, seed: int, planner: Planner = plan, *, promotes: bool = False, surges: bool = False) -> None:
        super().__init__(seed, planner, promotes=promotes, surges=surges)
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
        """No faults any more. Somebody brings back what is not built again: first, since it may be waited for."""
        self._bring_back()
        super().calm()
        self._bring_back()

    def _bring_back(self) -> None:
        """What is pinned; and what may serve because the newest generation is held back."""
        world, status = self.world, self.world.status
        world.lost.discard(world.spec.get("generation", ""))
        if status.rolled_back or status.rejected:
            world.lost -= {rollout.generation for rollout in status.rollouts}
