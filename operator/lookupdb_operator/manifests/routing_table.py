"""The routing table: the ConfigMap that routers have mounted, and the nudge that makes kubelets look at it now."""

from __future__ import annotations

import orjson

from lookupdb.route.table.routing_table import FORMAT_VERSION
from lookupdb_operator import names
from lookupdb_operator.manifests.metadata import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset, Pod
from lookupdb_operator.status import GenerationStatus, TableStatus


def render_routing_table(dataset: ObservedDataset, table: TableStatus, generation: GenerationStatus) -> Manifest:
    """``table``, whose generation is ``generation``. The API server refuses what has more than 1 MiB: the product of
    shards, replicas and workers may be some 6,000 with the longest names, 16,000 with short ones."""
    content = {
        "formatVersion": FORMAT_VERSION,
        "version": table.version,
        "dataset": {"namespace": dataset.namespace, "name": dataset.name, "uid": dataset.uid},
        "active": table.generation,
        "generations": [
            {
                "generation": table.generation,
                "rollout": table.rollout,
                "records": generation.records,
                "bytes": generation.bytes,
                "builtAt": generation.built_at,
                "normalize": list(generation.normalize),
                "valueFormat": generation.value_format,
                "shards": [{"endpoints": _endpoints(dataset, table, shard)} for shard in range(generation.shards)],
            }
        ],
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


def _endpoints(dataset: ObservedDataset, table: TableStatus, shard: int) -> list[str]:
    """All workers of pods 0 to replicas-1, whether they serve now or not."""
    return [
        f"{names.pod_host(dataset.name, table.rollout, shard, replica, dataset.namespace)}:{names.SHARD_PORT + worker}"
        for replica in range(table.replicas)
        for worker in range(table.workers)
    ]
