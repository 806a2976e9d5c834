"""Jobs of the plugin in the API server in memory: the servers that they are made from, and their pods."""

from __future__ import annotations

from typing import Any

from manifest_samples import everything, rendered

from lookupdb_operator import names
from operator_support.kube import Kube


def put_shard_servers(kube: Kube) -> None:
    """Put a StatefulSet of the sample dataset into the API server."""
    shard_set = next(manifest for manifest in rendered(everything())["shards"] if manifest["kind"] == "StatefulSet")
    labels = {names.DATASET: "airports", names.DATASET_UID: "uid-of-airports"}
    kube.put({**shard_set, "metadata": {"namespace": "shop", "name": "airports-r34-s0", "labels": labels}})


def put_job_pod(kube: Kube, phase: str) -> Any:
    """Put the pod of the only Job, in ``phase``, and return the Job."""
    (job,) = kube.all("Job")
    labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    kube.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": f"{job['metadata']['name']}-x", "labels": labels},
            "spec": {"containers": []},
            "status": {"phase": phase},
        }
    )
    return job
