"""Targets, and whether they were reached. A missed target is reported with its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.results import (
    ENCRYPTED,
    FLASK,
    LMDB,
    NUTCRACKER,
    ONE_WORKER,
    OURS,
    PYTHON,
    REDIS,
    REDIS_PY,
    REDIS_PY_DECODED,
    REDIS_PY_SHARDED,
    REDIS_PY_SHARDED_DECODED,
    ROUTER_POD,
    SHARD_POD,
    SOURCE,
    TWO_WORKERS,
    UNCOMPRESSED,
    WEBDIS,
    Result,
)

Results = Mapping[str, Result]
MB: Final = 1e6
GROWTH_TOLERANCE: Final = 0.1
"""Megabytes: an allocator or the kernel may move a few pages."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target: at least, or at most, ``threshold``."""

    what: str
    threshold: float
    at_least: bool
    measure: Callable[[Results], float]
    unit: str = ""

    def reached(self, value: float) -> bool:
        """Return whether ``value`` reaches the target."""
        return value >= self.threshold if self.at_least else value <= self.threshold

    @property
    def bound(self) -> str:
        """The threshold as text."""
        return f"{'≥' if self.at_least else '≤'} {show(self.threshold)}{self.unit}"


def show(value: float) -> str:
    """Return ``value`` in three digits, or in whole thousands."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(row: str, side: str, to: str) -> Callable[[Results], float]:
    return lambda results: results[row].ratio(side, to).value


def _private(results: Results) -> float:
    return results["worker-memory"].sides["lookupdb worker, 1,000,000 lookups"].value / MB


def _growth(results: Results) -> float:
    sides = results["worker-memory"].sides
    before = sides["lookupdb worker, 100,000 lookups"].value
    return (sides["lookupdb worker, 1,000,000 lookups"].value - before) / MB


def _peak(row: str) -> Callable[[Results], float]:
    return lambda results: results[row].sides[OURS].value / 2**30


def _speed(results: Results) -> float:
    return results["persons-speed"].sides[OURS].value


def _import_seconds(results: Results) -> float:
    return results["client-import-time"].sides[OURS].value


def _import_memory(results: Results) -> float:
    return results["client-import-memory"].sides[OURS].value / MB


def _lookups(row: str, side: str) -> Callable[[Results], float]:
    return lambda results: results[row].sides[side].value


def _pod(pod: str) -> Callable[[Results], float]:
    return lambda results: results["pod-memory"].sides[f"{OURS}: {pod}"].value / MB


_RAW_OF_ONE: Final = "Client.get_many(100), raw values, one shard : redis-py mget(100), one Redis"
_RAW_OF_FOUR: Final = "Client.get_many(100), raw values, four shards : redis-py mget(100), four Redis"
_PARSED_OF_ONE: Final = "Client.get_many(100), one shard : redis-py mget(100) and orjson, one Redis"
_PARSED_OF_FOUR: Final = "Client.get_many(100), four shards : redis-py mget(100) and orjson, four Redis"
_PLAIN_OF_ONE: Final = "Client.get_many(100), one shard, not compressed : redis-py mget(100), one Redis"
_PLAIN_OF_FOUR: Final = "Client.get_many(100), four shards, not compressed : redis-py mget(100), four Redis"
_MANY_OF_ONE: Final = "Client.get_many(100), one shard : redis-py mget(100), one Redis"
_MANY_OF_FOUR: Final = "Client.get_many(100), four shards : redis-py mget(100), four Redis"
_MANY_OF_FOUR_TO_ONE: Final = "Client.get_many(100), four shards : redis-py mget(100), one Redis"

TARGETS: Final = (
    Target("shard GET : Redis, not compressed", 1.3, True, _ratio("get", UNCOMPRESSED, REDIS)),
    Target("shard GET : Redis", 1.15, True, _ratio("get", OURS, REDIS)),
    Target("pipelined by 16 : Redis, not compressed", 1.9, True, _ratio("pipeline", UNCOMPRESSED, REDIS)),
    Target("pipelined by 16 : Redis", 1.6, True, _ratio("pipeline", OURS, REDIS)),
    Target("MGET of 100 : Redis, not compressed", 2.8, True, _ratio("mget", UNCOMPRESSED, REDIS)),
    Target("MGET of 100 : Redis", 2.1, True, _ratio("mget", OURS, REDIS)),
    Target("two workers : one worker, GET", 1.6, True, _ratio("workers", TWO_WORKERS, ONE_WORKER)),
    Target("cold MGET of 100 : one fault at a time", 4, True, _ratio("cold", OURS, PYTHON)),
    Target("routed GET : webdis", 1.4, True, _ratio("routed-get", OURS, WEBDIS)),
    Target("routed GET : Flask", 24, True, _ratio("routed-get", OURS, FLASK)),
    Target("routed batch of 100 : nutcracker", 1.4, True, _ratio("sharded-batch", OURS, NUTCRACKER)),
    Target("routed RESP, pipelined by 16 : nutcracker", 1.0, True, _ratio("routed-resp-pipelined", OURS, NUTCRACKER)),
    Target("routed GET, TLS and token : plain", 0.7, True, _ratio("encrypted-get", ENCRYPTED, OURS)),
    Target("routed batch of 100, TLS and token : plain", 0.7, True, _ratio("encrypted-batch", ENCRYPTED, OURS)),
    Target("100 coroutines of AsyncClient : redis-py", 3, True, _ratio("client-async", OURS, REDIS_PY)),
    Target(_RAW_OF_ONE, 1.0, True, _ratio("client-batch-raw-one", OURS, REDIS_PY)),
    Target(_RAW_OF_FOUR, 1.0, True, _ratio("client-batch-raw", OURS, REDIS_PY_SHARDED)),
    Target(_PARSED_OF_ONE, 1.0, True, _ratio("client-batch-one", OURS, REDIS_PY_DECODED)),
    Target(_PARSED_OF_FOUR, 1.0, True, _ratio("client-batch", OURS, REDIS_PY_SHARDED_DECODED)),
    Target(_PLAIN_OF_ONE, 1.0, True, _ratio("client-batch-plain-one", OURS, REDIS_PY)),
    Target(_PLAIN_OF_FOUR, 1.0, True, _ratio("client-batch-plain", OURS, REDIS_PY_SHARDED)),
    Target(_MANY_OF_ONE, 1.0, True, _ratio("client-batch-one", OURS, REDIS_PY)),
    Target(_MANY_OF_FOUR, 1.0, True, _ratio("client-batch", OURS, REDIS_PY_SHARDED)),
    Target(_MANY_OF_FOUR_TO_ONE, 1.0, True, _ratio("client-batch", OURS, REDIS_PY)),
    Target("import of lookupdb.client", 0.05, False, _import_seconds, " s"),
    Target("its memory", 10, False, _import_memory, " MB"),
    Target("in process, raw values : py-lmdb, not compressed", 1.0, True, _ratio("in-process-raw", UNCOMPRESSED, LMDB)),
    Target("in process, raw values", 400_000, True, _lookups("in-process-raw", UNCOMPRESSED), " keys/s"),
    Target(
        "in process, 100 at a time : py-lmdb, not compressed", 1.3, True, _ratio("in-process-many", UNCOMPRESSED, LMDB)
    ),
    Target("build : loading Redis", 0.25, False, _ratio("build-time", OURS, REDIS)),
    Target("build's peak memory, 1 GiB limit", 1.0, False, _peak("build-memory"), " GiB"),
    Target("build of persons", 450_000, True, _speed, " records/s"),
    Target("its peak memory, 1 GiB limit", 1.0, False, _peak("persons-memory"), " GiB"),
    Target("on disk : JSON lines", 0.30, False, _ratio("disk", OURS, SOURCE)),
    Target("on disk : JSON lines, not compressed", 1.3, False, _ratio("disk", UNCOMPRESSED, SOURCE)),
    Target("private memory of a shard's pod", 25, False, _pod(SHARD_POD), " MB"),
    Target("private memory of a router's pod", 30, False, _pod(ROUTER_POD), " MB"),
    Target("private memory of a shard's worker", 30, False, _private, " MB"),
    Target("its growth from 100,000 lookups on", GROWTH_TOLERANCE, False, _growth, " MB"),
)
"""With native kernels, in the order of the report. One core for each server; see benchmarks/README.md."""


_POD: Final = (
    "smaps and imports, 2026-11-22: Python itself holds 3.3 MB in each process. In a supervisor, asyncio and its "
    "imports take 4.5 MB more, and OpenSSL takes 0.5 in a shard's. In a worker, the standard library takes nearly 4. "
    "TLS, tokens and the RESP port have added 1.7 MB to a router since then."
)
_ROUTED: Final = (
    "perf, 2026-11-22 (two Intel Xeon cores): the kernel takes 54 % of the router's core, mostly for writes to "
    "clients. Python takes 38 %, uvloop 4 %. Single rounds of that day had ratios of 12.5 to 34.9."
)

_NATIVE_BATCH: Final = (
    "perf, 2026-11-23 (two AMD EPYC cores): searching pages takes 36 %, mostly waiting for memory; decompressing and "
    "copying 33 %; the kernel 27 %. Without compression these are 50 %, 12 % and 36 %. Memory speed decides: on "
    "2026-11-24 two runs of the same code had ratios of 2.62 and 1.91. Fast memory helps Redis most."
)

_COLD: Final = (
    "perf, 2026-11-23 (two AMD EPYC cores, a virtual disk): with one fault after the other, the worker spends 42 % of"
    " its time on notifying the disk, once a page. Asking for pages together does not save that: the kernel merges "
    "requests only within one madvise, and restricted pods may not use io_uring. Runs of that morning had 3.86 to "
    "4.27."
)

_NATIVE_BUILD: Final = (
    "perf, 2026-11-22 (two Intel Xeon cores, load 9): the build fills both cores. Packing takes 41 %, nearly all of "
    "it zstd; other settings of zstd were slower, or made files at least 2 % larger. Reading, with splitting, "
    "escaping and sorting, takes 30 %. The thread that merges and appends takes 21 %, half of it in Python."
)

_NATIVE_GET: Final = (
    "not profiled. Runs differ by more than the shortfall: two of 2026-11-26 had 1.27 and 1.05, and 1.18 and 1.34 "
    "without compression. Nearly all of a GET is kernel time, the same for both servers."
)

PROFILED: Final = "What limited these, by earlier profiles. Each names its day and machine."

_CLIENT_BATCH: Final = (
    "scheduler counts, 2026-11-24 (two cores, real-time priority): in a single call the client takes 190 µs, the "
    "router 250, and each of four shards 44, one after the other on one core. Redis takes 94 to 180, and redis-py 135"
    " to 150 without parsing. If many batches come at once, the router takes 61 µs for one. redis-py itself loses a "
    "third with four Redis. The rows above compare equal numbers of servers."
)

_CLIENT_BATCH_PARSED: Final = (
    "only our client parses values, and only our values are compressed. perf, 2026-11-26 (two AMD EPYC cores): with "
    "one shard, orjson takes a quarter of the client's time, and creating its objects as much. The rows above compare"
    " the same answers, or the same bytes."
)

_CLIENT_BATCH_PLAIN: Final = (
    "only our client parses values. perf, 2026-11-26 (two AMD EPYC cores): orjson takes two fifths of the client's "
    "time. Fast memory helps Redis most: an earlier run of that day had 1.07."
)

LIMITS: Final[dict[str, str]] = {
    _PLAIN_OF_ONE: _CLIENT_BATCH_PLAIN,
    _MANY_OF_ONE: _CLIENT_BATCH_PARSED,
    _MANY_OF_FOUR: _CLIENT_BATCH_PARSED,
    _MANY_OF_FOUR_TO_ONE: _CLIENT_BATCH,
    "shard GET : Redis": _NATIVE_GET,
    "shard GET : Redis, not compressed": _NATIVE_GET,
    "MGET of 100 : Redis": _NATIVE_BATCH,
    "MGET of 100 : Redis, not compressed": _NATIVE_BATCH,
    "cold MGET of 100 : one fault at a time": _COLD,
    "routed GET : Flask": _ROUTED,
    "build : loading Redis": _NATIVE_BUILD,
    "build of persons": _NATIVE_BUILD,
    "private memory of a shard's pod": _POD,
    "private memory of a router's pod": _POD,
}
"""``what`` → its limit, from a profile; printed if the target is missed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and its measurement; value None: not measured in this run."""

    target: Target
    value: float | None

    @property
    def word(self) -> str:
        """``reached``, ``short`` or ``not measured``."""
        if self.value is None:
            return "not measured"
        return "reached" if self.target.reached(self.value) else "short"


def verdicts(results: Results) -> list[Verdict]:
    """One for each target."""
    found = []
    for target in TARGETS:
        try:
            found.append(Verdict(target, target.measure(results)))
        except KeyError:
            found.append(Verdict(target, None))
    return found
