"""The router's metrics: what its workers have counted, read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lookupdb.route.counters import (
    BATCH_BUCKETS,
    BATCH_MICROSECONDS,
    BATCH_SECONDS,
    BATCH_SECONDS_HELP,
    CERTIFICATE_EXPIRY,
    COUNTERS,
    GAUGES,
    REQUESTS,
    REQUESTS_HELP,
    TABLE_VERSION,
)
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.exposition import Collector, MetricFamily, gauge, histogram, labelled_counter
from lookupdb.runtime.metrics import CounterCollector, ServiceCollector
from lookupdb.runtime.supervisor import Supervisor

PREFIX: Final = "lookupdb_router"


class RouterCollector:
    """What needs more than a name: requests by class of status, how long batches take, the lowest table version of all
    workers, the certificate that expires first."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[MetricFamily]:
        """Four families."""
        requests = [({"status": status}, self._counters.total(name)) for name, status in REQUESTS.items()]
        yield labelled_counter(f"{PREFIX}_requests", REQUESTS_HELP, requests)
        counts = [self._counters.total(name) for name in BATCH_BUCKETS]
        seconds = self._counters.total(BATCH_MICROSECONDS) / 1e6
        yield histogram(f"{PREFIX}_batch_seconds", BATCH_SECONDS_HELP, BATCH_SECONDS, counts, seconds)
        versions = (self._counters.value(TABLE_VERSION, slot) for slot in range(self._counters.slots))
        help_text = "The routing table's version in effect, the lowest of all workers; 0 while there is none."
        yield gauge(f"{PREFIX}_{TABLE_VERSION}", help_text, min(versions))
        expiries = (self._counters.value(CERTIFICATE_EXPIRY, slot) for slot in range(self._counters.slots))
        help_text = "When the certificate of the public port expires, of the worker whose does first; 0 without TLS."
        yield gauge(f"{PREFIX}_{CERTIFICATE_EXPIRY}", help_text, min(expiries))


def collectors(counters: Counters, supervisor: Supervisor) -> Sequence[Collector]:
    """All of the router's."""
    return (
        CounterCollector(PREFIX, counters, COUNTERS, GAUGES),
        RouterCollector(counters),
        ServiceCollector(PREFIX, supervisor),
    )
