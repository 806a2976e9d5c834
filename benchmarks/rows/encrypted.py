"""The router with TLS and a token in each request, against plain HTTP; connections are kept."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.arena import Arena
from benchmarks.load import script, secrets, wrk
from benchmarks.load.sample import Sample
from benchmarks.results import ENCRYPTED, OURS, Result, rates
from benchmarks.rows.rounds import Contender, interleaved

_TOKEN: Final = f"Authorization: Bearer {secrets.TOKEN}"


def get(arena: Arena) -> list[Result]:
    """One key a request."""
    paths = [f"/v1/lookup/{key.decode()}" for key in arena.pairs.keys]
    plain, encrypted = map(script.http_get, paths), (script.http_get(path, _TOKEN) for path in paths)
    samples = _compare(arena, "encrypted-get", [*plain], [*encrypted])
    title = f"GET over HTTPS with a token, {arena.settings.http_connections} connections"
    return [Result("encrypted-get", title, "requests/s", {n: rates(s) for n, s in samples.items()}, "", (OURS,))]


def batch(arena: Arena) -> list[Result]:
    """100 keys a request."""
    size = arena.settings.batch
    bodies = [json.dumps({"keys": [key.decode() for key in keys]}).encode() for keys, _ in arena.pairs.batches(size)]
    plain = [script.http_post("/v1/lookup", body) for body in bodies]
    encrypted = [script.http_post("/v1/lookup", body, _TOKEN) for body in bodies]
    samples = _compare(arena, "encrypted-batch", plain, encrypted)
    title = f"{size} keys a request over HTTPS with a token"
    sides = {name: rates(found, size) for name, found in samples.items()}
    return [Result("encrypted-batch", title, "keys/s", sides, "", (OURS,))]


def _compare(arena: Arena, name: str, plain: list[bytes], encrypted: list[bytes]) -> dict[str, list[Sample]]:
    router, (encrypted_router, encrypted_port) = arena.router(), arena.encrypted_router
    sides = {}
    for side, server, port, scheme, requests in (
        (OURS, router.server, router.port, "http", plain),
        (ENCRYPTED, encrypted_router, encrypted_port, "https", encrypted),
    ):
        path = wrk.write_requests(arena.run / f"{name}-{scheme}.wrk", requests)
        sides[side] = Contender(server, partial(_load, arena, port, path, scheme), router.shards)
    return interleaved(arena.settings, sides)


def _load(arena: Arena, port: int, path: Path, scheme: str, seconds: float) -> Sample:
    connections = arena.settings.http_connections
    return wrk.run(port, path, connections=connections, seconds=seconds, scheme=scheme)
