"""The router's metrics: what its workers have counted, read at scrape time. docs/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lookupdb.route.counters import COUNTERS, GAUGES, REQUESTS, REQUESTS_HELP, TABLE_VERSION
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.exposition import Collector, MetricFamily, gauge, labelled_counter
from lookupdb.runtime.metrics import CounterCollector, ServiceCollector
from lookupdb.runtime.supervisor import Supervisor

PREFIX: Final = "lookupdb_router"


class RouterCollector:
    """What needs more than a name: requests by class of status, the lowest table version of all workers."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[MetricFamily]:
        """Two families."""
        requests = [({"status": status}, self._counters.total(name)) for name, status in REQUESTS.items()]
        yield labelled_counter(f"{PREFIX}_requests", REQUESTS_HELP, requests)
        versions = (self._counters.value(TABLE_VERSION, slot) for slot in range(self._counters.slots))
        help_text = "The routing table's version in effect, the lowest of all workers; 0 while there is none."
        yield gauge(f"{PREFIX}_{TABLE_VERSION}", help_text, min(versions))


def collectors(counters: Counters, supervisor: Supervisor) -> Sequence[Collector]:
    """All of the router's."""
    return (
        CounterCollector(PREFIX, counters, COUNTERS, GAUGES),
        RouterCollector(counters),
        ServiceCollector(PREFIX, supervisor),
    )
