"""Rounds of load, interleaved: A B C A B C …, so that a slow minute affects all sides alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.load.sample import Sample
from benchmarks.processes import Server
from benchmarks.settings import Settings

Load = Callable[[float], Sample]
"""Runs one round of this many seconds."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a row of load: the measured server, the servers behind it, and a round of load."""

    server: Server
    load: Load
    behind: tuple[Server, ...] = ()

    def round(self, seconds: float) -> Sample:
        """Run one round, and sample the processors."""
        server, behind = self.server.cpu_seconds(), self._behind_seconds()
        sample = self.load(seconds)
        return replace(
            sample,
            server_busy=(self.server.cpu_seconds() - server) / sample.seconds,
            behind_busy=(self._behind_seconds() - behind) / sample.seconds,
        )

    def _behind_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.behind)


def interleaved(settings: Settings, sides: Mapping[str, Contender]) -> dict[str, list[Sample]]:
    """Return side → a sample for each round, after a warm-up round."""
    for side in sides.values():
        side.load(min(1.0, settings.seconds))
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for _ in range(settings.rounds):
        for name, side in sides.items():
            samples[name].append(side.round(settings.seconds))
    return samples
