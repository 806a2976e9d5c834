"""INFO: a worker's description of itself, in Redis' form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from lookupdb.resp.info import InfoFields, describe_server, render_sections
from lookupdb.serve import shard_counters
from lookupdb.serve.session import WorkerContext


def render(worker: WorkerContext, names: Iterable[str]) -> str:
    """Return the sections called ``names``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    return render_sections(SECTIONS, worker, names)


def _server(worker: WorkerContext) -> InfoFields:
    return describe_server(worker.port, worker.started)


def _clients(worker: WorkerContext) -> InfoFields:
    return {"connected_clients": len(worker.connections), "maxclients": worker.limits.max_connections}


def _memory(worker: WorkerContext) -> InfoFields:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        # Anonymous memory: what this process owns. The mapped shard is the page cache's and counted on its own.
        "used_memory": _kib(status["RssAnon"]),
        "used_memory_rss": _kib(status["VmRSS"]),
        "shard_file_bytes": worker.file_bytes,
    }


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def _stats(worker: WorkerContext) -> InfoFields:
    slot = worker.slot
    return {
        "total_connections_received": slot[shard_counters.CONNECTIONS],
        "total_commands_processed": slot[shard_counters.COMMANDS],
        "total_net_output_bytes": slot[shard_counters.SENT_BYTES],
        "total_error_replies": slot[shard_counters.ERRORS],
        "rejected_connections": slot[shard_counters.CONNECTIONS_REFUSED],
        "keyspace_hits": slot[shard_counters.LOOKUPS]
        - slot[shard_counters.MISSES]
        - slot[shard_counters.DAMAGED_LOOKUPS],
        "keyspace_misses": slot[shard_counters.MISSES],
    }


def _replication(_: WorkerContext) -> InfoFields:
    return {"role": "master", "connected_slaves": 0}


def _keyspace(worker: WorkerContext) -> InfoFields:
    return {"db0": f"keys={worker.identity.records},expires=0,avg_ttl=0"}


def _lookupdb(worker: WorkerContext) -> InfoFields:
    identity = worker.identity
    return {
        "format_version": identity.format_version,
        "dataset": identity.dataset,
        "dataset_uid": identity.dataset_uid,
        "generation": identity.generation,
        "shard": identity.shard,
        "shards": identity.shards,
        "records": identity.records,
        "normalize": ",".join(identity.normalize),
        "value_format": identity.value_format,
    }


SECTIONS: Final[dict[str, Callable[[WorkerContext], InfoFields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "stats": _stats,
    "replication": _replication,
    "keyspace": _keyspace,
    "lookupdb": _lookupdb,
}
