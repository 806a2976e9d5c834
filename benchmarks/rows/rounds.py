"""Rounds of load, interleaved: A B C A B C …, so that a slow minute of the machine falls on all sides alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.load.sample import Sample
from benchmarks.processes import Server
from benchmarks.settings import Settings

Load = Callable[[float], Sample]
"""Runs one round of so many seconds."""


def interleaved(settings: Settings, sides: Mapping[str, tuple[Server, Load]]) -> dict[str, list[Sample]]:
    """Side → a sample for each round. One round that does not count comes first: it warms everything up."""
    for _, load in sides.values():
        load(min(1.0, settings.seconds))
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for _ in range(settings.rounds):
        for name, (server, load) in sides.items():
            before = server.cpu_seconds()
            sample = load(settings.seconds)
            busy = (server.cpu_seconds() - before) / sample.seconds
            samples[name].append(replace(sample, server_busy=busy))
    return samples
