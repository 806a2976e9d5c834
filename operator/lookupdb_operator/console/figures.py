"""Samples of metrics, and rates between two of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Values with their labels, by metric name."""

    values: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    @classmethod
    def parse(cls, text: str, dataset: str) -> Self:
        """Parse ``text`` in the Prometheus text format; empty for any other text. Leave out the values of other
        datasets, because several may share a router."""
        from prometheus_client.parser import text_string_to_metric_families  # here, because only `top` needs it

        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.labels.get("dataset") in (None, "", dataset):
                        values.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError:
            return cls({})
        return cls({name: tuple(samples) for name, samples in values.items()})

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of all values of ``name`` with these labels; None if there are none."""
        found = [value for found_labels, value in self.values.get(name, ()) if labels.items() <= found_labels.items()]
        return sum(found) if found else None


def bound_quantile(before: MetricSample, after: MetricSample, name: str, share: float) -> float | None:
    """Return the lowest bucket bound of the histogram ``name`` that covers ``share`` of the observations between the
    samples: infinite beyond the last bucket, None without observations."""
    buckets = f"{name}_bucket"
    bounds = {labels["le"] for labels, _ in after.values.get(buckets, ())}
    grown = {
        float(bound): (after.total(buckets, le=bound) or 0) - (before.total(buckets, le=bound) or 0) for bound in bounds
    }
    count = grown.get(math.inf, 0)
    if count <= 0 or min(grown.values()) < 0:
        return None
    return min(bound for bound, value in grown.items() if value >= share * count)


def rate(before: MetricSample, after: MetricSample, seconds: float, name: str, **labels: str) -> float | None:
    """Return the increase of ``name`` per second. None if unknown, or if the server restarted in between."""
    first, last = before.total(name, **labels), after.total(name, **labels)
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return (last - first) / seconds


# The figures of a scrape that the console keeps: a few numbers instead of a thousand.


_LOOKUPS: Final = (
    "lookupdb_router_keys_found_total",
    "lookupdb_router_keys_missing_total",
    "lookupdb_router_keys_unavailable_total",
    "lookupdb_shard_lookups_total",
)
_SUMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_LOOKUPS, "lookups"),
    "lookupdb_router_private_bytes": "private_bytes",
    "lookupdb_shard_private_bytes": "private_bytes",
    "lookupdb_shard_file_bytes": "file_bytes",
    "lookupdb_shard_resident_bytes": "cached_bytes",
}
"""Metric → the member of ``PodReading`` that is its sum over all labels."""
_SUM: Final = re.compile(rf"^({'|'.join(_SUMS)})(?:\{{([^}}]*)\}})? (\S+)$", re.MULTILINE)
_REQUESTS: Final = re.compile(
    r"^lookupdb_(?:router|shard)_request_duration_seconds_(count|bucket)\{([^}]*)\} (\S+)$", re.MULTILINE
)
_MEASURED: Final = re.compile('(?:endpoint="(?:lookup|batch)"|command="m?get")')
"""Requests that are measured: those that look keys up."""
_MOST: Final = 1e18
MAX_BUCKETS: Final = 64
"""The most buckets that are kept of a histogram. Routers and shard servers have fewer."""
_BOUND: Final = re.compile('le="([^"]*)"')
_DATASET: Final = re.compile('(?:^|,)dataset="([^"]+)"')


@dataclass(slots=True)
class PodReading:
    """The figures of one scrape of a router or a shard server."""

    lookups: float = 0.0
    """Keys that were looked up."""
    requests: float = 0.0
    failed: float = 0.0
    """Requests that failed through no fault of the client."""
    private_bytes: float = 0.0
    file_bytes: float = 0.0
    cached_bytes: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)
    """Upper bound in seconds → the number of lookups that took at most as long."""


def read_figures(text: str, dataset: str) -> PodReading:
    """Return the figures in ``text`` in the Prometheus text format, ignoring anything else. Leave out those of other
    datasets, because several may share a router."""
    reading = PodReading()
    for name, labels, value in _SUM.findall(text):
        if _is_of_other(labels, dataset):
            continue
        member = _SUMS[name]
        setattr(reading, member, getattr(reading, member) + _parse(value))
    for suffix, labels, value in _REQUESTS.findall(text):
        is_ok = 'outcome="ok"' in labels
        if (suffix == "bucket" and not is_ok) or not _MEASURED.search(labels) or _is_of_other(labels, dataset):
            continue
        number = _parse(value)
        if suffix == "count":
            reading.requests += number
            reading.failed += number * ('outcome="failed"' in labels)
        elif (found := _BOUND.search(labels)) is not None:
            bound = math.inf if found[1] == "+Inf" else _parse(found[1])
            if bound in reading.buckets or len(reading.buckets) < MAX_BUCKETS:
                reading.buckets[bound] = reading.buckets.get(bound, 0.0) + number
    return reading


def _is_of_other(labels: str, dataset: str) -> bool:
    found = _DATASET.search(labels)
    return found is not None and found[1] != dataset


def _parse(text: str) -> float:
    """Return the number in ``text``; 0 for any other text, and for numbers that no healthy pod reports."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 <= number <= _MOST else 0.0


def interpolate_quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the quantile ``share`` of a histogram as Prometheus' histogram_quantile() does: linear within a bucket;
    beyond the last finite bound, that bound. None without observations."""
    bounds = sorted(buckets)
    count = buckets[bounds[-1]] if bounds else 0.0
    if count <= 0 or not math.isinf(bounds[-1]):
        return None
    wanted, below, before = share * count, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (wanted - before) / (buckets[bound] - before)
        below, before = bound, buckets[bound]
    return None


@dataclass(frozen=True, slots=True)
class PodRates:
    """The rates of one pod between two scrapes, per second."""

    lookups: float
    failed: float
    buckets: Mapping[float, float]

    @classmethod
    def measure(cls, first: PodReading, last: PodReading, seconds: float) -> Self | None:
        """Return the rates; None if the server restarted in between."""
        has_restarted = last.lookups < first.lookups or last.requests < first.requests or seconds <= 0
        if has_restarted:
            return None
        return cls(
            lookups=(last.lookups - first.lookups) / seconds,
            failed=max(0.0, last.failed - first.failed) / seconds,
            buckets={bound: (value - first.buckets.get(bound, 0.0)) / seconds for bound, value in last.buckets.items()},
        )


@dataclass(frozen=True, slots=True)
class DatasetRates:
    """The figures of one dataset: sums over its pods. None is unknown."""

    lookups: float | None = None
    """Keys a second."""
    failed: float | None = None
    """Failed requests a second."""
    p50: float | None = None
    """Median duration of requests at the routers, in seconds."""
    p99: float | None = None
    private_bytes: float | None = None


def sum_rates(routers: Sequence[PodRates], memory: Sequence[PodReading]) -> DatasetRates:
    """Return the figures of a dataset, from the rates of its routers and the memory of all its pods."""
    buckets: dict[float, float] = {}
    for rates in routers:
        for bound, value in rates.buckets.items():
            buckets[bound] = buckets.get(bound, 0.0) + value
    return DatasetRates(
        lookups=sum(rates.lookups for rates in routers) if routers else None,
        failed=sum(rates.failed for rates in routers) if routers else None,
        p50=interpolate_quantile(buckets, 0.5),
        p99=interpolate_quantile(buckets, 0.99),
        private_bytes=sum(reading.private_bytes for reading in memory) if memory else None,
    )
