"""Manifests of pods that ask from inside the cluster. Pure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from e2e.support.kubectl import Manifest

INSIDE: Final = Path(__file__).parents[1] / "inside"
IMAGE: Final = os.environ.get("E2E_IMAGE", "lookupdb:0.1.0")
"""The image under test: every node has it, and it has Python. ``e2e/run`` sets the variable."""
CODE: Final = "e2e-inside"
CLIENT: Final = "e2e-client"
INTRUDER: Final = "e2e-intruder"
KEEPER: Final = "e2e-keeper"
AUTHORITY: Final = "e2e-authority"
PUSHER: Final = "e2e-pusher"
TOKENS: Final = "/tokens"
WORK: Final = "/work"
BUILDER_LABELS: Final = {
    "app.kubernetes.io/name": "lookupdb",
    "app.kubernetes.io/managed-by": "lookupdb-operator",
    "app.kubernetes.io/component": "builder",
}
"""Labels by which NetworkPolicies recognize a builder."""
CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
PREFERENCE: Final = {"weight": 100, "preference": {"matchExpressions": [{"key": CONTROL_PLANE, "operator": "Exists"}]}}
LABELS: Final = {"lookupdb.dev/e2e": "true"}


def namespace(name: str, labels: dict[str, str]) -> Manifest:
    """Return a scenario's namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": LABELS | labels}}


def code() -> Manifest:
    """Return the ConfigMap with e2e/inside."""
    files = {path.name: path.read_text() for path in sorted(INSIDE.glob("*.py"))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CODE}, "data": files}


def config_map(name: str, files: dict[str, str]) -> Manifest:
    """Return a ConfigMap of text files, such as a source."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files}


def client() -> Manifest:
    """Return a pod that sleeps, to run commands in."""
    return stranger(CLIENT)


def stranger(name: str) -> Manifest:
    """Return another such pod, with its own name and label."""
    return _pod(name, ["sleep", "infinity"], volumes={CODE: "/inside"})


def intruder(audiences: dict[str, str]) -> Manifest:
    """Return a sleeping pod that looks like a builder. Each of ``audiences`` names a token of its ServiceAccount: a
    file in TOKENS."""
    pod = _pod(INTRUDER, ["sleep", "infinity"], volumes={CODE: "/inside", "kube-root-ca.crt": "/ca"})
    pod["metadata"]["labels"] |= BUILDER_LABELS
    (container,) = pod["spec"]["containers"]
    container["volumeMounts"].append({"name": "tokens", "mountPath": TOKENS, "readOnly": True})
    tokens = [
        {"serviceAccountToken": {"audience": audience, "expirationSeconds": 600, "path": name}}
        for name, audience in audiences.items()
    ]
    # A volume's name must not have dots, but the ConfigMap's has.
    for place in (*pod["spec"]["volumes"], *container["volumeMounts"]):
        place["name"] = place["name"].replace(".", "-")
    pod["spec"]["volumes"].append({"name": "tokens", "projected": {"sources": tokens}})
    return pod


def pusher(account: str, audiences: dict[str, str]) -> tuple[Manifest, Manifest]:
    """Return the ServiceAccount ``account``, and an ``intruder`` that has its tokens, and WORK to push from."""
    pod = intruder(audiences)
    pod["metadata"]["name"] = PUSHER
    pod["spec"]["serviceAccountName"] = account
    (container,) = pod["spec"]["containers"]
    container["resources"]["limits"]["memory"] = "512Mi"
    container["volumeMounts"].append({"name": "work", "mountPath": WORK})
    pod["spec"]["volumes"].append({"name": "work", "emptyDir": {}})
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}, pod


def authority(certificate: str) -> Manifest:
    """Return the ConfigMap with the authority that ``keeper`` trusts."""
    return config_map(AUTHORITY, {"ca.crt": certificate})


def keeper(url: str, key: str, tokens: dict[str, str]) -> Manifest:
    """Return a pod that keeps asking for ``key`` with each of the ``tokens``, and reports what it saw."""
    command = ["python", "/inside/keep.py", url, key]
    return _pod(
        KEEPER, command, volumes={CODE: "/inside", AUTHORITY: "/ca"}, settings={"KEEP_TOKENS": json.dumps(tokens)}
    )


def load(name: str, url: str, keys: list[str], settings: dict[str, str]) -> tuple[Manifest, Manifest]:
    """Return a pod that asks without pause, and the ConfigMap with its keys."""
    volumes = {CODE: "/inside", name: "/keys"}
    command = ["python", "/inside/load.py", url, "/keys/keys.json"]
    return config_map(name, {"keys.json": json.dumps(keys)}), _pod(name, command, volumes=volumes, settings=settings)


def _pod(name: str, command: list[str], *, volumes: dict[str, str], settings: dict[str, str] | None = None) -> Manifest:
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in (settings or {}).items()],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in volumes.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS | {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            # Prefer the control plane: workers are drained and short of room.
            "tolerations": [{"key": CONTROL_PLANE, "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}},
            "containers": [container],
            "volumes": [{"name": volume, "configMap": {"name": volume}} for volume in volumes],
        },
    }
