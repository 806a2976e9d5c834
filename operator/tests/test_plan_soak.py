"""A soak counts its steps, reports which life broke and how to replay it, and continues with the next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from operator_support import soak
from operator_support.simulation import Simulation

pytestmark = pytest.mark.long


def test_lives_until_its_steps_are_done_and_says_how_many_there_were() -> None:
    done = soak.run(seed=7, steps=150, seconds=600.0)
    assert done.broken == []
    assert done.steps >= 150
    assert f"seeds 7 to {6 + done.lives}: {done.steps:,} steps in {done.lives} lives" in done.describe()


def test_lives_every_kind_of_life_in_turn() -> None:
    names = [soak.KINDS[seed % len(soak.KINDS)].name for seed in range(len(soak.KINDS))]
    assert names == [
        "faults",
        "promotions",
        "shard by shard",
        "other pods",
        "two datasets",
        "rollbacks",
        "gateways",
        "passwords",
        "losses",
        "edits",
    ]


def test_ends_when_its_time_is_up() -> None:
    assert soak.run(seed=0, steps=10**9, seconds=0.01).lives == 1


def test_says_which_life_broke_at_which_moment_and_how_to_live_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(simulation: Simulation) -> None:
        simulation.world.reconcile()
        simulation.world.step(2.5)
        raise AssertionError("it does not hold")

    monkeypatch.setattr(soak, "KINDS", (soak.Kind("short", Simulation, breaks),))
    said: list[str] = []
    done = soak.run(seed=5, steps=2, seconds=600.0, say=said.append)
    assert (done.lives, len(done.broken)) == (2, 2), "one that breaks does not end it"
    assert said[0] == (
        "BROKEN: seed 5 (short), step 1 of its life, at 12:00:02.500: AssertionError: it does not hold\n"
        "  again: make soak SEED=5 STEPS=1"
    )
    assert done.describe().endswith("2 broken")


def test_a_seed_is_the_same_life_in_every_process() -> None:
    """Python's hashes of texts, and with them the order of sets, differ between processes."""
    lives = "from operator_support import soak; print(soak.run(77_000_000, 200, 600.0).fingerprint)"
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", lives],
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("2", "3")
    }
    assert len(fingerprints) == 1
