"""Lives in which the release's key appears, changes, disappears and returns, while everything else fails as ever."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from lookupdb_operator.plan import plan
from operator_support.plan_world import Planner
from operator_support.simulation import Simulation

KEYS: Final = (b"", bytes(32), bytes(range(32)), bytes(range(32, 64)))
"""The first key: shard servers ask for no password."""


class PasswordLives(Simulation):
    """A life in which an operator restarts with another key, or reads one."""

    def __init__(self, seed: int, planner: Planner = plan) -> None:
        super().__init__(seed, planner, surges=seed % 2 == 0, promotes=seed % 3 == 0)
        self._keys = random.Random(f"keys {seed}")
        self.world.config = replace(self.world.config, shard_key=self._keys.choice(KEYS))

    def act(self) -> None:
        """Let one moment pass; at times the key changes."""
        if self._keys.random() < 0.05:
            self.world.config = replace(self.world.config, shard_key=self._keys.choice(KEYS))
        super().act()
