"""All that people may see who may not read Secrets: objects, logs, process listings and admin ports, as texts by where
they stand; and the Secrets, to look for what they hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Final

from e2e.support import pods
from e2e.support.command import CommandFailed
from e2e.support.kubectl import Manifest, find, find_everywhere, kubectl, run_in

KINDS: Final = (
    "lookupdatasets.lookupdb.dev",
    "events",
    "configmaps",
    "pods,jobs,cronjobs,statefulsets,deployments,replicasets",
    "services,networkpolicies,poddisruptionbudgets,controllerrevisions,serviceaccounts,leases",
)
ADMIN_PORTS: Final = {"router": 9090, "shard": 9090, "gateway": 9090, "operator": 8081}
"""By component: its pods have Python."""
LEAST_BYTES: Final = 12
"""Of a value that is looked for: less is found by chance."""
PUBLIC: Final = (".crt", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL")
"""How members of Secrets end that are none. The id of a key stands in S3's requests, and may stand in its log."""
_PROCESSES: Final = (pods.INSIDE / "processes.py").read_text()
_COMPONENT: Final = "app.kubernetes.io/component"
_HELM: Final = "helm.sh/release.v1"


def list_secrets(namespace: str) -> dict[str, str | bytes]:
    """The values of all Secrets of a namespace, by ``secret/key``. A private key stands for itself by one of its lines:
    how its lines are parted is for each to say."""
    found = {
        f"{secret['metadata']['name']}/{key}": base64.b64decode(coded)
        for secret in find("secrets", namespace)
        if secret["type"] != _HELM
        for key, coded in secret.get("data", {}).items()
        if not key.endswith(PUBLIC)
    }
    return {name: _as_text(value) for name, value in found.items() if len(value) >= LEAST_BYTES}


def list_objects() -> Iterator[tuple[str, str]]:
    """Every object of the cluster that may hold what a dataset has, but Secrets."""
    for kinds in KINDS:
        for item in find_everywhere(kinds):
            metadata = item["metadata"]
            yield f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}", json.dumps(item)


def list_logs(namespace: str) -> Iterator[tuple[str, str]]:
    """Of every container of a namespace, that of before it was started again too."""
    for pod in find("pods", namespace):
        name = pod["metadata"]["name"]
        for container in _containers(pod):
            for flags in ([], ["--previous"]):
                try:
                    text = kubectl("logs", name, "--namespace", namespace, "--container", container, *flags)
                except CommandFailed:  # it has none, or has just gone
                    continue
                yield f"log {namespace}/{name}/{container} {' '.join(flags)}", text


def list_processes(namespace: str) -> Iterator[tuple[str, str]]:
    """Of every ready pod that has Python: its processes, and what its admin port answers."""
    for pod in find("pods", namespace):
        name, component = pod["metadata"]["name"], pod["metadata"].get("labels", {}).get(_COMPONENT, "")
        if component not in ADMIN_PORTS or not _is_ready(pod):
            continue
        try:
            told = json.loads(run_in(name, namespace, "python", "-c", _PROCESSES, str(ADMIN_PORTS[component])))
        except CommandFailed:
            if not any(_is_ready(left) for left in find("pods", namespace) if left["metadata"]["name"] == name):
                continue  # a dataset of another story has gone
            raise
        for place, text in told.items():
            yield f"{component} {namespace}/{name} {place}", text


def _is_ready(pod: Manifest) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True"


def _containers(pod: Manifest) -> list[str]:
    spec = pod["spec"]
    return [container["name"] for container in (*spec.get("initContainers", []), *spec["containers"])]


def _as_text(value: bytes) -> str | bytes:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value
    return max(text.split(), key=len) if "\n" in text.strip() else text.strip()
