"""Nodes of the cluster: the one that a story may take away, and how to pause one of kind's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.support import release, store
from e2e.support.command import run
from e2e.support.kubectl import find, get, kubectl
from e2e.support.pods import CONTROL_PLANE

_DOCKER_SECONDS = 60.0


def spare_worker() -> str:
    """A worker without the embedded store, whose volume is on its node; and without the operator, if there is one."""
    workers = [node["metadata"]["name"] for node in find("nodes") if CONTROL_PLANE not in node["metadata"]["labels"]]
    home = store.pod()["spec"]["nodeName"]
    pods = find("pods", release.NAMESPACE)
    busy = {pod["spec"].get("nodeName") for pod in pods}
    spare = [str(name) for name in workers if name != home]
    assert spare, f"all of {workers} hold the embedded store: a story that takes a node away needs two workers"
    return min(spare, key=lambda name: (name in busy, name))


@contextlib.contextmanager
def cordoned(node: str) -> Iterator[None]:
    """While the block runs, the node takes no more pods."""
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


def has_cordoned() -> bool:
    """Whether a story has taken a node away."""
    return any(node["spec"].get("unschedulable") for node in find("nodes"))


def pause(node: str) -> None:
    """Stop everything on a node of kind: to all others it is lost."""
    run(["docker", "pause", node], timeout=_DOCKER_SECONDS)


def unpause(node: str) -> None:
    """Let the node go on."""
    run(["docker", "unpause", node], timeout=_DOCKER_SECONDS)


def is_ready(node: str) -> bool:
    """Whether its kubelet answers."""
    conditions = get("node", node)["status"]["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
