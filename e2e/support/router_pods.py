"""The router pods of a dataset: who they are, and what makes them see a Secret that has changed."""

from __future__ import annotations

import secrets
from typing import Final

from e2e.support.kubectl import Manifest, find, kubectl

COMPONENT: Final = "app.kubernetes.io/component=router"
_NUDGE: Final = "lookupdb.dev/e2e"


def pods(namespace: str) -> list[Manifest]:
    """Those of the namespace's one dataset."""
    return find("pods", namespace, COMPONENT)


def restarts(namespace: str) -> dict[str, int]:
    """The uids of the router pods, with the number of times that their containers were started again."""
    return {
        pod["metadata"]["uid"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in pods(namespace)
    }


def nudge(namespace: str) -> None:
    """Have the kubelets put into the pods what has changed of their Secrets: any change of a pod has them look at once,
    and not within a minute."""
    names = [pod["metadata"]["name"] for pod in pods(namespace)]
    kubectl("annotate", "pod", *names, "--namespace", namespace, "--overwrite", f"{_NUDGE}={secrets.token_hex(4)}")
