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


_FIRST_DAY: Final = "perf of 2026-11-21 (two cores, AMD EPYC): "

_POD: Final = (
    "smaps and imports of 2026-11-22: each process holds 3.3 MB of Python itself. Of a supervisor's other 8 to 9.5 MB "
    "asyncio and what it imports take 4.5, a shard's checksum (OpenSSL) 0.5; of a worker's, typing, dataclasses, "
    "logging, pathlib and what these import take nearly 4, and what is left is mostly code of its own. TLS, tokens and "
    "the RESP port have added 1.7 MB to a router since then."
)
_ROUTED: Final = (
    "perf of 2026-11-22 (two cores, Intel Xeon): of the router's core 54 % is the kernel's (41 % writes, nearly "
    "all to clients, which do the loopback's work for the receiver too; a request takes one read and one write, "
    "and a twentieth of each to its shard), 38 % the interpreter's, 4 % uvloop's. The ratio of one round was 12.5"
    " to 34.9 in that day's run, by what else the machine did."
)

_NATIVE_BATCH: Final = (
    "perf of 2026-11-23 (two cores, AMD EPYC; just before keys were compared by their first eight bytes, which took a "
    "tenth of the search away): compressed: searching pages and comparing keys 36 %, most of it waiting for memory, "
    "decompressing and copying 33 %, the kernel 27 %; without compression 50 %, 12 % and 36 %. "
    "The machine's memory decides, too: on 2026-11-24 the same code had 2.62 and 3.40 of Redis in one run and 1.91 and "
    "2.58 in another, both on a quiet machine, which gave Redis 497,000 keys a second and then 738,000, and lookupdb "
    "1,302,000 and 1,412,000: where memory is quick, Redis gains most."
)

_COLD: Final = (
    "perf of 2026-11-23 (two cores, AMD EPYC, a virtual disk): with one fault after the other 42 % of the worker's "
    "time is the disk's doorbell, which leaves the virtual machine, once a page. Pages that are asked for together "
    "ring as often: the kernel gathers requests within one madvise alone, and what could ring once for all of them, "
    "io_uring, is forbidden to restricted pods. Runs of that morning had 3.86 to 4.27."
)

_NATIVE_BUILD: Final = (
    "perf of 2026-11-22 (two cores, Intel Xeon; 5 M persons take 15 to 17 s of processor time): what is done "
    "fills both cores; one thread still merges and appends, which is not what limits two of them. Two threads "
    "that pack take 41 % of it, nearly all zstd, of which half looks for matches in the dictionary; other levels "
    "and parameters were slower or left files larger by 2 % and more. Two processes that read take 30 %: copying "
    "6 %, the kernel's part 7 %, sorting, splitting, escaping. The thread that merges and appends takes 21 %, "
    "half of it Python's: py-lmdb takes a batch of records at a call (putmulti, append), but each as a key, a value "
    "and a pair, and it gives a lock away and takes it back for each. Checksums, training and starting take the rest. "
    "That day's rates are those of a machine with a load of 9."
)

_NATIVE_GET: Final = (
    "no profile; runs differ by more than what is lacking: of two of 2026-11-26 one had 1.27, and not compressed 1.18, "
    "the other 1.05 and 1.34. Nearly all of a GET is the kernel's, which both servers ask for the same."
)

PROFILED: Final = (
    "What limited these, by profiles that were not taken in this run: each says of which day and machine its "
    "figures are."
)

_CLIENT_BATCH: Final = (
    "the scheduler's own counts of 2026-11-24 (two cores, other work on them, all sides at real-time priority): of a "
    "lone call the client takes 190 µs (a quarter is orjson, a third the kernel), the router 250 and each of four "
    "shards 44, one after the other, for they share a core; Redis takes 94 to 180 and redis-py 135 to 150, which does "
    "not parse the values. The router that takes 250 µs for a lone batch takes 61 where many come at once: it is woken "
    "for each shard's answer, and Python and the kernel's scheduler do the same work for 25 keys as for many more. No "
    "client can bring that to 1: redis-py itself loses a third where it asks four Redis. With as many servers on both "
    "sides it is the rows' before, and from many threads it is nearer."
)

_CLIENT_BATCH_PARSED: Final = (
    "the client parses the values, and redis-py does not; they are compressed, and those of Redis are not: by perf of "
    "2026-11-26 (two cores, AMD EPYC) orjson takes a quarter of the client's time with one shard, and as much goes "
    "into the objects that it makes. The rows before are of the same answers on both sides, or of the same bytes."
)

_CLIENT_BATCH_PLAIN: Final = (
    "the client parses the values, and redis-py does not: by perf of 2026-11-26 (two cores, AMD EPYC) orjson takes two "
    "fifths of the client's time. Where memory is quick, Redis gains most: the run before of that day had 1.07."
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
