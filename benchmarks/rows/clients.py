"""Clients in Python: ours against redis-py and Redis, and against common HTTP clients.

Here the client is measured, and has the load generator's core to itself. Its server (the router and its four shards, or
Redis) shares the other one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import processes
from benchmarks.arena import SHARDS, Arena, Routed
from benchmarks.load.sample import Sample
from benchmarks.machine import LOAD_CORE, SERVER_CORE, BenchError
from benchmarks.processes import Server
from benchmarks.results import (
    AIOHTTP,
    HTTPX,
    OURS,
    REDIS_PY,
    REDIS_PY_DECODED,
    REDIS_PY_SHARDED,
    REDIS_PY_SHARDED_DECODED,
    REQUESTS,
    URLLIB3,
    Result,
    Side,
    rates,
    single,
)
from benchmarks.rows.rounds import Contender, interleaved

_IMPORTS: Final = 5
_IMPORT: Final = """
import time
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
size, began = resident(), time.process_time()
import lookupdb.client
print(time.process_time() - began, resident() - size)
"""


def coroutines(arena: Arena) -> list[Result]:
    """Coroutines that each await one key after another, against redis-py's asyncio."""
    kinds = {REDIS_PY: "redis_async", OURS: "lookupdb_async"}
    sides = {name: rates(samples) for name, samples in _compare(arena, kinds).items()}
    title = f"Python: {arena.settings.http_connections} coroutines, each awaiting one key"
    return [Result("client-async", title, "keys/s", sides, "AsyncClient, and redis-py's asyncio client.", (REDIS_PY,))]


def batch(arena: Arena) -> list[Result]:
    """One caller that asks for 100 keys at a time, against redis-py's mget: with default datasets, compressed ones, and
    the same bytes as in Redis."""
    one = {REDIS_PY: "redis_batch"}
    four = {REDIS_PY_SHARDED: "nutcracker_batch"}
    parsed_one = {**one, REDIS_PY_DECODED: "redis_batch_decoded"}
    parsed_four = {**four, REDIS_PY_SHARDED_DECODED: "nutcracker_batch_decoded"}
    json_one, json_four = arena.variant_router(shards=1), arena.router()
    raw_one, raw_four = arena.variant_router(shards=1, raw=True), arena.variant_router(shards=SHARDS, raw=True)
    plain_one = arena.variant_router(shards=1, compression="none")
    plain_four = arena.variant_router(shards=SHARDS, compression="none")
    parsed = "Here and in the next three tables, Client.get_many parses the values; redis-py's mget does not."
    return [
        _batch(arena, "client-batch-raw-one", ", raw values, one shard", one, raw_one, raw=True),
        _batch(arena, "client-batch-raw", ", raw values, four shards", four, raw_four, raw=True),
        _batch(arena, "client-batch-one", ", one shard", parsed_one, json_one, note=parsed),
        _batch(arena, "client-batch", ", four shards", {**parsed_four, **one}, json_four),
        _batch(arena, "client-batch-plain-one", ", one shard, not compressed", one, plain_one),
        _batch(arena, "client-batch-plain", ", four shards, not compressed", four, plain_four),
    ]


def _batch(
    arena: Arena, name: str, what: str, peers: dict[str, str], router: Routed, *, raw: bool = False, note: str = ""
) -> Result:
    size = arena.settings.batch
    kinds = {**peers, OURS: "lookupdb_batch_raw" if raw else "lookupdb_batch"}
    sides = {side: rates(samples, size) for side, samples in _compare(arena, kinds, router).items()}
    return Result(name, f"Python: {size} keys a call{what}", "keys/s", sides, note, tuple(peers))


def get(arena: Arena) -> list[Result]:
    """One caller that asks for one key at a time over HTTP, against common clients."""
    kinds = {
        REQUESTS: "requests_get",
        HTTPX: "httpx_get",
        URLLIB3: "urllib3_get",
        AIOHTTP: "aiohttp_get",
        OURS: "lookupdb_get",
    }
    sides = {name: rates(samples) for name, samples in _compare(arena, kinds).items()}
    note = "Client.get. All sides keep connections open and parse JSON."
    baselines = (REQUESTS, HTTPX, URLLIB3, AIOHTTP)
    return [Result("client-get", "Python: one key a call, over HTTP", "requests/s", sides, note, baselines)]


def import_cost(arena: Arena) -> list[Result]:
    """Time and memory of `import lookupdb.client`."""
    arena.say("importing lookupdb.client")
    words = processes.pinned([sys.executable, "-c", _IMPORT], LOAD_CORE)
    costs = [tuple(map(float, processes.output(words).split())) for _ in range(_IMPORTS)]
    seconds, size = (single(*figures) for figures in zip(*costs, strict=True))
    return [
        Result("client-import-time", "import lookupdb.client", "s", {OURS: seconds}, "Processor time."),
        Result("client-import-memory", "Memory that it takes", "bytes", {OURS: Side(size.values)}),
    ]


def _compare(arena: Arena, kinds: dict[str, str], router: Routed | None = None) -> dict[str, list[Sample]]:
    router = router or arena.router()
    asked = {kind: _asked(arena, kind, router) for kind in kinds.values()}
    keys = _write_keys(arena)
    for front, _, _ in asked.values():
        front.pin(SERVER_CORE)
    with _pinned([server for _, _, behind in asked.values() for server in behind], SERVER_CORE):
        sides = {}
        for side, kind in kinds.items():
            front, port, behind = asked[kind]
            sides[side] = Contender(front, partial(_load, arena, kind, port, keys), behind)
        return interleaved(arena.settings, sides)


def _asked(arena: Arena, kind: str, router: Routed) -> tuple[Server, int, tuple[Server, ...]]:
    """Return the server of a kind of client, its port, and the servers behind it."""
    if kind.startswith("redis"):
        return (*arena.redis, ())
    if kind.startswith("nutcracker"):
        return (*arena.nutcracker, arena.redises)
    return router.server, router.port, router.shards


@contextmanager
def _pinned(servers: Sequence[Server], core: int) -> Iterator[None]:
    """Move the servers behind a router or proxy to its core, and back: in other rows they share the load
    generator's."""
    for server in servers:
        server.pin(core)
    try:
        yield
    finally:
        for server in servers:
            server.pin(LOAD_CORE)


def _write_keys(arena: Arena) -> Path:
    path = arena.run / "keys.tsv"
    if not path.exists():
        pairs = zip(arena.pairs.keys, arena.pairs.values, strict=True)
        path.write_bytes(b"".join(b"%b\t%b\n" % pair for pair in pairs))
    return path


def _load(arena: Arena, kind: str, port: int, keys: Path, seconds: float) -> Sample:
    settings = arena.settings
    words = [sys.executable, "-m", "benchmarks.load.python_clients", kind, str(port), str(keys), str(seconds)]
    words += [str(settings.batch), str(settings.http_connections)]
    line = json.loads(processes.output(processes.pinned(words, LOAD_CORE), timeout=seconds + 120))
    if not line["requests"]:
        raise BenchError(f"{kind} was answered nothing in {seconds} s")
    return Sample(line["requests"] / line["seconds"], line["seconds"], line["busy"], line["p50_us"], line["p99_us"])
