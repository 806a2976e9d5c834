"""Random lives in which the store loses generations, and at times has them again."""

from __future__ import annotations

import random

from lookupdb_operator.plan import plan
from operator_support.plan_world import Planner
from operator_support.simulation import Simulation


class LosingSimulation(Simulation):
    """One life of a dataset whose store loses generations."""

    def __init__(self, seed: int, planner: Planner = plan, *, promotes: bool = False, surges: bool = False) -> None:
        super().__init__(seed, planner, promotes=promotes, surges=surges)
        self._losses = random.Random(f"losses {seed}")

    def act(self) -> None:
        """Let one moment pass. At times a generation is lost, or all are back."""
        world = self.world
        if world.published and self._losses.random() < 0.08:
            world.lost.add(self._losses.choice(list(world.published)))
        if self._losses.random() < 0.02:
            world.lost.clear()
        super().act()

    def calm(self) -> None:
        """Stop all faults. First bring back what nobody builds again, since something may wait for it."""
        self._bring_back()
        super().calm()
        self._bring_back()

    def _bring_back(self) -> None:
        """Bring back a pinned generation, and one that may serve because the newest one is held back."""
        world, status = self.world, self.world.status
        world.lost.discard(world.spec.get("generation", ""))
        if status.rolled_back or status.rejected:
            world.lost -= {rollout.generation for rollout in status.rollouts}
