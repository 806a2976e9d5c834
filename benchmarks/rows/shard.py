"""One shard server against Redis. Each holds all data and answers RESP; they take turns on one core."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.load import generator, script
from benchmarks.load.sample import Sample
from benchmarks.machine import SERVER_CORE
from benchmarks.results import OURS, PYTHON, PYTHON_UNCOMPRESSED, REDIS, UNCOMPRESSED, Result, rates
from benchmarks.rows.rounds import Contender, interleaved


def get(arena: Arena) -> list[Result]:
    """One GET a request, 50 connections."""
    title = f"GET over RESP, {arena.settings.connections} connections"
    return [_compare(arena, "get", title, gets(arena))]


def pipeline(arena: Arena) -> list[Result]:
    """Pipelined GETs, 50 connections."""
    depth = arena.settings.pipeline
    return [_compare(arena, "pipeline", f"GET over RESP, pipelined by {depth}", gets(arena), depth=depth)]


def mget(arena: Arena) -> list[Result]:
    """MGET of 100 keys."""
    return [
        _compare(arena, "mget", f"MGET of {arena.settings.batch} over RESP", mgets(arena), keys=arena.settings.batch)
    ]


def mgets(arena: Arena) -> Path:
    """The load script of MGETs."""
    batches = arena.pairs.batches(arena.settings.batch)
    requests = [script.command(b"MGET", *keys) for keys, _ in batches]
    return script.write(arena.run / "mget.load", requests, [script.array(values) for _, values in batches])


def gets(arena: Arena) -> Path:
    """The load script of GETs."""
    requests = [script.command(b"GET", key) for key in arena.pairs.keys]
    return script.write(arena.run / "get.load", requests, [script.bulk(value) for value in arena.pairs.values])


def _compare(arena: Arena, name: str, title: str, path: Path, *, depth: int = 1, keys: int = 1) -> Result:
    arena.redis[0].pin(SERVER_CORE)
    servers = {
        REDIS: arena.redis,
        UNCOMPRESSED: arena.shard("none"),
        OURS: arena.shard("zstd"),
        PYTHON_UNCOMPRESSED: arena.shard("none", "python"),
        PYTHON: arena.shard("zstd", "python"),
    }
    sides = {
        side: Contender(server, partial(_load, arena, port, path, depth)) for side, (server, port) in servers.items()
    }
    samples = interleaved(arena.settings, sides)
    return Result(
        name=name,
        title=title,
        unit="requests/s" if keys == 1 else "keys/s",
        sides={side: rates(samples[side], keys) for side in sides},
        baselines=(REDIS,),
    )


def _load(arena: Arena, port: int, path: Path, depth: int, seconds: float) -> Sample:
    connections = arena.settings.connections
    return generator.run(arena.program, port, path, connections=connections, depth=depth, seconds=seconds)
