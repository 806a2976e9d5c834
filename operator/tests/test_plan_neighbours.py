"""Two datasets with one build slot and one rollout slot: both reach their desired generations."""

from __future__ import annotations

import pytest
from operator_support.neighbours import Neighbours


@pytest.mark.parametrize("seed", range(2))
def test_both_come_to_what_is_asked_for_though_each_had_to_wait_for_the_other(seed: int) -> None:
    neighbours = Neighbours(seed)
    neighbours.live(60)
    assert neighbours.waits
    assert all(simulation.world.status.generation for simulation in (neighbours.first, neighbours.second))
