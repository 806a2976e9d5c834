"""Nodes of the cluster: choose one to take away, and pause nodes of kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.support import release, store
from e2e.support.command import run
from e2e.support.kubectl import find, get, kubectl
from e2e.support.pods import CONTROL_PLANE

_DOCKER_SECONDS = 60.0


def spare_worker() -> str:
    """Return a worker without the embedded store, whose volume is on its node, and if possible without the operator."""
    workers = [node["metadata"]["name"] for node in find("nodes") if CONTROL_PLANE not in node["metadata"]["labels"]]
    home = store.pod()["spec"]["nodeName"]
    pods = find("pods", release.NAMESPACE)
    busy = {pod["spec"].get("nodeName") for pod in pods}
    spare = [str(name) for name in workers if name != home]
    assert spare, f"all of {workers} hold the embedded store: a scenario that takes a node away needs two workers"
    return min(spare, key=lambda name: (name in busy, name))


@contextlib.contextmanager
def cordoned(node: str) -> Iterator[None]:
    """Keep new pods off the node while the block runs."""
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


def has_cordoned() -> bool:
    """Return whether a scenario has taken a node away."""
    return any(node["spec"].get("unschedulable") for node in find("nodes"))


def pause(node: str) -> None:
    """Pause a node of kind: to all others it is lost."""
    run(["docker", "pause", node], timeout=_DOCKER_SECONDS)


def unpause(node: str) -> None:
    """Resume the node."""
    run(["docker", "unpause", node], timeout=_DOCKER_SECONDS)


def is_ready(node: str) -> bool:
    """Return whether its kubelet answers."""
    conditions = get("node", node)["status"]["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
