"""Batches whose pages are on disk: native kernels read them together, the Python kernels one by one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import datasets
from benchmarks.arena import Arena
from benchmarks.eviction import evict
from benchmarks.load import generator
from benchmarks.load.sample import Sample
from benchmarks.machine import SERVER_CORE
from benchmarks.peers import lookupdb
from benchmarks.processes import Server
from benchmarks.results import PYTHON, Result, rates
from benchmarks.rows.rounds import Contender, interleaved
from benchmarks.rows.shard import mgets

_NOTE: Final = (
    "One connection, values not compressed. Before each round the whole file is removed from the page cache. A round "
    "touches less than a quarter of its pages, as if memory held a quarter of the file or less. The Python kernels "
    "take one page fault after the other."
)


def measure(arena: Arena) -> list[Result]:
    """MGET of 100 random keys over one connection, with the file dropped from the page cache before each round."""
    generation, path = datasets.copy(arena.generation(compression="none"), arena.run / "store-cold"), mgets(arena)
    (file,) = generation.files
    sides: dict[str, Contender] = {}
    servers: list[Server] = []
    try:
        for side, kernels in lookupdb.KINDS.items():
            log = arena.run / f"shard-cold-{kernels}.log"
            server, (port,) = lookupdb.serve(generation, 0, log, SERVER_CORE, kernels, warm="never")
            servers.append(server)
            sides[side] = Contender(server, partial(_load, arena, servers, port, file, path))
        samples = interleaved(arena.settings, sides)
    finally:
        for server in servers:
            server.stop()
    keys = arena.settings.batch
    title = f"MGET of {keys} over RESP, nothing of the file in memory"
    return [Result("cold", title, "keys/s", {side: rates(samples[side], keys) for side in sides}, _NOTE, (PYTHON,))]


def _load(arena: Arena, servers: list[Server], port: int, file: Path, path: Path, _: float) -> Sample:
    evict(file, [server.pid for server in servers])
    return generator.run(arena.program, port, path, connections=1, requests=arena.settings.cold_batches)
