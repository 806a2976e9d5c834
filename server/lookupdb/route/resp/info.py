"""INFO: a router worker's description of itself and of its dataset, in Redis' form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from lookupdb.resp.info import InfoFields, describe_server, render_sections
from lookupdb.route.counters import INDEX
from lookupdb.route.resp.service import RespService


def render(service: RespService, names: Iterable[str]) -> str:
    """The sections called ``names``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    return render_sections(SECTIONS, service, names)


def _server(service: RespService) -> InfoFields:
    return describe_server(service.port, service.started_at)


def _clients(service: RespService) -> InfoFields:
    return {
        "connected_clients": service.counts[INDEX["connections"]],
        "maxclients": service.limits.max_connections,
    }


def _memory(service: RespService) -> InfoFields:
    return {"used_memory": max(service.budget.used, 0), "maxmemory": service.budget.limit}


def _persistence(service: RespService) -> InfoFields:
    # Clients that look at it wait until a server has loaded its data.
    return {"loading": int(service.lookups.live is None)}


def _stats(service: RespService) -> InfoFields:
    counts = service.counts
    return {
        "total_connections_received": counts[INDEX["connections_accepted"]],
        "total_commands_processed": counts[INDEX["resp_commands"]],
        "total_error_replies": counts[INDEX["resp_errors"]],
        "rejected_connections": counts[INDEX["connections_refused"]],
        "keyspace_hits": counts[INDEX["keys_found"]],
        "keyspace_misses": counts[INDEX["keys_missing"]],
    }


def _replication(_: RespService) -> InfoFields:
    return {"role": "master", "connected_slaves": 0}


def _keyspace(service: RespService) -> InfoFields:
    dataset = service.lookups.dataset()
    return {} if dataset is None else {"db0": f"keys={dataset.records},expires=0,avg_ttl=0"}


def _lookupdb(service: RespService) -> InfoFields:
    dataset = service.lookups.dataset()
    if dataset is None:
        return {"generation": ""}
    fields: InfoFields = {
        "dataset": f"{dataset.namespace}/{dataset.name}",
        "generation": dataset.generation,
        "records": dataset.records,
        "shards": dataset.shards,
        "built_at": dataset.built_at,
        "age_seconds": round(dataset.age, 3),
        "candidates": ",".join(dataset.candidates),
    }
    if dataset.shard_generations:
        # As PerShard rollouts go on: how many shards each generation serves.
        counts = dataset.shard_generations.items()
        fields["shard_generations"] = ",".join(f"{name}={shards}" for name, shards in counts)
    return fields


SECTIONS: Final[dict[str, Callable[[RespService], InfoFields]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "keyspace": _keyspace,
    "lookupdb": _lookupdb,
}
