"""Diagnostic output for a failed scenario."""

from __future__ import annotations

from typing import Final

from e2e.support import release
from e2e.support.command import CommandFailed
from e2e.support.kubectl import find, kubectl

TAIL: Final = "--tail=40"


def describe_namespace(name: str) -> str:
    """Describe datasets, pods, Jobs, events and logs of a namespace. Never raises: the text includes errors."""
    parts = [
        _output("get", "lds,pods,jobs,statefulsets,deployments,services", "-n", name, "-o", "wide"),
        _output("describe", "lds", "-n", name),
        _output("get", "events", "-n", name, "--sort-by=.lastTimestamp"),
        *_troubled_pods(name),
        *(
            _output(
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


def describe_operator() -> str:
    """Describe the installation's pods and events, and the end of the logs of operator, gateway and console."""
    namespace_ = release.NAMESPACE
    return "\n".join(
        [
            _output("get", "pods,pvc,secrets", "-n", namespace_, "-o", "wide"),
            _output("get", "events", "-n", namespace_, "--sort-by=.lastTimestamp"),
            _output("logs", "-n", namespace_, "-l", release.OPERATOR, "--all-containers", "--prefix", "--tail=150"),
            _output(
                "logs", "-n", namespace_, "-l", release.OPERATOR, "--all-containers", "--previous", "--prefix", TAIL
            ),
            *(
                _output("logs", "-n", namespace_, "-l", selector, "--all-containers", "--prefix", TAIL)
                for selector in (release.GATEWAY, release.CONSOLE)
            ),
            _output("get", "nodes", "-o", "wide"),
        ]
    )


def _troubled_pods(name: str) -> list[str]:
    try:
        pods = find("pods", name)
    except CommandFailed as error:
        return [str(error)]
    troubled = [pod["metadata"]["name"] for pod in pods if _in_trouble(pod["status"])]
    return [_output("describe", "pod", pod, "-n", name) for pod in troubled[:4]]


def _in_trouble(status: dict[str, object]) -> bool:
    conditions = status.get("conditions", [])
    assert isinstance(conditions, list)
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return not ready and status.get("phase") != "Succeeded"


def _output(*arguments: str) -> str:
    try:
        said = kubectl(*arguments, timeout=30)
    except CommandFailed as error:
        said = str(error)
    return f"$ kubectl {' '.join(arguments)}\n{said.rstrip()}\n"
