"""INFO: what a worker tells of itself, in Redis' form."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from lookupdb import __version__
from lookupdb.serve import counted
from lookupdb.serve.session import Host

Fields = dict[str, Any]


def render(host: Host, wanted: Iterable[str]) -> str:
    """The sections called ``wanted``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    names = list(dict.fromkeys(name.lower() for name in wanted))
    if not names or {"default", "all", "everything"} & set(names):
        names = list(SECTIONS)
    sections = []
    for name in names:
        if name in SECTIONS:
            lines = [f"{field}:{value}" for field, value in SECTIONS[name](host).items()]
            sections.append("\r\n".join([f"# {name.capitalize()}", *lines, ""]))
    return "\r\n".join(sections)


def _server(host: Host) -> Fields:
    seconds = int(time.monotonic() - host.started)
    return {
        # Clients choose by it what they may ask; the commands here are those of Redis 7.
        "redis_version": "7.0.0",
        "redis_mode": "standalone",
        "server_name": "lookupdb",
        "lookupdb_version": __version__,
        "process_id": os.getpid(),
        "tcp_port": host.port,
        "uptime_in_seconds": seconds,
        "uptime_in_days": seconds // 86400,
    }


def _clients(host: Host) -> Fields:
    return {"connected_clients": len(host.connections), "maxclients": host.limits.max_connections}


def _memory(host: Host) -> Fields:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        # Anonymous memory: what this process owns. The mapped shard is the page cache's and counted on its own.
        "used_memory": _kib(status["RssAnon"]),
        "used_memory_rss": _kib(status["VmRSS"]),
        "shard_file_bytes": host.file_bytes,
    }


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def _stats(host: Host) -> Fields:
    slot = host.slot
    return {
        "total_connections_received": slot[counted.CONNECTIONS],
        "total_commands_processed": slot[counted.COMMANDS],
        "total_net_output_bytes": slot[counted.SENT_BYTES],
        "total_error_replies": slot[counted.ERRORS],
        "rejected_connections": slot[counted.CONNECTIONS_REFUSED],
        "keyspace_hits": slot[counted.LOOKUPS] - slot[counted.MISSES] - slot[counted.DAMAGED_LOOKUPS],
        "keyspace_misses": slot[counted.MISSES],
    }


def _replication(_: Host) -> Fields:
    return {"role": "master", "connected_slaves": 0}


def _keyspace(host: Host) -> Fields:
    return {"db0": f"keys={host.identity.records},expires=0,avg_ttl=0"}


def _lookupdb(host: Host) -> Fields:
    identity = host.identity
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


SECTIONS: Final[dict[str, Callable[[Host], Fields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "stats": _stats,
    "replication": _replication,
    "keyspace": _keyspace,
    "lookupdb": _lookupdb,
}
