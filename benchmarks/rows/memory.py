"""What a worker costs in memory that nobody else can use, and what the page cache keeps once for all of them."""

from __future__ import annotations

from benchmarks import memory
from benchmarks.arena import Arena
from benchmarks.load import generator, script
from benchmarks.machine import SERVER_CORE
from benchmarks.peers import lookupdb, redis
from benchmarks.processes import Server
from benchmarks.results import FLASK, OURS, REDIS, Result, single

_NOTE = (
    "Pages that no other process maps, clean and dirty, without the mapped shard file. "
    "Flask's worker holds the data as a dict; every further worker holds it again. Redis: its used_memory."
)


def measure(arena: Arena) -> list[Result]:
    """A fresh shard server with one worker, after 100,000 and 1,000,000 pipelined lookups of random keys."""
    generation = arena.generation(compression="zstd")
    server, port = lookupdb.serve(generation, 0, arena.run / "shard-memory.log", SERVER_CORE)
    try:
        private = {f"{OURS} worker, idle": single(_worker(server).private)}
        done = 0
        for lookups in arena.settings.lookups:
            _look_up(arena, port, lookups - done)
            done = lookups
            private[f"{OURS} worker, {lookups:,} lookups"] = single(_worker(server).private)
        anonymous = _worker(server).anonymous
        private |= {
            f"{OURS} worker, of that heap and stacks": single(anonymous),
            f"{OURS} supervisor": single(memory.of(server.pid).private),
        }
        cached = {f"{OURS}: shard file": single(memory.cached(generation.files))}
    finally:
        server.stop()
    private[FLASK] = single(max(memory.of(pid).private for pid in memory.tree(arena.flask[0].pid)))
    private[REDIS] = single(redis.used_memory(arena.redis[1]))
    return [
        Result("worker-memory", "Private memory", "bytes", private, _NOTE, ()),
        Result("page-cache", "In the page cache after the lookups", "bytes", cached, "Shared by all workers.", ()),
    ]


def _worker(server: Server) -> memory.Memory:
    """The memory of the supervisor's one worker: the child that has the shard mapped."""
    children = [pid for pid in memory.tree(server.pid) if pid != server.pid]
    return max((memory.of(pid) for pid in children), key=lambda found: found.shard)


def _look_up(arena: Arena, port: int, count: int) -> None:
    pairs = arena.pairs
    requests = [script.command(b"GET", key) for key in pairs.keys]
    path = script.write(arena.run / "memory.load", requests, [script.bulk(value) for value in pairs.values])
    settings = arena.settings
    generator.run(arena.program, port, path, connections=settings.connections, depth=settings.pipeline, requests=count)
