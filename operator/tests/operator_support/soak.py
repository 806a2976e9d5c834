"""Lives of the simulation, one after the other, for as long as one likes: ``make soak``.

A step is one pass of ``plan()``: the events since the last pass, the operator's view, its decision, and the writes.
Each seed is a life; its kind is the seed modulo the number of kinds.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from operator_support.editing_simulation import EditingSimulation
from operator_support.gateway_lives import GatewayLives
from operator_support.losing_simulation import LosingSimulation
from operator_support.neighbours import Neighbours
from operator_support.password_lives import PasswordLives
from operator_support.plan_world import World
from operator_support.promoting_simulation import PromotingSimulation
from operator_support.simulation import Simulation

MOMENTS: Final = 100
_MOST_BREAKS: Final = 20
"""Number of broken lives that end the soak."""
_REPORT_EVERY: Final = 30.0
"""Seconds."""


class Living(Protocol):
    """A simulation that runs a whole life."""

    @property
    def world(self) -> World:
        """Its world."""

    @property
    def steps(self) -> int:
        """Number of passes of ``plan()`` so far."""


@dataclass(frozen=True)
class Kind:
    """A kind of life."""

    name: str
    begin: Callable[[int], Living]
    live: Callable[[Any], object]


def _begin_with_other_pods(seed: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.dresses_pods = True
    return simulation


def _begin_to_lose(seed: int) -> LosingSimulation:
    """Begin a life with losses; one in three also waits for promotions, and one goes shard by shard."""
    lot = seed // len(KINDS) % 3
    return LosingSimulation(seed, promotes=lot == 1, surges=lot == 2)


def _begin_to_edit(seed: int) -> EditingSimulation:
    """Begin a life with edits, with the same options."""
    lot = seed // len(KINDS) % 3
    return EditingSimulation(seed, promotes=lot == 1, surges=lot == 2)


def _begin_to_promote(seed: int) -> Simulation:
    """Begin a life with promotions; every other one has scarce slots."""
    return PromotingSimulation(seed) if seed // len(KINDS) % 2 else Simulation(seed, promotes=True)


KINDS: Final = (
    Kind("faults", Simulation, lambda simulation: simulation.live(MOMENTS)),
    Kind("promotions", _begin_to_promote, lambda simulation: simulation.live(MOMENTS)),
    Kind("shard by shard", lambda seed: Simulation(seed, surges=True), lambda simulation: simulation.live(MOMENTS)),
    Kind("other pods", _begin_with_other_pods, lambda simulation: simulation.live(MOMENTS)),
    Kind("two datasets", Neighbours, lambda neighbours: neighbours.live(MOMENTS)),
    Kind("rollbacks", Simulation, lambda simulation: simulation.live_under_rollbacks(4)),
    Kind("gateways", GatewayLives, lambda simulation: simulation.live(MOMENTS)),
    Kind("passwords", PasswordLives, lambda simulation: simulation.live(MOMENTS)),
    Kind("losses", _begin_to_lose, lambda simulation: simulation.live(MOMENTS)),
    Kind("edits", _begin_to_edit, lambda simulation: simulation.live(MOMENTS)),
)


@dataclass
class Soak:
    """Summary of the lives so far."""

    first_seed: int
    lives: int = 0
    steps: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0
    fingerprint: int = 0
    """Digest of the final statuses of all lives."""

    def live(self, seed: int) -> None:
        """Live one life to its end, or until it breaks."""
        kind = KINDS[seed % len(KINDS)]
        simulation = kind.begin(seed)
        try:
            kind.live(simulation)
        except Exception as error:  # whatever it is, it is reported and can be replayed
            self.broken.append(_describe_break(seed, kind, simulation, error))
        self.lives += 1
        self.steps += simulation.steps
        self.fingerprint = zlib.crc32(str((simulation.steps, simulation.world.status)).encode(), self.fingerprint)

    def describe(self) -> str:
        """Describe the summary on one line."""
        rate = self.steps / self.seconds if self.seconds else 0.0
        return (
            f"seeds {self.first_seed} to {self.first_seed + self.lives - 1}: {self.steps:,} steps"
            f" in {self.lives:,} lives, {self.seconds:.0f} s, {rate:.0f} steps/s, {len(self.broken)} broken"
        )


def run(seed: int, steps: int, seconds: float, say: Callable[[str], None] = print) -> Soak:
    """Live from ``seed`` on until ``steps`` are done or ``seconds`` have passed, and print the progress."""
    soak = Soak(seed)
    begin = reported = time.monotonic()
    while soak.steps < steps and soak.seconds < seconds and len(soak.broken) < _MOST_BREAKS:
        broken = len(soak.broken)
        soak.live(seed + soak.lives)
        soak.seconds = time.monotonic() - begin
        if len(soak.broken) > broken:
            say(soak.broken[-1])
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported = time.monotonic()
            say(soak.describe())
    return soak


def _describe_break(seed: int, kind: Kind, simulation: Living, error: Exception) -> str:
    moment = f"{simulation.world.now:%H:%M:%S.%f}"[:-3]
    return (
        f"BROKEN: seed {seed} ({kind.name}), step {simulation.steps} of its life, at {moment}:"
        f" {type(error).__name__}: {error}\n  again: make soak SEED={seed} STEPS=1"
    )


def main() -> int:
    """Run ``python -m operator_support.soak``; return 1 if a life broke."""
    parser = argparse.ArgumentParser(description="Live random lives of a dataset, and check what must hold in each.")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="passes of plan(), the last life is ended")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    soak = run(options.seed, options.steps, options.seconds, lambda line: print(line, flush=True))
    print(soak.describe())
    return 1 if soak.broken else 0


if __name__ == "__main__":
    sys.exit(main())
