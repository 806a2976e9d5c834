"""Everything visible to people who may not read Secrets: objects, logs, process lists and admin ports, as texts by
place. Also the Secrets' values, to search for."""

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
"""The selector of each component whose pods have Python."""
LEAST_BYTES: Final = 12
"""The least length of a searched value; shorter ones occur by chance."""
PUBLIC: Final = (".crt", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL")
"""Endings of members of Secrets that are not secret. The id of a key is in S3's requests, and may be in its log."""
_PROCESSES: Final = (pods.INSIDE / "processes.py").read_text()
_COMPONENT: Final = "app.kubernetes.io/component"
_HELM: Final = "helm.sh/release.v1"


def list_secrets(namespace: str) -> dict[str, str | bytes]:
    """Return the values of all Secrets of a namespace, by ``secret/key``. One line represents a private key, because
    line breaks vary."""
    found = {
        f"{secret['metadata']['name']}/{key}": base64.b64decode(coded)
        for secret in find("secrets", namespace)
        if secret["type"] != _HELM
        for key, coded in secret.get("data", {}).items()
        if not key.endswith(PUBLIC)
    }
    return {name: _as_text(value) for name, value in found.items() if len(value) >= LEAST_BYTES}


def list_objects() -> Iterator[tuple[str, str]]:
    """Yield every object of the cluster that may concern a dataset, except Secrets."""
    for kinds in KINDS:
        for item in find_everywhere(kinds):
            metadata = item["metadata"]
            yield f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}", json.dumps(item)


def list_logs(namespace: str) -> Iterator[tuple[str, str]]:
    """Yield the logs of every container of a namespace, also from before a restart."""
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
    """Yield processes and admin port of every ready pod that has Python."""
    for pod in find("pods", namespace):
        name, component = pod["metadata"]["name"], pod["metadata"].get("labels", {}).get(_COMPONENT, "")
        if component not in ADMIN_PORTS or not _is_ready(pod):
            continue
        try:
            result = json.loads(run_in(name, namespace, "python", "-c", _PROCESSES, str(ADMIN_PORTS[component])))
        except CommandFailed:
            if not any(_is_ready(left) for left in find("pods", namespace) if left["metadata"]["name"] == name):
                continue  # a dataset of another scenario has gone
            raise
        for place, text in result.items():
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
