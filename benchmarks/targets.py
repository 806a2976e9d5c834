"""What must be reached, and whether it was. A figure that falls short stands as it is, with what limits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.results import FLASK, OURS, REDIS, SOURCE, UNCOMPRESSED, WEBDIS, Result

Results = Mapping[str, Result]
MB: Final = 1e6
GROWTH_TOLERANCE: Final = 0.1
"""Megabytes: a few pages that an allocator or the kernel moves are not growth."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach: at least, or at most, ``threshold``."""

    what: str
    threshold: float
    at_least: bool
    measure: Callable[[Results], float]
    unit: str = ""

    def reached(self, value: float) -> bool:
        """Whether ``value`` will do."""
        return value >= self.threshold if self.at_least else value <= self.threshold

    @property
    def bound(self) -> str:
        """The threshold as text."""
        return f"{'≥' if self.at_least else '≤'} {self.threshold:g}{self.unit}"


def _ratio(row: str, side: str, to: str) -> Callable[[Results], float]:
    return lambda results: results[row].ratio(side, to).value


def _private(results: Results) -> float:
    return results["worker-memory"].sides["lookupdb worker, 1,000,000 lookups"].value / MB


def _growth(results: Results) -> float:
    sides = results["worker-memory"].sides
    before = sides["lookupdb worker, 100,000 lookups"].value
    return (sides["lookupdb worker, 1,000,000 lookups"].value - before) / MB


def _peak(results: Results) -> float:
    return results["build-memory"].sides[OURS].value / 2**30


TARGETS: Final = (
    Target("shard GET : Redis GET", 0.9, True, _ratio("get", OURS, REDIS)),
    Target("shard GET : Redis GET, not compressed", 0.9, True, _ratio("get", UNCOMPRESSED, REDIS)),
    Target("shard MGET of 100 : Redis MGET of 100", 0.6, True, _ratio("mget", OURS, REDIS)),
    Target("shard MGET of 100 : Redis, not compressed", 0.6, True, _ratio("mget", UNCOMPRESSED, REDIS)),
    Target("routed HTTP GET : webdis", 2.0, True, _ratio("routed-get", OURS, WEBDIS)),
    Target("routed HTTP GET : Flask", 20, True, _ratio("routed-get", OURS, FLASK)),
    Target("on disk : JSON lines", 0.30, False, _ratio("disk", OURS, SOURCE)),
    Target("on disk : JSON lines, not compressed", 1.3, False, _ratio("disk", UNCOMPRESSED, SOURCE)),
    Target("private memory of a worker after 1,000,000 lookups", 30, False, _private, " MB"),
    Target("its growth from 100,000 lookups on", GROWTH_TOLERANCE, False, _growth, " MB"),
    Target("build time : loading Redis", 1.0, False, _ratio("build-time", OURS, REDIS)),
    Target("build's peak memory, 1 GiB limit", 1.2, False, _peak, " GiB"),
)
"""In the order of the report. One core for each server; see benchmarks/README.md."""

_KERNEL: Final = (
    "perf: of a worker's time 69 % is the kernel's without compression, 62 % with it (one read, one write and a part "
    "of an epoll turn a request); of Redis' it is 71 %. The rest is the interpreter (14 %), LMDB (11 %, 10 %: half of "
    "that waits for pages of the map to come from memory), copying and memory management (6 %, 10 %) and zstd (0, 3 "
    "%). The kernel's part, 7 to 8 µs a request, is the same on both sides; what is left is 3 to 4 µs here, 3 in Redis."
)
_BATCH: Final = (
    "perf, compressed: LMDB 31 %, interpreter 27 %, copying and memory management 18 %, kernel 12 %, zstd 11 %; "
    "without compression LMDB takes 46 %. Half of LMDB's part waits for memory: a key's page is seldom in a cache of "
    "the CPU. A value costs one call to find it, about 1.1 µs, and one to decompress it, 0.6 µs."
)
_ROUTER: Final = (
    "perf: of the router's core 54 % is the kernel's (a recv and a send a lookup to its client, of which the send does "
    "the loopback's work for the receiver too; webdis pays for two of each and little else), 36 % the interpreter's, "
    "4 % uvloop's (taken just before the last changes). In that day's run the other core was the limit: the load "
    "generator took 13.6 µs a request of it and the four shards 9.8, which was all of it at 42,800 requests/s, while "
    "the router had a tenth of its core left. The load generator alone would have filled its core at 73,000/s, less "
    "than twice webdis: two cores could not show the goal."
)

_BUILD: Final = (
    "py-spy: both cores are busy all along. Reading (half of the time, two processes) is Python and orjson, 7 µs a "
    "row: parsing, checking that no number lost its text, copying, sorting. Writing (a third) is bound by zstd on one "
    "core, and by merging and LMDB on the other. Training and starting take the rest."
)

PROFILED: Final = (
    "What limited these, by profiles of 2026-11-21 (two cores, AMD EPYC). They were not taken in this run, and their "
    "figures are that day's:"
)

LIMITS: Final[dict[str, str]] = {
    "shard GET : Redis GET": _KERNEL,
    "shard GET : Redis GET, not compressed": _KERNEL,
    "shard MGET of 100 : Redis MGET of 100": _BATCH,
    "routed HTTP GET : webdis": _ROUTER,
    "routed HTTP GET : Flask": _ROUTER,
    "build time : loading Redis": _BUILD,
}
"""``what`` → what limits it, from a profile; printed where the target is not reached."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured; value None: not measured in this run."""

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
