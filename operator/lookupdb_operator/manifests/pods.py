"""What all pods have in common: they pass restricted pod security, hold no token, and are what the dataset says of the
pods of their component."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb.dataset.schema import parse_quantity
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.objects import drop_empty, drop_unsaid
from lookupdb_operator.model import ObservedDataset

# Where pods run, and as whom: what a dataset says of the pods of one component, and our own where it says nothing.


Placement = dict[str, Any]
"""Members of a pod's spec."""

_MEMBERS: Final = ("nodeSelector", "tolerations", "priorityClassName", "serviceAccountName")
_POD_TERMS: Final = ("podAffinity", "podAntiAffinity")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def render_placement(
    scheduling: Mapping[str, Any], pod: Mapping[str, Any], selector: Mapping[str, str], *, spreads: bool
) -> Placement:
    """The placement of the pods that ``selector`` selects: a field of ``pod`` stands for itself, whole; else that of
    ``scheduling`` does, else with ``spreads`` our own spreading over nodes and zones."""
    own = _spread_pods(selector) if spreads else {}
    given = {**own, **scheduling, **pod}
    constraints = [_with_selector(constraint, selector) for constraint in given.get("topologySpreadConstraints", ())]
    affinity = own.get("affinity", {}) | _complete_affinity(pod.get("affinity", {}), selector)
    members = {name: given.get(name) for name in _MEMBERS}
    placement: Placement = drop_unsaid({**members, "affinity": affinity, "topologySpreadConstraints": constraints})
    return placement


def _spread_pods(selector: Mapping[str, str]) -> Placement:
    """Over nodes and zones where there are several; on one node pods run all the same.

    Zones are no second spread constraint: the scheduler leaves nodes that lack the label of any one out of the count
    for all of them, so that on a cluster without zones nothing would be spread at all.
    """
    pods = {"labelSelector": {"matchLabels": dict(selector)}}
    by_zone = {"weight": 100, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone", **pods}}
    by_node = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **pods}
    return {"affinity": {"podAntiAffinity": {_PREFERRED: [by_zone]}}, "topologySpreadConstraints": [by_node]}


def _complete_affinity(affinity: Mapping[str, Any], selector: Mapping[str, str]) -> Placement:
    """``affinity`` with every term about pods saying which."""
    return {
        name: _complete_terms(member, selector) if name in _POD_TERMS else member for name, member in affinity.items()
    }


def _complete_terms(affinity: Mapping[str, Any], selector: Mapping[str, str]) -> Placement:
    required = [_with_selector(term, selector) for term in affinity.get(_REQUIRED, ())]
    preferred = [
        {**term, "podAffinityTerm": _with_selector(term["podAffinityTerm"], selector)}
        for term in affinity.get(_PREFERRED, ())
    ]
    return {_REQUIRED: required, _PREFERRED: preferred}


def _with_selector(term: Mapping[str, Any], selector: Mapping[str, str]) -> dict[str, Any]:
    """``term`` about the pods that ``selector`` selects, unless it says which ones itself: nobody can write down the
    labels of a rollout that is to come."""
    return {**term, "labelSelector": term.get("labelSelector", {"matchLabels": dict(selector)})}


# What containers request and may use: what a dataset says of it, and what follows when it says nothing.
#
# Every container requests cpu, memory and ephemeral-storage, so that a namespace with a quota on requests takes the
# pods, and no node is filled with files that it has no room for. The CRD sees to it that no request that is given
# exceeds its limit.


Resources = dict[str, dict[str, str]]
"""requests and limits, by resource."""

MI: Final = 1 << 20
PROCESS_BYTES: Final = 64 * MI
"""Of a shard server's supervisor, and of each of its workers, without the shard."""
BUILD_PERCENT: Final = 80
"""The percent of its memory limit that a builder keeps within: the rest is for what it cannot count."""
FETCH_MEMORY: Final = "128Mi"
"""What the container that fetches a shard requests. It streams: the shard's size does not matter. A pod's request is
the greatest of its containers', and a server's is 128Mi at least unless it is told: this one adds nothing."""
FETCH_MEMORY_LIMIT: Final = "256Mi"
SPARE_STORAGE: Final = 64 * MI
"""Of a node's disk, beside the files that are known of: logs, a manifest, /tmp."""
TMP_STORAGE: Final = f"{SPARE_STORAGE // MI}Mi"
"""What may stand in a pod's /tmp. Nothing of ours writes there; libraries may."""
VOLUME_FACTOR: Final = 1.1
VOLUME_SPARE: Final = 512 * MI
_STORAGE: Final = "ephemeral-storage"
_BUILDER_REQUESTS: Final = {"cpu": "100m"}
_ROUTER_REQUESTS: Final = {"cpu": "50m", "memory": "128Mi", _STORAGE: TMP_STORAGE}
_SYNC_REQUESTS: Final = {"cpu": "50m", "memory": "64Mi", _STORAGE: TMP_STORAGE}
_SERVER_REQUESTS: Final = {"cpu": "50m"}
_MOST_THREADS: Final = 256
"""Of `lookupdb build`."""


def builder(spec: Mapping[str, Any]) -> Resources:
    """A builder's resources, by ``spec.build.resources``. The memory limit is requested if no request is declared, and
    of the node's disk all that its scratch volume may hold."""
    declared = _read_resources(spec["build"]["resources"])
    storage = {_STORAGE: str(spec["build"]["scratchSize"])}
    return _with_requests(declared, _BUILDER_REQUESTS | _memory(declared["limits"]) | storage)


def builder_memory(resources: Resources) -> int:
    """The bytes that a builder of these resources keeps within."""
    return int(parse_quantity(resources["limits"]["memory"]) * BUILD_PERCENT / 100)


def builder_threads(resources: Resources) -> int | None:
    """How many cores a builder of these resources uses; None for all there are."""
    limit = resources["limits"].get("cpu")
    return min(max(math.ceil(parse_quantity(limit)), 1), _MOST_THREADS) if limit else None


def router(spec: Mapping[str, Any]) -> Resources:
    """A router's resources, by ``spec.router.resources``."""
    return _with_requests(_read_resources(spec["router"]["resources"]), _ROUTER_REQUESTS)


def sync(spec: Mapping[str, Any]) -> Resources:
    """Those of a `lookupdb sync`, by ``spec.sync.resources``."""
    return _with_requests(_read_resources(spec["sync"]["resources"]), _SYNC_REQUESTS)


def server(spec: Mapping[str, Any], largest_shard_bytes: int) -> Resources:
    """A shard server's resources, by ``spec.serving``: memory that is not declared there follows from the generation.

    The request is the limit, because the kubelet counts the pages of the shard that are in use, and evicts first what
    uses more than it requests. All shards get what the largest needs: their pods differ in nothing but the shard.
    """
    serving = spec["serving"]
    declared = _read_resources(serving.get("resources") or {})
    needed = server_memory(serving["workers"], serving["hotFraction"], largest_shard_bytes)
    if "memory" not in declared["limits"]:
        declared["limits"]["memory"] = max(needed, declared["requests"].get("memory", needed), key=parse_quantity)
    # On a volume of any kind, the shard does not stand on the node's disk.
    is_on_node = serving["delivery"]["type"] == "Fetch" and "storageClassName" not in serving
    storage = {_STORAGE: shard_storage(largest_shard_bytes) if is_on_node else TMP_STORAGE}
    return _with_requests(declared, _SERVER_REQUESTS | _memory(declared["limits"]) | storage)


def shard_storage(shard_bytes: int) -> str:
    """What a shard server keeps on its node's disk, in whole Mi: the one file that it serves."""
    return f"{math.ceil((shard_bytes + SPARE_STORAGE) / MI)}Mi"


def shard_volume(shard_bytes: int) -> str:
    """How large a volume of its own must be, in whole Mi: with room for what a file system takes for itself. ext4
    takes 2 % and a journal of up to 1 GiB, and XFS makes none below 300 MiB."""
    return f"{math.ceil((shard_bytes * VOLUME_FACTOR + VOLUME_SPARE) / MI)}Mi"


def server_memory(workers: int, hot_fraction: float, largest_shard_bytes: int) -> str:
    """What a shard server needs, in whole Mi: its processes, and the part of its shard that is in use at a time."""
    size = PROCESS_BYTES * (1 + workers) + hot_fraction * largest_shard_bytes
    return f"{math.ceil(size / MI)}Mi"


def fetcher(server: Resources) -> Resources:
    """The resources of the container that fetches a server's shard before it starts: the server's but for the memory.

    What else a quota or a limit range asks for (a limit of cpu, ephemeral-storage) is thereby there too.
    """
    return {
        "requests": server["requests"] | {"memory": FETCH_MEMORY},
        "limits": server["limits"] | {"memory": FETCH_MEMORY_LIMIT},
    }


def _read_resources(resources: Mapping[str, Any]) -> Resources:
    """As text, which the API server takes a quantity for that stands as a number in YAML."""
    parts = {part: resources.get(part) or {} for part in ("requests", "limits")}
    return {part: {name: str(amount) for name, amount in amounts.items()} for part, amounts in parts.items()}


def _memory(limits: Mapping[str, str]) -> dict[str, str]:
    return {"memory": limits["memory"]}


def _with_requests(declared: Resources, defaults: Mapping[str, str]) -> Resources:
    """``declared``, with ``defaults`` for what is not requested, as far as the limits allow."""
    limits = declared["limits"]
    defaults = {name: min(amount, limits.get(name, amount), key=parse_quantity) for name, amount in defaults.items()}
    return {"requests": defaults | declared["requests"], "limits": limits}


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
