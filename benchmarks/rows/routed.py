"""The router against webdis and Flask over HTTP, and with both protocols against nutcracker, which shards too, by RESP.

The measured server is alone on its core. Servers behind it (four shards, Redis) share the other with the load
generator.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.arena import Arena
from benchmarks.load import generator, script, wrk
from benchmarks.load.sample import Sample
from benchmarks.machine import LOAD_CORE, BenchError
from benchmarks.peers import webdis
from benchmarks.peers.lookupdb import KINDS
from benchmarks.results import FLASK, NUTCRACKER, OURS, PYTHON, WEBDIS, Result, rates
from benchmarks.rows.rounds import Contender, interleaved
from benchmarks.rows.shard import gets, mgets

_CHECKED: Final = 20
"""The number of answers compared by value before the load; under load any status but 2xx ends the run."""


def get(arena: Arena) -> list[Result]:
    """One key a request."""
    keys = [key.decode() for key in arena.pairs.keys]
    ours = [script.http_get(f"/v1/lookup/{key}") for key in keys]
    requests = {
        WEBDIS: [script.http_get(webdis.get_path(key)) for key in keys],
        FLASK: [script.http_get(f"/lookup/{key}") for key in keys],
        OURS: ours,
        PYTHON: ours,
    }
    expected = [json.loads(value) for value in arena.pairs.values[:_CHECKED]]
    samples = _compare(arena, "routed-get", requests, expected)
    title = f"GET over HTTP, {arena.settings.http_connections} connections"
    return [Result("routed-get", title, "requests/s", {n: rates(s) for n, s in samples.items()}, "", (WEBDIS, FLASK))]


def batch(arena: Arena) -> list[Result]:
    """100 keys a request."""
    size = arena.settings.batch
    requests, expected = _batches(arena)
    samples = _compare(arena, "routed-batch", requests, expected)
    sides = {name: rates(found, size) for name, found in samples.items()}
    return [Result("routed-batch", f"{size} keys a request over HTTP", "keys/s", sides, "", (WEBDIS, FLASK))]


def sharded(arena: Arena) -> list[Result]:
    """100 keys a request, spread over four shards, with one load generator for both protocols."""
    size, requests = arena.settings.batch, _batches(arena)[0][OURS]
    ours = script.write(arena.run / "batch.load", requests)
    nutcracker, nutcracker_port = arena.nutcracker
    sides = {NUTCRACKER: Contender(nutcracker, partial(_load, arena, nutcracker_port, mgets(arena)), arena.redises)}
    for side, kernels in KINDS.items():
        router = arena.router(kernels)
        sides[side] = Contender(router.server, partial(_load, arena, router.port, ours), router.shards)
    samples = interleaved(arena.settings, sides)
    note = "nutcracker proxies RESP; the router parses and writes HTTP and JSON."
    title = f"{size} keys a request from four shards"
    return [
        Result("sharded-batch", title, "keys/s", {n: rates(s, size) for n, s in samples.items()}, note, (NUTCRACKER,))
    ]


def resp_pipelined(arena: Arena) -> list[Result]:
    """Pipelined GETs to a router with RESP, over four shards."""
    depth, path = arena.settings.pipeline, gets(arena)
    nutcracker, nutcracker_port = arena.nutcracker

    def load(port: int) -> Callable[[float], Sample]:
        return partial(_load, arena, port, path, depth=depth)

    sides = {NUTCRACKER: Contender(nutcracker, load(nutcracker_port), arena.redises)}
    for side, kernels in KINDS.items():
        router = arena.router(kernels)
        sides[side] = Contender(router.server, load(router.resp_port), router.shards)
    samples = interleaved(arena.settings, sides)
    title = f"GET over RESP from four shards, pipelined by {depth}"
    rate = {name: rates(found) for name, found in samples.items()}
    return [Result("routed-resp-pipelined", title, "requests/s", rate, baselines=(NUTCRACKER,))]


def _batches(arena: Arena) -> tuple[dict[str, list[bytes]], list[dict[str, Any]]]:
    """Return side → requests of 100 keys, and the expected answers of the first few."""
    batches = arena.pairs.batches(arena.settings.batch)
    asked = [[key.decode() for key in keys] for keys, _ in batches]
    bodies = [json.dumps({"keys": keys}).encode() for keys in asked]
    ours = [script.http_post("/v1/lookup", body) for body in bodies]
    requests = {
        WEBDIS: [script.http_get(webdis.batch_path(keys)) for keys in asked],
        FLASK: [script.http_post("/lookup", body) for body in bodies],
        OURS: ours,
        PYTHON: ours,
    }
    found = [
        dict(zip(keys, map(json.loads, values), strict=True))
        for keys, (_, values) in zip(asked, batches[:_CHECKED], strict=False)
    ]
    return requests, found


def _compare(
    arena: Arena, name: str, requests: dict[str, list[bytes]], expected: Sequence[Any]
) -> dict[str, list[Sample]]:
    arena.redis[0].pin(LOAD_CORE)
    servers = {
        WEBDIS: (*arena.start_webdis(name), (arena.redis[0],)),
        FLASK: (*arena.flask, ()),
        **{side: arena.router(kernels)[:3] for side, kernels in KINDS.items()},
    }
    sides = {}
    for side, (server, port, behind) in servers.items():
        _check(side, port, requests[side], expected)
        path = wrk.write_requests(arena.run / f"{name}-{side}.wrk", requests[side])
        sides[side] = Contender(server, partial(_wrk, arena, port, path), behind)
    return interleaved(arena.settings, sides)


def _check(side: str, port: int, requests: Sequence[bytes], expected: Sequence[Any]) -> None:
    for request, wanted in zip(requests, expected, strict=False):
        head, _, body = request.partition(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n")[0].decode().split()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        found = json.loads(text) if answer.status == 200 else None
        if isinstance(found, dict) and "found" in found:
            found = found["found"]
        elif isinstance(found, dict) and "MGET" in found:
            found = dict(zip(wanted, map(json.loads, found["MGET"]), strict=True))
        if found != wanted:
            raise BenchError(f"{side} answers {method} {path} with {answer.status} {text[:300]!r}")


def _wrk(arena: Arena, port: int, path: Path, seconds: float) -> Sample:
    return wrk.run(port, path, connections=arena.settings.http_connections, seconds=seconds)


def _load(arena: Arena, port: int, path: Path, seconds: float, *, depth: int = 1) -> Sample:
    connections = arena.settings.http_connections
    return generator.run(arena.program, port, path, connections=connections, depth=depth, seconds=seconds)
