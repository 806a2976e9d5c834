"""A pod's private memory, and the page cache that all share."""

from __future__ import annotations

import json
from typing import Final

from benchmarks import memory
from benchmarks.arena import SHARDS, Arena
from benchmarks.load import generator, script
from benchmarks.machine import SERVER_CORE
from benchmarks.peers import lookupdb, redis
from benchmarks.peers.lookupdb import Kernels
from benchmarks.processes import Server
from benchmarks.results import FLASK, OURS, REDIS, ROUTER_POD, SHARD_POD, Result, single
from benchmarks.rows.shard import gets

_LOOKUPS: Final = 1_000_000
_NOTE: Final = (
    "Pages that no other process maps, without the mapped shard file. Flask's worker holds the data in a dict, as "
    "each further worker would. Redis: its used_memory."
)
_POD_NOTE: Final = (
    "Supervisor and worker, from compiled bytecode, as in the image. The shard server gets pipelined GETs. The router"
    " gets nine tenths of its keys in batches of 100."
)


def measure(arena: Arena) -> list[Result]:
    """A fresh shard server with one worker, after 100,000 and 1,000,000 pipelined lookups of random keys."""
    generation = arena.generation(compression="zstd")
    server, (port,) = lookupdb.serve(generation, 0, arena.run / "shard-memory.log", SERVER_CORE)
    try:
        private = {f"{OURS} worker, idle": single(_worker(server).private)}
        done = 0
        for lookups in arena.settings.lookups:
            _look_up(arena, port, lookups - done)
            done = lookups
            private[f"{OURS} worker, {lookups:,} lookups"] = single(_worker(server).private)
        private[f"{OURS} worker, of that heap and stacks"] = single(_worker(server).anonymous)
        cached = {f"{OURS}: shard file": single(memory.cached(generation.files))}
    finally:
        server.stop()
    private[FLASK] = single(max(memory.of(pid).private for pid in memory.tree(arena.flask[0].pid)))
    private[REDIS] = single(redis.used_memory(arena.redis[1]))
    return [
        Result("worker-memory", "Private memory", "bytes", private, _NOTE, ()),
        Result("page-cache", "In the page cache after the lookups", "bytes", cached, "Shared by all workers.", ()),
    ]


def pods(arena: Arena) -> list[Result]:
    """All processes of a shard server and of a router with one worker each, after a million lookups."""
    sides = {}
    for side, kernels in lookupdb.KINDS.items():
        sides[f"{side}: {SHARD_POD}"] = single(_shard_pod(arena, kernels))
        sides[f"{side}: {ROUTER_POD}"] = single(_router_pod(arena, kernels))
    return [Result("pod-memory", f"Private memory of a pod after {_LOOKUPS:,} lookups", "bytes", sides, _POD_NOTE, ())]


def _shard_pod(arena: Arena, kernels: Kernels) -> int:
    generation, log = arena.generation(compression="zstd"), arena.run / f"shard-pod-{kernels}.log"
    server, (port,) = lookupdb.serve(generation, 0, log, SERVER_CORE, kernels)
    try:
        _look_up(arena, port, _LOOKUPS)
        return _private(server)
    finally:
        server.stop()


def _router_pod(arena: Arena, kernels: Kernels) -> int:
    """Measure the shards of the routed rows, and a fresh router."""
    generation, shard_ports = arena.generation(shards=SHARDS), arena.router(kernels).shard_ports
    log = arena.run / f"router-pod-{kernels}.log"
    server, port, _ = lookupdb.route(generation, shard_ports, log, SERVER_CORE, kernels)
    try:
        keys = [key.decode() for key in arena.pairs.keys]
        size, alone = arena.settings.batch, _LOOKUPS // 10
        bodies = [json.dumps({"keys": keys[at : at + size]}).encode() for at in range(0, len(keys), size)]
        posts = [script.http_post("/v1/lookup", body) for body in bodies]
        _ask_router(arena, port, posts, (_LOOKUPS - alone) // size)
        _ask_router(arena, port, [script.http_get(f"/v1/lookup/{key}") for key in keys], alone)
        return _private(server)
    finally:
        server.stop()


def _ask_router(arena: Arena, port: int, requests: list[bytes], count: int) -> None:
    path, connections = script.write(arena.run / "memory.load", requests), arena.settings.http_connections
    generator.run(arena.program, port, path, connections=connections, requests=count)


def _private(server: Server) -> int:
    """Return the private memory of all processes of a server."""
    return sum(memory.of(pid).private for pid in memory.tree(server.pid))


def _worker(server: Server) -> memory.Memory:
    """Return the memory of the server's only worker, which maps the shard."""
    return max((memory.of(pid) for pid in memory.tree(server.pid)), key=lambda found: found.shard)


def _look_up(arena: Arena, port: int, count: int) -> None:
    settings = arena.settings
    connections, depth = settings.connections, settings.pipeline
    generator.run(arena.program, port, gets(arena), connections=connections, depth=depth, requests=count)
