"""What all pods have in common: they pass restricted pod security, hold no token, and are scheduled as the dataset
says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.metadata import drop_empty
from lookupdb_operator.manifests.resources import TMP_STORAGE, Resources
from lookupdb_operator.model import ObservedDataset

SAFE_TO_EVICT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Annotations of pods whose emptyDir can be made again: an autoscaler need not keep a node for its sake."""

TMP: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - an emptyDir of the pod's own
_TMP_VOLUME: Final = {"name": "tmp", "emptyDir": {"sizeLimit": TMP_STORAGE}}


def render_template(
    dataset: ObservedDataset,
    config: Config,
    labels: Mapping[str, str],
    containers: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    *,
    annotations: Mapping[str, str] | None = None,
    takes_volumes: bool = True,
) -> dict[str, Any]:
    """A pod template. ``containers`` are the members of a pod's spec that list them, and others of its own.

    Without ``takes_volumes`` the kubelet does not hand what is mounted to our group: volumes of others stay theirs.
    """
    scheduling = dataset.spec["scheduling"]
    user = {name: number for name, number in config.pod_security.items() if takes_volumes or name != "fsGroup"}
    security = {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}
    spec: dict[str, Any] = {
        **containers,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "volumes": [*volumes, _TMP_VOLUME],
        **drop_empty(
            imagePullSecrets=_pull_secrets(dataset, config),
            nodeSelector=scheduling.get("nodeSelector"),
            tolerations=scheduling.get("tolerations"),
            priorityClassName=scheduling.get("priorityClassName"),
        ),
    }
    return {
        "metadata": {"labels": {**config.pod_labels, **labels}, **drop_empty(annotations=annotations)},
        "spec": spec,
    }


def render_container(
    dataset: ObservedDataset,
    config: Config,
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
        "env": [{"name": "LOOKUPDB_LOG_FORMAT", "value": "json"}, {"name": "HOME", "value": TMP["mountPath"]}],
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


def store_environment(dataset: ObservedDataset) -> dict[str, Any]:
    """The environment of builders and fetchers: the store's address and credentials. No other container has it."""
    return {"secretRef": {"name": names.store_secret(dataset.name, dataset.uid)}}


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


def render_placement(selector: Mapping[str, str]) -> dict[str, Any]:
    """Affinity and spread constraints: over nodes and zones where there are several; on one node pods run all the same.

    Zones are no second spread constraint: the scheduler leaves nodes that lack the label of any one out of the count
    for all of them, so that on a cluster without zones nothing would be spread at all.
    """
    pods = {"labelSelector": {"matchLabels": dict(selector)}}
    by_zone = {"weight": 100, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone", **pods}}
    by_node = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **pods}
    return {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [by_zone]}},
        "topologySpreadConstraints": [by_node],
    }


def _pull_secrets(dataset: ObservedDataset, config: Config) -> list[dict[str, str]]:
    own = [secret["name"] for secret in dataset.spec.get("imagePullSecrets") or ()]
    return [{"name": name} for name in dict.fromkeys([*own, *config.image_pull_secrets])]
