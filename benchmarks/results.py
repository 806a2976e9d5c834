"""Results, and their medians, ratios and spread. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

from benchmarks.load.sample import Sample

OURS: Final = "lookupdb"
"""The side with the defaults: native kernels, compressed."""
UNCOMPRESSED: Final = "lookupdb, not compressed"
PYTHON: Final = "lookupdb, Python kernels"
"""lookupdb without native kernels (``LOOKUPDB_NATIVE=0``)."""
PYTHON_UNCOMPRESSED: Final = "lookupdb, Python kernels, not compressed"
ENCRYPTED: Final = "lookupdb, TLS and token"
ONE_WORKER: Final = "lookupdb, one worker"
TWO_WORKERS: Final = "lookupdb, two workers"
REDIS: Final = "Redis"
WEBDIS: Final = "webdis"
FLASK: Final = "Flask"
NUTCRACKER: Final = "nutcracker"
REDIS_PY: Final = "redis-py"
REDIS_PY_DECODED: Final = "redis-py, values parsed"
REDIS_PY_SHARDED: Final = "redis-py, four Redis behind nutcracker"
REDIS_PY_SHARDED_DECODED: Final = "redis-py, four Redis behind nutcracker, values parsed"
REQUESTS: Final = "requests"
HTTPX: Final = "httpx"
URLLIB3: Final = "urllib3"
AIOHTTP: Final = "aiohttp"
PICKLE: Final = "pickle"
SQLITE: Final = "sqlite"
LMDB: Final = "py-lmdb"
SOURCE: Final = "source file"
SHARD_POD: Final = "shard server"
ROUTER_POD: Final = "router"


@dataclass(frozen=True, slots=True)
class Side:
    """A compared side: a value for each round, and the samples of load."""

    values: tuple[float, ...]
    samples: tuple[Sample, ...] = ()

    @property
    def value(self) -> float:
        """The median round."""
        return median(self.values)

    def typical(self, name: Literal["load_busy", "server_busy", "behind_busy", "p50_us", "p99_us"]) -> float | None:
        """The median of a sample's member, None without load."""
        return median(getattr(sample, name) for sample in self.samples) if self.samples else None

    @property
    def cpu_us(self) -> tuple[float, ...]:
        """Microseconds of the server's processor time, user and system, for a key, by round; empty without load.
        Servers behind it do not count."""
        return tuple(s.server_busy / rate * 1e6 for s, rate in zip(self.samples, self.values, strict=False))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of one side's value to another's: of the medians, and the least and greatest of one round."""

    value: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the benchmarks."""

    name: str
    title: str
    unit: Literal["requests/s", "keys/s", "records/s", "s", "bytes"]
    sides: dict[str, Side]
    note: str = ""
    baselines: tuple[str, ...] = field(default=())
    """The sides that ours are compared with."""

    def ratio(self, side: str, to: str) -> Ratio:
        """Return ``side`` : ``to``. Raises KeyError if either was not measured."""
        ours, theirs = self.sides[side], self.sides[to]
        rounds = [a / b for a, b in zip(ours.values, theirs.values, strict=False)]
        return Ratio(ours.value / theirs.value, min(rounds), max(rounds))

    def cpu_ratio(self, side: str, to: str) -> float | None:
        """Return ``side`` : ``to`` of the processor time for a key, by medians; None without load."""
        ours, theirs = self.sides[side].cpu_us, self.sides[to].cpu_us
        return median(ours) / median(theirs) if ours and theirs else None


def rates(samples: Sequence[Sample], keys: int = 1) -> Side:
    """Return a side with load. With ``keys`` a request, its unit is keys a second."""
    return Side(tuple(sample.rate * keys for sample in samples), tuple(samples))


def single(*values: float) -> Side:
    """Return a side without load."""
    return Side(values)
