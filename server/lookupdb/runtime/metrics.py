"""Collectors that read at scrape time: counters from shared memory, memory figures from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from lookupdb.runtime import memory
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.exposition import MetricFamily, counter, gauge, labelled_gauge
from lookupdb.runtime.supervisor import Supervisor


class CounterCollector:
    """Shared-memory counters as metrics: ``lookups`` becomes ``<prefix>_lookups_total``.

    ``counters`` and ``gauges`` map names of the shared memory to the sentence that explains them. A gauge is a
    number that each worker sets, such as its open connections; the metric is their sum.
    """

    def __init__(self, prefix: str, source: Counters, counters: Mapping[str, str], gauges: Mapping[str, str]) -> None:
        self.prefix = prefix
        self.source = source
        self.counters = counters
        self.gauges = gauges

    def collect(self) -> Iterator[MetricFamily]:
        """Yield one family for each name."""
        for name, help_text in self.counters.items():
            yield counter(f"{self.prefix}_{name}", help_text, self.source.total(name))
        for name, help_text in self.gauges.items():
            yield gauge(f"{self.prefix}_{name}", help_text, self.source.total(name))


class ServiceCollector:
    """Readiness and restarts of a supervised service, private bytes and major faults of each of its processes."""

    def __init__(self, prefix: str, supervisor: Supervisor) -> None:
        self.prefix = prefix
        self.supervisor = supervisor

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families. Processes are labelled ``supervisor``, ``worker-0``, …"""
        ready = self.supervisor.state == "ready"
        yield self._gauge("ready", "1 while lookups are answered and no drain has begun.", int(ready))
        restarts = sum(worker.restarts.count for worker in self.supervisor.workers)
        yield counter(f"{self.prefix}_worker_restarts", "Workers started again after they ended.", restarts)
        kills = sum(worker.kills for worker in self.supervisor.workers)
        help_text = "Workers killed because their event loop no longer ran."
        yield counter(f"{self.prefix}_workers_killed", help_text, kills)
        yield self._by_process(
            "private_bytes",
            "Memory that this process alone owns (no file backs it), swap included.",
            memory.private_bytes,
        )
        yield self._by_process(
            "major_faults",
            "Page faults of the running process that had to wait for the disk.",
            memory.major_faults,
        )
        yield from self._container()

    def _gauge(self, name: str, help_text: str, value: float) -> MetricFamily:
        return gauge(f"{self.prefix}_{name}", help_text, value)

    def _by_process(self, name: str, help_text: str, read: Callable[[int], int | None]) -> MetricFamily:
        figures = [(process, read(pid)) for process, pid in self._pids()]
        samples = [({"process": process}, value) for process, value in figures if value is not None]
        return labelled_gauge(f"{self.prefix}_{name}", help_text, samples)

    def _pids(self) -> list[tuple[str, int]]:
        return [("supervisor", os.getpid()), *self.supervisor.pids.items()]

    def _container(self) -> Iterator[MetricFamily]:
        figures = memory.container_memory()
        for name, help_text, value in (
            ("container_limit_bytes", "The container's memory limit.", figures.limit),
            ("container_anon_bytes", "The container's memory that cannot be dropped.", figures.anon),
            ("container_file_bytes", "The container's page cache, which holds the shard.", figures.file),
        ):
            if value is not None:
                yield self._gauge(name, help_text, value)
