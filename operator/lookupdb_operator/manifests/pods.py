"""What all pods have in common: they pass restricted pod security, hold no token, and are what the dataset says of the
pods of their component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.metadata import drop_empty, drop_unsaid
from lookupdb_operator.manifests.placement import render_placement
from lookupdb_operator.manifests.resources import TMP_STORAGE, Resources
from lookupdb_operator.model import ObservedDataset

_SECTIONS: Final = {names.BUILDER: "build", names.PUSHER: "build", names.SHARDS: "serving", names.ROUTER: "router"}
"""By component, the member of the spec that is about it."""
_SYNC_PLACEMENT: Final[Mapping[str, Any]] = {"nodeSelector": {}, "tolerations": []}
SAFE_TO_EVICT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Annotations of pods whose emptyDir can be made again: an autoscaler need not keep a node for its sake."""

TMP: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - an emptyDir of the pod's own
_TMP_VOLUME: Final = {"name": "tmp", "emptyDir": {"sizeLimit": TMP_STORAGE}}


def render_template(
    dataset: ObservedDataset,
    config: Config,
    component: str,
    selector: Mapping[str, str],
    labels: Mapping[str, str],
    containers: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    *,
    annotations: Mapping[str, str] | None = None,
    spreads: bool = True,
    takes_volumes: bool = True,
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """A pod template. ``containers`` are the members of a pod's spec that list them, and others of its own;
    ``selector`` selects its pods, or those that are like them.

    Without ``takes_volumes`` the kubelet does not hand what is mounted to our group: volumes of others stay theirs.
    """
    pod = read_pod_fields(dataset, component)
    user = {name: number for name, number in config.pod_security.items() if takes_volumes or name != "fsGroup"}
    security = {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}
    spec: dict[str, Any] = {
        **containers,
        **render_placement(dataset.spec["scheduling"], pod, selector, spreads=spreads),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "volumes": [*volumes, _TMP_VOLUME],
        **drop_empty(imagePullSecrets=_pull_secrets(dataset, config, pull_secrets)),
    }
    # Whatever the CRD lets through: what selects pods is ours.
    pod_labels = {**config.pod_labels, **pod.get("labels", {}), **labels}
    pod_annotations = {**(annotations or {}), **pod.get("annotations", {})}
    return {"metadata": {"labels": pod_labels, **drop_empty(annotations=pod_annotations)}, "spec": spec}


def read_pod_fields(dataset: ObservedDataset, component: str) -> Mapping[str, Any]:
    """What the dataset says of the pods of ``component``. Where a `lookupdb sync` runs, ``spec.sync`` alone says."""
    if component == names.SYNC:
        return {name: dataset.spec["sync"].get(name, empty) for name, empty in _SYNC_PLACEMENT.items()}
    fields: Mapping[str, Any] = dataset.spec[_SECTIONS[component]]["pod"]
    return fields


def render_container(
    dataset: ObservedDataset,
    config: Config,
    component: str,
    name: str,
    arguments: Sequence[str],
    resources: Resources,
    mounts: Sequence[Mapping[str, Any]],
    **members: Any,
) -> dict[str, Any]:
    """One container, which runs ``lookupdb`` with ``arguments``."""
    return {
        "name": name,
        "image": dataset.spec.get("image") or config.image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["lookupdb"],
        "args": list(arguments),
        # HOME, because libraries look for their settings there, and this user has none.
        "env": [
            {"name": "LOOKUPDB_LOG_FORMAT", "value": "json"},
            {"name": "HOME", "value": TMP["mountPath"]},
            *(drop_unsaid(variable) for variable in read_pod_fields(dataset, component).get("extraEnv", ())),
        ],
        "resources": drop_empty(**resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [*mounts, TMP],
        **members,
    }


def render_port(name: str, number: int) -> dict[str, Any]:
    """A container's port. The protocol is part of the key by which server-side apply tells ports apart."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def render_service_port(name: str, number: int, target: str, **members: Any) -> dict[str, Any]:
    """A Service's port, which leads to the containers' port ``target``."""
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP", **members}


def render_probes() -> dict[str, Any]:
    """The probes of shard servers and routers. The admin port answers from the beginning, however long a shard takes to
    be verified; a container that answers at all is alive, so that a busy node restarts nothing."""
    healthy = {"httpGet": {"path": "/healthz", "port": "admin"}}
    return {
        "startupProbe": {**healthy, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "admin"},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "livenessProbe": {**healthy, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }


def _pull_secrets(dataset: ObservedDataset, config: Config, further: Sequence[str]) -> list[dict[str, str]]:
    own = [secret["name"] for secret in dataset.spec.get("imagePullSecrets") or ()]
    return [{"name": name} for name in dict.fromkeys([*own, *further, *config.image_pull_secrets])]
