"""Enforces NetworkPolicies during a scenario: runs ``e2e/enforcer`` on each node of kind, whose network does not.

Other clusters must enforce them by themselves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from e2e.support.kubectl import Manifest, apply, delete, kubectl

IMAGE: Final = os.environ.get("E2E_ENFORCER", "")
"""``e2e/run`` sets the variable on clusters of kind."""
NAME: Final = "lookupdb-e2e-enforcer"
NAMESPACE: Final = "kube-system"
_META: Final = {"name": NAME, "namespace": NAMESPACE}
_GRACE_SECONDS: Final = 20
"""It removes its rules on shutdown."""


@contextlib.contextmanager
def enforced() -> Iterator[None]:
    """Enforce NetworkPolicies while the block runs."""
    if not IMAGE:
        yield
        return
    apply(*manifests(IMAGE))
    try:
        kubectl("rollout", "status", f"daemonset/{NAME}", "--namespace", NAMESPACE, "--timeout=120s", timeout=130)
        yield
    finally:
        delete("daemonset", NAME, NAMESPACE, "--cascade=foreground")
        for kind in ("clusterrolebinding", "clusterrole"):
            delete(kind, NAME, None)
        delete("serviceaccount", NAME, NAMESPACE)


def manifests(image: str) -> list[Manifest]:
    """Return the DaemonSet, and its right to read what policies name."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
    ]
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _META},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [account],
        },
        _daemon_set(image),
    ]


def _daemon_set(image: str) -> Manifest:
    labels = {"app": NAME}
    pod: dict[str, Any] = {
        "hostNetwork": True,
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": image,
                "imagePullPolicy": "Never",
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {"privileged": True},
            }
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _META,
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
