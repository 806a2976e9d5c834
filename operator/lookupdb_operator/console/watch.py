"""Scrapes of routers and shard servers in the background, shared by all readers of pages.

Routers are scraped every ``ROUTER_SECONDS``. Shard servers, which may be thousands, are scraped in turn, at a bounded
rate. A dataset that somebody looks at is scraped every ``SHOWN_SECONDS``. A pod's figures are a few numbers, and a
dataset's history is bounded, so memory is bounded, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.console.dataset import DatasetPods
from lookupdb_operator.console.figures import DatasetRates, PodRates, PodReading, read_figures, sum_rates
from lookupdb_operator.console.source import ConsoleSource
from lookupdb_operator.model import Pod

log = logging.getLogger(__name__)

ROUTER_SECONDS: Final = 10.0
SHOWN_SECONDS: Final = 2.0
"""Interval of the scrapes of a dataset that somebody looks at, and of all datasets if there are few pods."""
FEW_PODS: Final = 64
SHARD_SECONDS: Final = 60.0
MAX_SHARDS_PER_SECOND: Final = 25
"""With more shard servers than this rate allows, their interval is longer."""
SHOWN_FOR_SECONDS: Final = 30.0
"""Time after a request during which the dataset counts as looked at."""
MAX_CONCURRENT: Final = 16
_SCRAPED: Final = (names.ROUTER, names.SHARDS)
_BETWEEN_PAUSES: Final = 500
"""Number of pods to handle before other tasks may run."""
POINTS: Final = 180
"""Length of a history."""


@dataclass(slots=True)
class _WatchedPod:
    """The last scrape of a pod."""

    due: float = 0.0
    at: float = 0.0
    reading: PodReading | None = None
    rates: PodRates | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of a history. Not a number (nan) is unknown."""

    at: float
    lookups: float
    failed: float
    p50: float
    p99: float


class History:
    """The last ``POINTS`` moments of a dataset, 24 bytes each."""

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times = array("d")
        self._values = array("f")

    def add(self, at: float, rates: DatasetRates) -> None:
        """Add a moment, and forget the oldest beyond ``POINTS``."""
        self._times.append(at)
        found = (rates.lookups, rates.failed, rates.p50, rates.p99)
        self._values.extend(float("nan") if value is None else value for value in found)
        del self._times[:-POINTS], self._values[: -4 * POINTS]

    def __iter__(self) -> Iterator[Point]:
        for i, at in enumerate(self._times):
            yield Point(at, *self._values[4 * i : 4 * i + 4])


@dataclass(slots=True)
class _WatchedDataset:
    """The figures of a dataset."""

    rates: DatasetRates = field(default_factory=DatasetRates)
    history: History = field(default_factory=History)
    shown_until: float = 0.0
    measured_at: float = 0.0


class Watch:
    """Figures and histories of the datasets of ``source``."""

    def __init__(self, source: ConsoleSource) -> None:
        self.source = source
        self._pods: dict[str, _WatchedPod] = {}
        self._datasets: dict[Key, _WatchedDataset] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    def rates(self, namespace: str, name: str) -> DatasetRates:
        """Return the figures of a dataset."""
        found = self._datasets.get((namespace, name))
        return DatasetRates() if found is None else found.rates

    def history(self, namespace: str, name: str) -> tuple[Point, ...]:
        """Return the history of a dataset, oldest first."""
        found = self._datasets.get((namespace, name))
        return () if found is None else tuple(found.history)

    def find_scrape(self, pod: Pod) -> tuple[PodRates | None, PodReading | None]:
        """Return the rates and the last figures of a pod. None is unknown."""
        found = self._pods.get(pod.uid)
        return (None, None) if found is None else (found.rates, found.reading)

    def show(self, namespace: str, name: str) -> None:
        """Note that somebody looks at a dataset: it is scraped more often for a while."""
        found = self._datasets.setdefault((namespace, name), _WatchedDataset())
        found.shown_until = time.monotonic() + SHOWN_FOR_SECONDS

    async def run(self) -> None:
        """Scrape until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.scrape()
            except Exception:  # pages show the last figures
                log.exception("figures cannot be read")
            await asyncio.sleep(max(0.1, SHOWN_SECONDS - (time.monotonic() - began)))

    async def scrape(self) -> None:
        """Scrape the pods that are due, and add up their figures."""
        views, now = self.source.list_datasets(), time.monotonic()
        pods = [(view, pod) for view in views for pod in view.pods if pod.component in _SCRAPED]
        counts = Counter(pod.component for _, pod in pods)
        seconds = {
            names.ROUTER: ROUTER_SECONDS,
            names.SHARDS: max(SHARD_SECONDS, counts[names.SHARDS] / MAX_SHARDS_PER_SECOND),
        }
        # At most this many pods of a kind in one pass, so that scrapes spread evenly.
        left = {kind: math.ceil(counts[kind] * SHOWN_SECONDS / seconds[kind]) for kind in _SCRAPED}
        has_few, scrapes = len(pods) <= FEW_PODS, []
        for number, (view, pod) in enumerate(pods):
            if number % _BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
            if not pod.ready:
                self._pods.pop(pod.uid, None)
                continue
            watched = self._pods.get(pod.uid) or self._pods.setdefault(pod.uid, _WatchedPod())
            dataset = self._datasets.get((view.dataset.namespace, view.dataset.name))
            is_shown = has_few or (dataset is not None and dataset.shown_until > now)
            if watched.due > now and not (is_shown and now - watched.at >= SHOWN_SECONDS / 2):
                continue
            if not is_shown:
                if left[pod.component] == 0:
                    continue
                left[pod.component] -= 1
            watched.due = now + (0.0 if is_shown else seconds[pod.component])
            scrapes.append(self._scrape(view, pod, watched))
        await asyncio.gather(*scrapes)
        for view in views:
            await asyncio.sleep(0)
            self._sum(view)
        uids, keys = {pod.uid for _, pod in pods}, {(view.dataset.namespace, view.dataset.name) for view in views}
        self._pods = {uid: watched for uid, watched in self._pods.items() if uid in uids}
        self._datasets = {key: watched for key, watched in self._datasets.items() if key in keys}

    async def _scrape(self, view: DatasetPods, pod: Pod, watched: _WatchedPod) -> None:
        async with self._turns:
            try:
                text = await self.source.read_metrics(view.dataset, pod)
            except LookupdbError:
                reading = None
            else:
                reading = read_figures(text, view.dataset.name)
        before, began, watched.at = watched.reading, watched.at, time.monotonic()
        watched.reading = reading
        watched.rates = PodRates.measure(before, reading, watched.at - began) if before and reading else None

    def _sum(self, view: DatasetPods) -> None:
        """Sum up the figures of a dataset whenever one of its routers was scraped, or none is ready."""
        watched = self._datasets.setdefault((view.dataset.namespace, view.dataset.name), _WatchedDataset())
        routers, servers = (
            [found for pod in view.pods if pod.component == kind and (found := self._pods.get(pod.uid))]
            for kind in _SCRAPED
        )
        latest = max((found.at for found in routers), default=time.monotonic())
        if latest <= watched.measured_at:
            return
        watched.rates = sum_rates(
            [found.rates for found in routers if found.rates],
            [found.reading for found in (*routers, *servers) if found.reading],
        )
        watched.measured_at = latest
        watched.history.add(time.time(), watched.rates)
