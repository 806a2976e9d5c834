"""A program beside `lookupdb sync`: its pod, with a sidecar or a folder of its node, and what its workers saw."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from e2e.support import pods, release
from e2e.support.kubectl import Manifest, get, kubectl, until

ROOT: Final = "/lookups"
PROGRAM: Final = "e2e-program"
TABLE: Final = "/etc/lookupdb/table"
TOKEN: Final = "/var/run/secrets/lookupdb.dev/store"
_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """A worker's first sight of a version, and its bytes then."""

    worker: int
    version: str
    at: float
    private: int
    shared: int


def program_with_sidecar(namespace: str, dataset: str, key: str, workers: int) -> Manifest:
    """Return a restricted pod whose sidecar starts before the program."""
    pod = _program(namespace, dataset, key, workers, {"name": "lookups", "emptyDir": {"sizeLimit": "512Mi"}})
    token = {"audience": release.AUDIENCE, "expirationSeconds": 600, "path": "token"}
    pod["metadata"]["labels"]["lookupdb.dev/sync"] = dataset
    pod["spec"]["initContainers"] = [_sidecar(namespace, dataset)]
    pod["spec"]["volumes"] += [
        {"name": "table", "configMap": {"name": f"{dataset}-routing-table"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    return pod


def program_on_node(namespace: str, dataset: str, key: str, workers: int) -> Manifest:
    """Return a pod that reads the folder of the dataset's DaemonSet on its node."""
    folder = {"name": "lookups", "hostPath": {"path": "/var/lib/lookupdb", "type": "Directory"}}
    return _program(namespace, dataset, key, workers, folder)


def _sidecar(namespace: str, dataset: str) -> dict[str, Any]:
    cluster = get("namespace", "kube-system")["metadata"]["uid"]
    probe = {"httpGet": {"path": "/readyz", "port": 9190}, "periodSeconds": 1, "failureThreshold": 240}
    return {
        "name": "sync",
        "image": pods.IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "args": [
            *("sync", ROOT, "--table", f"{TABLE}/routing-table.json", "--dataset", f"{namespace}/{dataset}"),
            *("--store", release.gateway_url(), "--cluster-id", cluster, "--host", "*", "--admin-port", "9190"),
        ],
        "env": [{"name": "LOOKUPDB_STORE_TOKEN_FILE", "value": f"{TOKEN}/token"}],
        "startupProbe": probe,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": _SECURITY,
        "volumeMounts": [
            {"name": "lookups", "mountPath": ROOT},
            {"name": "table", "mountPath": TABLE, "readOnly": True},
            {"name": "token", "mountPath": TOKEN, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _program(namespace: str, dataset: str, key: str, workers: int, lookups: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": PROGRAM, "labels": pods.LABELS | {"app": PROGRAM}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10002,  # not the user who writes the files
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "program",
                    "image": pods.IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "/inside/follow.py", f"{namespace}/{dataset}", key, str(workers)],
                    "env": [{"name": "LOOKUPDB_SYNC_DIR", "value": ROOT}],
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
                    "securityContext": _SECURITY,
                    "volumeMounts": [
                        {"name": "lookups", "mountPath": ROOT, "readOnly": True},
                        {"name": pods.CODE, "mountPath": "/inside"},
                    ],
                }
            ],
            "volumes": [lookups, {"name": pods.CODE, "configMap": {"name": pods.CODE}}],
        },
    }


def wait_seen(namespace: str, version: str, workers: int, *, seconds: float, times: int = 1) -> list[Sighting]:
    """Wait until all workers have seen ``version`` this many ``times``, and return what they saw."""

    def look() -> list[Sighting] | None:
        lines = kubectl("logs", PROGRAM, "--namespace", namespace, "--container", "program").splitlines()
        sightings = [Sighting(**json.loads(line)) for line in lines if line.startswith("{")]
        found = [sighting for sighting in sightings if sighting.version == version]
        counts = Counter(sighting.worker for sighting in found)
        assert len(counts) == workers, f"seen: {sightings}"
        assert min(counts.values()) >= times, f"seen: {sightings}"
        return found

    return until(look, seconds=seconds, what=f"{version} seen by {workers} workers of {namespace}")
