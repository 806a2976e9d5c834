"""The routing table: the ConfigMap that routers have mounted, and the nudge that makes kubelets look at it now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from lookupdb.route.table.routing_table import FORMAT_VERSION, MIXED_FORMAT_VERSION
from lookupdb_operator import names
from lookupdb_operator.manifests.metadata import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset, Pod
from lookupdb_operator.shard_ranges import parse_shards
from lookupdb_operator.status import GenerationStatus, TableCandidate, TableStatus

MAX_ENDPOINT_BYTES: Final = 950_000
"""Of all addresses of a routing table. The API server refuses an object of more than 1 MiB, all else in it included."""


def render_routing_table(
    dataset: ObservedDataset, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> Manifest:
    """``table``, whose generations are among ``generations``. The API server refuses what has more than 1 MiB: the
    product of shards, replicas and workers may be some 6,000 with the longest names, 16,000 with short ones."""
    generation = generations[table.generation]
    entries = [_entry(dataset, table, generation, _render_shards(dataset, table, generations))]
    offered = table.candidate
    if offered is not None and offered.generation in generations:
        shards = range(generations[offered.generation].shards)
        servers: list[dict[str, object]] = [{"endpoints": _endpoints(dataset, offered, shard)} for shard in shards]
        entries.append(_entry(dataset, offered, generations[offered.generation], servers))
    content = {
        "formatVersion": MIXED_FORMAT_VERSION if table.is_mixed else FORMAT_VERSION,
        "version": table.version,
        "dataset": {"namespace": dataset.namespace, "name": dataset.name, "uid": dataset.uid},
        "active": table.generation,
        "generations": entries,
    }
    about = render_metadata(dataset, names.routing_table(dataset.name), names.ROUTER)
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**about, "annotations": {names.TABLE_VERSION: str(table.version)}},
            "data": {names.TABLE_FILE: orjson.dumps(content).decode() + "\n"},
        }
    )


def render_nudge(dataset: ObservedDataset, pod: Pod, version: int) -> Manifest:
    """The part of a router pod that is ours: the annotation that makes its kubelet sync the routing table at once.

    With the pod's uid the API server neither makes a pod of it nor takes another one of this name for it.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": dataset.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "annotations": {names.TABLE_VERSION: str(version)},
        },
    }


def has_room_for_both(
    dataset: ObservedDataset,
    active: tuple[TableStatus | TableCandidate, int],
    candidate: tuple[TableStatus | TableCandidate, int],
) -> bool:
    """Whether one routing table can name the servers of both; each with the number of its shards."""
    return sum(_estimate_bytes(dataset, part, shards) for part, shards in (active, candidate)) <= MAX_ENDPOINT_BYTES


def _estimate_bytes(dataset: ObservedDataset, part: TableStatus | TableCandidate, shards: int) -> int:
    """At most so many bytes are the addresses of ``part``: each as long as the last one, with quotes and a comma."""
    longest = _address(dataset, part, shards - 1, part.replicas - 1, part.workers - 1)
    return shards * part.replicas * part.workers * (len(longest) + 3)


def _entry(
    dataset: ObservedDataset,
    part: TableStatus | TableCandidate,
    generation: GenerationStatus,
    shards: list[dict[str, object]],
) -> dict[str, object]:
    return {
        "generation": part.generation,
        "rollout": part.rollout,
        **_key_member(part.password_key),
        "records": generation.records,
        "bytes": generation.bytes,
        "builtAt": generation.built_at,
        "normalize": list(generation.normalize),
        "valueFormat": generation.value_format,
        "shards": shards,
    }


def _render_shards(
    dataset: ObservedDataset, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> list[dict[str, object]]:
    """Who serves each shard; of a shard of another generation than the table's also which one, and its age."""
    owners = {shard: part for part in table.parts for shard in parse_shards(part.shard_ranges)}
    shards: list[dict[str, object]] = []
    for shard in range(generations[table.generation].shards):
        part = owners.get(shard)
        if part is None:
            shards.append({"endpoints": _endpoints(dataset, table, shard)})
            continue
        servers = TableCandidate(part.rollout, part.generation, table.replicas, part.workers)
        about: dict[str, object] = {}
        if table.password_key or part.password_key:
            about = {"rollout": part.rollout, **_key_member(part.password_key)}
        if part.generation != table.generation:
            about |= {"generation": part.generation, "builtAt": generations[part.generation].built_at}
        shards.append(about | {"endpoints": _endpoints(dataset, servers, shard)})
    return shards


def _key_member(password_key: str) -> dict[str, object]:
    """Of servers that ask for a password: the fingerprint of the key that it is derived from."""
    return {"passwordKey": password_key} if password_key else {}


def _endpoints(dataset: ObservedDataset, part: TableStatus | TableCandidate, shard: int) -> list[str]:
    """All workers of pods 0 to replicas-1, whether they serve now or not."""
    return [
        _address(dataset, part, shard, replica, worker)
        for replica in range(part.replicas)
        for worker in range(part.workers)
    ]


def _address(
    dataset: ObservedDataset, part: TableStatus | TableCandidate, shard: int, replica: int, worker: int
) -> str:
    host = names.pod_host(dataset.name, part.rollout, shard, replica, dataset.namespace)
    return f"{host}:{names.SHARD_PORT + worker}"
