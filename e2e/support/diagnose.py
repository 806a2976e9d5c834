"""What a person would look at when a story fails."""

from __future__ import annotations

from typing import Final

from e2e.support import release
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find, kubectl

TAIL: Final = "--tail=40"


def namespace(name: str) -> str:
    """Of a story's namespace: datasets, pods, Jobs, events, logs. Never raises for want of anything."""
    parts = [
        _said("get", "lds,pods,jobs,statefulsets,deployments,services", "-n", name, "-o", "wide"),
        _said("describe", "lds", "-n", name),
        _said("get", "events", "-n", name, "--sort-by=.lastTimestamp"),
        *_troubled_pods(name),
        *(
            _said(
                "logs",
                "-n",
                name,
                "-l",
                f"app.kubernetes.io/component={component}",
                "--all-containers",
                "--prefix",
                TAIL,
            )
            for component in ("builder", "shard", "router")
        ),
    ]
    return "\n".join(parts)


def operator() -> str:
    """Of the installation: its pods and the end of the operator's log."""
    namespace_ = release.NAMESPACE
    return "\n".join(
        [
            _said("get", "pods,pvc,secrets", "-n", namespace_, "-o", "wide"),
            _said("get", "events", "-n", namespace_, "--sort-by=.lastTimestamp"),
            _said("logs", "-n", namespace_, "-l", release.OPERATOR, "--all-containers", "--prefix", "--tail=150"),
            _said("logs", "-n", namespace_, "-l", release.OPERATOR, "--all-containers", "--previous", "--prefix", TAIL),
            _said("get", "nodes", "-o", "wide"),
        ]
    )


def _troubled_pods(name: str) -> list[str]:
    try:
        pods = find("pods", name)
    except CommandFailed as error:
        return [str(error)]
    troubled = [pod["metadata"]["name"] for pod in pods if _in_trouble(pod["status"])]
    return [_said("describe", "pod", pod, "-n", name) for pod in troubled[:4]]


def _in_trouble(status: dict[str, object]) -> bool:
    conditions = status.get("conditions", [])
    assert isinstance(conditions, list)
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return not ready and status.get("phase") != "Succeeded"


def _said(*arguments: str) -> str:
    try:
        said = kubectl(*arguments, timeout=30)
    except CommandFailed as error:
        said = str(error)
    return f"$ kubectl {' '.join(arguments)}\n{said.rstrip()}\n"
