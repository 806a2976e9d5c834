"""The router pods of a dataset, and how to make them see a changed Secret."""

from __future__ import annotations

import secrets
from typing import Final

from e2e.support.kubectl import Manifest, find, kubectl

COMPONENT: Final = "app.kubernetes.io/component=router"
_NUDGE: Final = "lookupdb.dev/e2e"


def pods(namespace: str) -> list[Manifest]:
    """Return the router pods of the namespace's only dataset."""
    return find("pods", namespace, COMPONENT)


def restarts(namespace: str) -> dict[str, int]:
    """Return the uids of the router pods, each with its number of container restarts."""
    return {
        pod["metadata"]["uid"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in pods(namespace)
    }


def nudge(namespace: str) -> None:
    """Make the kubelets update the pods' Secrets now, not within a minute. Any change of a pod has this effect."""
    names = [pod["metadata"]["name"] for pod in pods(namespace)]
    kubectl("annotate", "pod", *names, "--namespace", namespace, "--overwrite", f"{_NUDGE}={secrets.token_hex(4)}")
