"""A shard server's metrics."""

from __future__ import annotations

from collections.abc import Iterator

from lookupdb.runtime import pagecache
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.exposition import Collector, MetricFamily, counter, gauge, info
from lookupdb.runtime.metrics import CounterCollector, ServiceCollector
from lookupdb.runtime.supervisor import Supervisor
from lookupdb.serve import shard_counters
from lookupdb.serve.verify import ServedShard

PREFIX = "lookupdb_shard"


class ShardCollector:
    """The figures of the file that is served."""

    def __init__(self, served: ServedShard, counters: Counters) -> None:
        self.served = served
        self.counters = counters

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families, read at scrape time."""
        served, manifest = self.served, self.served.manifest
        hits = self.counters.total("lookups") - self.counters.total("misses") - self.counters.total("damaged_lookups")
        yield counter(f"{PREFIX}_hits", "Keys looked up that the shard holds.", hits)
        yield gauge(f"{PREFIX}_records", "Records of the shard.", served.entry.records)
        yield gauge(f"{PREFIX}_file_bytes", "Size of the shard file.", served.entry.bytes)
        resident = pagecache.resident_bytes(served.path)
        if resident is not None:
            yield gauge(f"{PREFIX}_resident_bytes", "Bytes of the shard file in the page cache.", resident)
        labels = {
            "dataset": f"{manifest.namespace}/{manifest.name}",
            "generation": manifest.generation,
            "shard": str(served.shard),
            "shards": str(len(manifest.shards)),
        }
        yield info(f"{PREFIX}_generation", "What is served.", labels)


def collectors(served: ServedShard, counters: Counters, supervisor: Supervisor) -> list[Collector]:
    """Return all collectors of a shard server."""
    return [
        CounterCollector(PREFIX, counters, shard_counters.COUNTERS, shard_counters.GAUGES),
        ServiceCollector(PREFIX, supervisor),
        ShardCollector(served, counters),
    ]
