"""What a second worker adds, on a machine whose two cores the load needs too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.arena import Arena
from benchmarks.load import generator
from benchmarks.load.sample import Sample
from benchmarks.peers import lookupdb
from benchmarks.processes import Server
from benchmarks.results import ONE_WORKER, TWO_WORKERS, Result, rates
from benchmarks.rows.rounds import Contender, interleaved
from benchmarks.rows.shard import gets

_NOTE: Final = (
    "Server and load generator share both cores, so that the rates are not those of workers with a core each. What a "
    "core full of a worker answers is 1 s : CPU a key; the target compares two such cores with one."
)


def measure(arena: Arena) -> list[Result]:
    """GETs over RESP, half of the connections to each of two workers, or all to one."""
    generation, path = arena.generation(), gets(arena)
    sides: dict[str, Contender] = {}
    servers: list[Server] = []
    try:
        for side, workers in ((ONE_WORKER, 1), (TWO_WORKERS, 2)):
            log = arena.run / f"shard-workers-{workers}.log"
            server, ports = lookupdb.serve(generation, 0, log, None, workers=workers)
            servers.append(server)
            sides[side] = Contender(server, partial(_load, arena, ports, path))
        samples = interleaved(arena.settings, sides)
    finally:
        for server in servers:
            server.stop()
    title = f"GET over RESP from workers on two cores, {arena.settings.connections} connections"
    return [Result("workers", title, "requests/s", {side: rates(samples[side]) for side in sides}, _NOTE)]


def _load(arena: Arena, ports: tuple[int, ...], path: Path, seconds: float) -> Sample:
    connections = arena.settings.connections
    return generator.run(arena.program, ports, path, connections=connections, seconds=seconds, core=None)
