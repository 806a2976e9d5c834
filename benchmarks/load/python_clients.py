"""`python -m benchmarks.load.python_clients KIND PORT KEYS SECONDS SIZE COUNT`: look keys up from Python, like a
service, and print the numbers of a `Sample`.

Each kind runs in its own process on its own core. KEYS is a file with a key and its value a line, SIZE the keys of a
batch, COUNT the number of coroutines. The first answers are compared by value.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import orjson

_CHECKED: Final = 100
_ROUND: Final = 100
"""Requests between two looks at the clock."""

Call = Callable[[Any], Any]


class Load:
    """The keys, and the result."""

    def __init__(self, keys: Sequence[str], values: Sequence[Any], seconds: float, size: int, count: int) -> None:
        self.keys, self.values = keys, values
        self.seconds, self.size, self.count = seconds, size, count
        self.latencies: list[float] = []
        self.took = 0.0
        self.busy = 0.0

    def run(self, ask: Call, questions: Sequence[Any]) -> None:
        """Ask one question after another."""
        endless = cycle(questions)
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < self.seconds:
            for question in islice(endless, _ROUND):
                asked = time.perf_counter()
                ask(question)
                self.latencies.append(time.perf_counter() - asked)
        self.took, self.busy = time.perf_counter() - began, time.process_time() - cpu

    async def gather(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        """Run ``count`` coroutines, each of which asks for one key after another."""
        began, cpu = time.perf_counter(), time.process_time()
        ends_at = began + self.seconds

        async def work(number: int) -> None:
            now = time.perf_counter()
            for key in islice(cycle(self.keys), number * len(self.keys) // self.count, None):
                await ask(key)
                asked, now = now, time.perf_counter()
                self.latencies.append(now - asked)
                if now > ends_at:
                    return

        await asyncio.gather(*map(work, range(self.count)))
        self.took, self.busy = time.perf_counter() - began, time.process_time() - cpu

    def batches(self) -> list[list[str]]:
        """The keys in groups."""
        return [list(self.keys[at : at + self.size]) for at in range(0, len(self.keys) - self.size + 1, self.size)]

    def check(self, found: Sequence[Any]) -> None:
        """Compare the first answers."""
        if list(found) != list(self.values[: len(found)]):
            raise SystemExit("wrong answers")


def lookupdb_get(load: Load, port: int) -> None:
    """Client.get."""
    from lookupdb.client import Client

    with Client(f"http://127.0.0.1:{port}") as client:
        load.check([client.get(key) for key in load.keys[:_CHECKED]])
        load.run(client.get, load.keys)


def lookupdb_batch(load: Load, port: int) -> None:
    """Client.get_many."""
    from lookupdb.client import Client

    with Client(f"http://127.0.0.1:{port}") as client:
        found = client.get_many(load.keys[:_CHECKED]).found
        load.check([found[key] for key in load.keys[:_CHECKED]])
        load.run(client.get_many, load.batches())


def lookupdb_batch_raw(load: Load, port: int) -> None:
    """Client.get_many of raw values, which are bytes."""
    from lookupdb.client import Client

    with Client(f"http://127.0.0.1:{port}") as client:
        found = client.get_many(load.keys[:_CHECKED]).found
        load.check([orjson.loads(found[key]) for key in load.keys[:_CHECKED]])
        load.run(client.get_many, load.batches())


def redis_batch(load: Load, port: int) -> None:
    """redis-py's mget, which returns bytes."""
    import redis

    with redis.Redis(port=port) as client:
        load.check([orjson.loads(value) for value in client.mget(load.keys[:_CHECKED])])
        load.run(client.mget, load.batches())


def nutcracker_batch(load: Load, port: int) -> None:
    """Send batches to nutcracker, which knows neither RESP3 nor CLIENT SETINFO."""
    import redis

    with redis.Redis(port=port, protocol=2, driver_info=None) as client:
        load.check([orjson.loads(value) for value in client.mget(load.keys[:_CHECKED])])
        load.run(client.mget, load.batches())


def redis_batch_decoded(load: Load, port: int) -> None:
    """redis-py's mget, and the caller's parsing of the bytes with the fastest parser."""
    import redis

    with redis.Redis(port=port) as client:
        load.run(lambda keys: list(map(orjson.loads, client.mget(keys))), load.batches())


def nutcracker_batch_decoded(load: Load, port: int) -> None:
    """Send batches to nutcracker, and decode the values."""
    import redis

    with redis.Redis(port=port, protocol=2, driver_info=None) as client:
        load.run(lambda keys: list(map(orjson.loads, client.mget(keys))), load.batches())


def lookupdb_async(load: Load, port: int) -> None:
    """AsyncClient.get."""
    from lookupdb.client import AsyncClient

    async def run() -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            load.check([await client.get(key) for key in load.keys[:_CHECKED]])
            await load.gather(client.get)

    asyncio.run(run())


def redis_async(load: Load, port: int) -> None:
    """redis-py's asyncio, with a connection for each coroutine."""
    import redis.asyncio

    async def run() -> None:
        client = redis.asyncio.Redis(port=port, max_connections=load.count)
        load.check([orjson.loads(await client.get(key) or b"null") for key in load.keys[:_CHECKED]])
        await load.gather(client.get)
        await client.aclose()

    asyncio.run(run())


def requests_get(load: Load, port: int) -> None:
    """requests, with a session."""
    import requests

    with requests.Session() as session:
        _get(load, port, lambda url: session.get(url).json())


def httpx_get(load: Load, port: int) -> None:
    """httpx, with a client."""
    import httpx

    with httpx.Client() as client:
        _get(load, port, lambda url: client.get(url).json())


def urllib3_get(load: Load, port: int) -> None:
    """urllib3, with a pool."""
    import urllib3

    pool = urllib3.PoolManager()
    _get(load, port, lambda url: pool.request("GET", url).json())


def aiohttp_get(load: Load, port: int) -> None:
    """aiohttp, with a session, one request after another."""
    import aiohttp

    async def run() -> None:
        async with aiohttp.ClientSession() as session:

            async def ask(key: str) -> Any:
                async with session.get(f"http://127.0.0.1:{port}/v1/lookup/{key}") as response:
                    return await response.json()

            load.check([await ask(key) for key in load.keys[:_CHECKED]])
            load.count = 1
            await load.gather(ask)

    asyncio.run(run())


def _get(load: Load, port: int, ask: Callable[[str], Any]) -> None:
    urls = [f"http://127.0.0.1:{port}/v1/lookup/{key}" for key in load.keys]
    load.check([ask(url) for url in urls[:_CHECKED]])
    load.run(ask, urls)


KINDS: Final[dict[str, Callable[[Load, int], None]]] = {
    kind.__name__: kind
    for kind in (
        lookupdb_get,
        lookupdb_batch,
        lookupdb_batch_raw,
        lookupdb_async,
        redis_batch,
        nutcracker_batch,
        nutcracker_batch_decoded,
        redis_batch_decoded,
        redis_async,
        requests_get,
        httpx_get,
        urllib3_get,
        aiohttp_get,
    )
}


def main() -> None:
    """Run the load that the command line names."""
    kind, port, path, seconds, size, count = sys.argv[1:]
    lines = [line.split("\t") for line in Path(path).read_text().splitlines()]
    keys, values = [key for key, _ in lines], [orjson.loads(value) for _, value in lines[:_CHECKED]]
    load = Load(keys, values, float(seconds), int(size), int(count))
    KINDS[kind](load, int(port))
    ordered = sorted(load.latencies)
    print(
        json.dumps(
            {
                "requests": len(ordered),
                "seconds": load.took,
                "busy": load.busy / load.took,
                "p50_us": ordered[len(ordered) // 2] * 1e6,
                "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
