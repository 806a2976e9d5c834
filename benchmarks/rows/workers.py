"""The gain of a second worker, on a machine whose two cores the load needs too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.arena import Arena
from benchmarks.load import generator
from benchmarks.load.sample import Sample
from benchmarks.machine import LOAD_CORE, SERVER_CORE
from benchmarks.peers import lookupdb
from benchmarks.processes import Server
from benchmarks.results import ONE_WORKER, TWO_WORKERS, Result, rates
from benchmarks.rows.rounds import Contender, interleaved
from benchmarks.rows.shard import gets

_CORES: Final = {ONE_WORKER: (SERVER_CORE,), TWO_WORKERS: (LOAD_CORE, SERVER_CORE)}
_NOTE: Final = (
    "Each worker shares a core with its own load generator: one pair on one core, or two pairs on two. Compare these "
    "rates only with each other."
)


def measure(arena: Arena) -> list[Result]:
    """GETs over RESP from one worker on one core, and from two on two."""
    generation, path = arena.generation(), gets(arena)
    sides: dict[str, Contender] = {}
    servers: list[Server] = []
    try:
        for side, cores in _CORES.items():
            log = arena.run / f"shard-workers-{len(cores)}.log"
            server, ports = lookupdb.serve(generation, 0, log, None, workers=len(cores))
            servers.append(server)
            server.pin_children(cores)
            sides[side] = Contender(server, partial(_load, arena, dict(zip(ports, cores, strict=True)), path))
        samples = interleaved(arena.settings, sides)
    finally:
        for server in servers:
            server.stop()
    title = f"GET over RESP from workers with a core each, {_connections(arena)} connections a worker"
    results = {side: rates(samples[side]) for side in sides}
    return [Result("workers", title, "requests/s", results, _NOTE)]


def _connections(arena: Arena) -> int:
    return arena.settings.connections // 2


def _load(arena: Arena, cores: dict[int, int], path: Path, seconds: float) -> Sample:
    """Load each port from its core, all at once, as one sample: sums of rates and of time, the worst of latencies."""

    def load(port: int) -> Sample:
        connections = _connections(arena)
        return generator.run(arena.program, port, path, connections=connections, seconds=seconds, core=cores[port])

    with ThreadPoolExecutor(len(cores)) as threads:
        samples = list(threads.map(load, cores))
    return Sample(
        rate=sum(sample.rate for sample in samples),
        seconds=max(sample.seconds for sample in samples),
        load_busy=sum(sample.load_busy for sample in samples),
        p50_us=max(sample.p50_us for sample in samples),
        p99_us=max(sample.p99_us for sample in samples),
    )
