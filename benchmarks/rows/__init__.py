"""The rows in the order of measurement. To add one, write a function and name it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.arena import Arena
from benchmarks.results import Result
from benchmarks.rows import build, clients, cold, encrypted, in_process, memory, routed, shard, workers

_ALWAYS: Final = ("taskset", "setpriv")


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement with a name. It may give several results."""

    name: str
    title: str
    measure: Callable[[Arena], list[Result]]
    programs: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The required programs."""
        return (*_ALWAYS, *self.programs)


_RESP: Final = ("redis-server", "cc")
_REDIS: Final = ("redis-server",)
_HTTP: Final = ("redis-server", "webdis", "wrk")

ROWS: Final = (
    Row("build", "build time and peak memory, against Redis, pickle, sqlite", build.time_and_memory, _RESP),
    Row("disk", "bytes on disk, against the source, pickle, sqlite", build.disk),
    Row("get", "one key a request over RESP, against Redis", shard.get, _RESP),
    Row("pipeline", "GETs sent 16 at a time, against Redis", shard.pipeline, _RESP),
    Row("mget", "100 keys a request over RESP, against Redis", shard.mget, _RESP),
    Row("routed-get", "one key a request over HTTP, against webdis and Flask", routed.get, _HTTP),
    Row("routed-batch", "100 keys a request over HTTP, against webdis and Flask", routed.batch, _HTTP),
    Row("sharded-batch", "100 keys of four shards, against nutcracker", routed.sharded, (*_RESP, "nutcracker")),
    Row(
        "routed-resp-pipelined",
        "GETs over RESP of four shards, sent 16 at a time, against nutcracker",
        routed.resp_pipelined,
        (*_RESP, "nutcracker"),
    ),
    Row("encrypted-get", "one key a request over HTTPS, with a token, against plain HTTP", encrypted.get, ("wrk",)),
    Row("encrypted-batch", "100 keys a request over HTTPS, with a token", encrypted.batch, ("wrk",)),
    Row("client-async", "coroutines that await one key each, from Python, against Redis", clients.coroutines, _REDIS),
    Row("client-batch", "100 keys a call, from Python, against Redis", clients.batch, (*_REDIS, "nutcracker")),
    Row("client-get", "one key a call, from Python, against common HTTP clients", clients.get, _REDIS),
    Row("client-import", "what the import of the Python client takes", clients.import_cost),
    Row("workers", "one key a request over RESP, of two workers against one", workers.measure, _RESP),
    Row("cold", "100 keys a request over RESP, nothing of the file in memory", cold.measure, (*_RESP, "fincore")),
    Row("in-process", "keys one by one and 100 at a time in one process, against py-lmdb", in_process.measure),
    Row("memory", "private bytes a worker, page cache; Redis, Flask", memory.measure, (*_RESP, "fincore")),
    Row("pods", "private bytes of a shard server and of a router, all processes", memory.pods, _RESP),
    Row("persons", "five million persons: build time, peak memory, bytes on disk", build.persons),
)
