"""How a shard server gets its file, by spec.serving.delivery: fetched into a volume of the pod's own before it starts,
mapped from a volume that others fill, or from a container image that the rollout's push has made (``pusher``).

What is not fetched needs no init container, and nothing in its pod reaches the store. The server itself waits for what
is not there yet, and says what it lacks when it gives up, as a fetcher does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.image.artifact import shard_tag
from lookupdb.store.layout import dataset_path
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import access, pods
from lookupdb_operator.manifests.builder import TERMINATION_LOG
from lookupdb_operator.manifests.objects import drop_empty, render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.status import GenerationStatus, RolloutStatus

FETCH: Final = "Fetch"
VOLUME: Final = "Volume"
IMAGE: Final = "Image"
WAIT_SECONDS: Final = 30
"""For which a server waits for its file before it ends and says what it lacks. Its startup probe gives it 60."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a shard server's pod has for its file."""

    folder: str
    """From which it serves: the generation's."""
    volumes: tuple[Mapping[str, Any], ...]
    """The first one is mounted at ``names.DATA_PATH``."""
    flags: Mapping[str, Any]
    """Further ones of the server."""
    init_containers: tuple[Mapping[str, Any], ...] = ()
    """What has to end before the server starts."""
    pull_secrets: tuple[str, ...] = ()
    """Further ones of the pod."""
    takes_volumes: bool = True
    """Whether volumes are the pod's own: those of others stay as they are."""


def render_delivery(
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, shard: int, amounts: pods.Resources
) -> Delivery:
    """What the servers of ``shard`` have; ``amounts`` are a server's resources."""
    if delivery_type(dataset.spec) == VOLUME:
        return _render_shown(dataset, generation, config)
    if delivery_type(dataset.spec) == IMAGE:
        return _render_image(dataset, generation, shard)
    return Delivery(
        folder=names.DATA_PATH,
        volumes=(
            {"name": names.DATA_VOLUME, **_render_own(dataset, generation)},
            *access.render_volumes(dataset, config),
        ),
        flags={},
        init_containers=(_render_fetcher(dataset, generation, config, shard, amounts),),
    )


def delivery_type(spec: Mapping[str, Any]) -> str:
    """``Fetch``, ``Volume`` or ``Image``, of a completed spec."""
    return str(spec["serving"]["delivery"]["type"])


def uses_images(dataset: ObservedDataset) -> bool:
    """Whether servers are to have their shards from images, as far as the spec can be used."""
    return dataset.problem is None and delivery_type(dataset.spec) == IMAGE


def _render_shown(dataset: ObservedDataset, generation: GenerationStatus, config: Config) -> Delivery:
    """The store's own folders, on a volume that shows them."""
    volume = dataset.spec["serving"]["delivery"]["volume"]
    folder = dataset_path(config.cluster, dataset.namespace, dataset.name, dataset.uid)
    parts = (names.DATA_PATH, volume["path"], folder, generation.generation)
    claim = {"claimName": volume["claimName"], "readOnly": True}
    return Delivery(
        folder="/".join(part for part in parts if part),
        volumes=({"name": names.DATA_VOLUME, "persistentVolumeClaim": claim},),
        flags={"--wait": WAIT_SECONDS, "--termination-log": TERMINATION_LOG},
        takes_volumes=False,
    )


def _render_image(dataset: ObservedDataset, generation: GenerationStatus, shard: int) -> Delivery:
    """A tag is of one content for good, so what a node has of it is not asked for again. The server compares the file
    with the manifest beside it, as any other."""
    image = dataset.spec["serving"]["delivery"]["image"]
    tag = shard_tag(dataset.name, dataset.uid, generation.generation, shard)
    volume = {"reference": f"{image['repository']}:{tag}", "pullPolicy": "IfNotPresent"}
    return Delivery(
        folder=names.DATA_PATH,
        volumes=({"name": names.DATA_VOLUME, "image": volume},),
        flags={"--wait": WAIT_SECONDS, "--termination-log": TERMINATION_LOG},
        pull_secrets=(image["pullSecretName"],) if "pullSecretName" in image else (),
        takes_volumes=False,
    )


def _render_own(dataset: ObservedDataset, generation: GenerationStatus) -> dict[str, Any]:
    """Where a fetched shard is kept: on its node's disk, or on a volume that comes and goes with the pod."""
    shard_bytes = generation.largest_shard_bytes
    if not (storage_class := dataset.spec["serving"].get("storageClassName")):
        return {"emptyDir": {"sizeLimit": pods.shard_storage(shard_bytes)}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": pods.shard_volume(shard_bytes)}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


def _render_fetcher(
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, shard: int, amounts: pods.Resources
) -> dict[str, Any]:
    """The only container of the pod that can reach the store."""
    flags = {
        "--store": access.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--namespace": dataset.namespace,
        "--dataset": dataset.name,
        "--uid": dataset.uid,
        "--generation": generation.generation,
        "--shard": str(shard),
        "--termination-log": TERMINATION_LOG,
    }
    fetcher = pods.render_container(
        dataset,
        config,
        names.SHARDS,
        "fetch",
        ["fetch", *(word for pair in flags.items() for word in pair), names.DATA_PATH],
        pods.fetcher(amounts),
        [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH}],
    )
    return access.grant(fetcher, dataset, config)


# The push of a rollout: with delivery by image, the Job that pushes the images of its generation before its servers
# are made.
#
# It belongs to the rollout, and not to the build: so it comes for a generation that was built before anybody asked for
# images, for one that is pinned, and for one whose images somebody has removed. What the registry has is not sent
# again. It never gives up, as an init container that fetches does not.


_TRIES: Final = 2**31 - 1
_GRACE_SECONDS: Final = 10
_DOCKER_KEY: Final = ".dockerconfigjson"
"""Of a Secret of type kubernetes.io/dockerconfigjson."""
_CONFIG_VOLUME: Final = "registry"
_CA_VOLUME: Final = "registry-ca"
_PATHS: Final = {_CONFIG_VOLUME: names.REGISTRY_PATH, _CA_VOLUME: names.REGISTRY_CA_PATH}
"""Where a volume is mounted."""


def render_push(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, config: Config
) -> Manifest:
    """The Job, not stamped."""
    labels = {names.ROLLOUT: rollout.rollout, names.GENERATION: generation.generation}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": render_metadata(dataset, names.push(dataset.name, rollout.rollout), names.PUSHER, labels),
        "spec": {"backoffLimit": _TRIES, "template": _render_template(dataset, generation, config, labels)},
    }


def _render_template(
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, labels: dict[str, str]
) -> dict[str, Any]:
    amounts = pods.fetcher(pods.server(dataset.spec, generation.largest_shard_bytes))
    volumes = _render_volumes(dataset.spec["serving"]["delivery"]["image"])
    container = pods.render_container(
        dataset,
        config,
        names.PUSHER,
        "push",
        _arguments(dataset, generation, config),
        amounts,
        [{"name": volume["name"], "mountPath": _PATHS[volume["name"]], "readOnly": True} for volume in volumes],
    )
    return pods.render_template(
        dataset,
        config,
        names.PUSHER,
        names.selector(dataset.name, dataset.uid, names.PUSHER),
        names.labels(dataset.name, dataset.uid, names.PUSHER) | labels,
        {
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [access.grant(container, dataset, config)],
        },
        [*volumes, *access.render_volumes(dataset, config)],
        annotations=pods.SAFE_TO_EVICT,
        spreads=False,
    )


def _render_volumes(image: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The credentials, and whom to believe, as far as the dataset names any: of each Secret the one member that is
    needed."""
    volumes: list[dict[str, Any]] = []
    if "pushSecretName" in image:
        items = [{"key": _DOCKER_KEY, "path": names.REGISTRY_FILE}]
        volumes.append({"name": _CONFIG_VOLUME, "secret": {"secretName": image["pushSecretName"], "items": items}})
    if ca := image.get("registryCA"):
        items = [{"key": ca["key"], "path": names.REGISTRY_CA_FILE}]
        secret = {"secret": {"secretName": ca.get("secretName"), "items": items}}
        config_map = {"configMap": {"name": ca.get("configMapName"), "items": items}}
        volumes.append({"name": _CA_VOLUME, **(secret if "secretName" in ca else config_map)})
    return volumes


def _arguments(dataset: ObservedDataset, generation: GenerationStatus, config: Config) -> list[str]:
    image = dataset.spec["serving"]["delivery"]["image"]
    flags = {
        "--store": access.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--dataset": f"{dataset.namespace}/{dataset.name}",
        "--uid": dataset.uid,
        "--repository": image["repository"],
        # Its manifest says that it was refused for as long as it is in the store.
        "--override-gates": generation.generation if generation.overridden else None,
        "--docker-config": f"{names.REGISTRY_PATH}/{names.REGISTRY_FILE}" if "pushSecretName" in image else None,
        "--ca-file": f"{names.REGISTRY_CA_PATH}/{names.REGISTRY_CA_FILE}" if "registryCA" in image else None,
        "--progress": "plain",
        "--log-format": "json",
        "--termination-log": TERMINATION_LOG,
    }
    words = [str(word) for pair in flags.items() if pair[1] is not None for word in pair]
    return ["image", "push", generation.generation, *words]


# A StatefulSet with an image volume that nobody ever makes: whether an API server keeps such a volume shows in what it
# answers to a dry run. Where the feature is off it takes the volume away without a word.


_NAME: Final = "lookupdb-image-probe"
_IMAGE: Final = "registry.invalid/lookupdb:probe"


def render_image_probe(namespace: str) -> Manifest:
    """The StatefulSet, of no pods, in restricted pod security."""
    labels = {names.APP: _NAME}
    container = {
        "name": "probe",
        "image": _IMAGE,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH, "readOnly": True}],
    }
    pod = {
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": names.DATA_VOLUME, "image": {"reference": _IMAGE, "pullPolicy": "IfNotPresent"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": namespace, "name": _NAME, "labels": labels},
        "spec": {
            "replicas": 0,
            "serviceName": _NAME,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def has_image_volume(stateful_set: Mapping[str, Any]) -> bool:
    """Whether the pods of ``stateful_set`` would have an image volume."""
    template = ((stateful_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any(volume.get("image") for volume in template.get("volumes") or ())


# A dataset's `lookupdb sync` on nodes: a DaemonSet that keeps the active generation in a folder of each node, for
# programs that map it (``spec.sync``).
#
# A folder of a node needs what no other pod of ours does. The kubelet makes it, and root owns it: the container is
# root, without any capability, so that it can write there and nowhere else. Kubernetes allows a hostPath under the Pod
# Security profile *privileged* alone. The pod mounts its own dataset's folder, so that no namespace reaches another's.


_VOLUME: Final = "node"
_UNAVAILABLE: Final = "10%"
"""Of the nodes, while pods are replaced: what is in their folders serves meanwhile."""


def render_sync(dataset: ObservedDataset, config: Config) -> tuple[Manifest, ...]:
    """The DaemonSet; nothing if the dataset asks for none."""
    if "sync" not in dataset.spec:
        return ()
    selector = names.selector(dataset.name, dataset.uid, names.SYNC)
    return (
        stamp(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": render_metadata(dataset, names.sync(dataset.name), names.SYNC),
                "spec": {
                    "revisionHistoryLimit": 2,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": _UNAVAILABLE}},
                    "selector": {"matchLabels": selector},
                    "template": _sync_render_template(dataset, config, selector),
                },
            }
        ),
    )


def _node_folder(dataset: ObservedDataset) -> str:
    """The folder of the dataset on each node: what stands in it is the contract of docs/how-to/sync.md."""
    return f"{dataset.spec['sync']['hostPath']}/{dataset.namespace}/{dataset.name}"


def _sync_render_template(dataset: ObservedDataset, config: Config, selector: dict[str, str]) -> dict[str, Any]:
    labels = names.labels(dataset.name, dataset.uid, names.SYNC) | {names.SYNC_LABEL: dataset.name}
    template = pods.render_template(
        dataset,
        config,
        names.SYNC,
        selector,
        labels,
        {"terminationGracePeriodSeconds": _GRACE_SECONDS, "containers": [_render_container(dataset, config)]},
        [
            {"name": _VOLUME, "hostPath": {"path": _node_folder(dataset), "type": "DirectoryOrCreate"}},
            # Optional: nodes are there before the first routing table is. Mounted whole: single files are not updated.
            {"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}},
            *access.render_volumes(dataset, config),
        ],
        spreads=False,
    )
    root = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    return {**template, "spec": {**template["spec"], "securityContext": root}}


def _render_container(dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    announced = config.announces and dataset.own_store is None
    options = {
        # Seen sooner than a ConfigMap, which a kubelet takes up to a minute to write.
        **({"--dataset": f"{dataset.namespace}/{dataset.name}@{dataset.uid}"} if announced else {}),
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--store": access.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--keep": dataset.spec["sync"]["keep"],
        "--host": config.pod_host,
        "--admin-port": names.ADMIN_PORT,
    }
    container = pods.render_container(
        dataset,
        config,
        names.SYNC,
        "sync",
        ["sync", names.SYNC_PATH, *(str(word) for pair in options.items() for word in pair)],
        pods.sync(dataset.spec),
        [
            {"name": _VOLUME, "mountPath": f"{names.SYNC_PATH}/{dataset.namespace}/{dataset.name}"},
            {"name": "table", "mountPath": names.TABLE_PATH, "readOnly": True},
        ],
        ports=[pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )
    return access.grant(container, dataset, config)


# NetworkPolicies: who may talk to a dataset's pods. What pods reach (store, source, names) is not limited.


_MOST_WORKERS: Final = 64
"""Of a shard server, by the CRD: a rollout with another number of workers needs no other policy."""

_KIND: Final = "NetworkPolicy"
_MAKERS: Final = ("DaemonSet", "Deployment", "StatefulSet")

Rule = dict[str, Any]


def render_network_policies(dataset: ObservedDataset, config: Config) -> tuple[Manifest, ...]:
    """One policy for each component; none at all without ``config.network_policies``.

    Shard servers answer the routers of their own dataset only; routers answer whom the dataset names, else
    ``config.router_clients``, or anyone; admin ports answer ``config.admin_clients`` (and the node's kubelet, which no
    policy keeps out).
    """
    if not config.network_policies:
        return ()
    admin = _allow(config.admin_clients, _port(names.ADMIN_PORT)) if config.admin_clients else []
    routers = {"podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, names.ROUTER)}}
    clients = dataset.spec["router"].get("clients") or config.router_clients  # the CRD takes no empty list
    public = [_port(names.ROUTER_PORT), *([_port(names.RESP_PORT)] if config.router_resp else [])]
    shards = {**_port(names.SHARD_PORT), "endPort": names.SHARD_PORT + _MOST_WORKERS - 1}
    return (
        _render_policy(dataset, names.SHARDS, [*_allow([routers], shards), *admin]),
        _render_policy(dataset, names.ROUTER, [*_allow(clients, *public), *admin]),
        _render_policy(dataset, names.BUILDER, []),
        *([_render_policy(dataset, names.PUSHER, [])] if delivery_type(dataset.spec) == IMAGE else []),
        *([_render_policy(dataset, names.SYNC, admin)] if "sync" in dataset.spec else []),
    )


def guarding_policy(manifest: Manifest) -> tuple[str, str] | None:
    """Kind and name of the policy of the pods that ``manifest`` makes; None if it makes none."""
    if manifest["kind"] not in _MAKERS:
        return None
    labels = manifest["metadata"].get("labels", {})
    return _KIND, names.network_policy(labels.get(names.DATASET, ""), labels.get(names.COMPONENT, ""))


def _render_policy(dataset: ObservedDataset, component: str, ingress: list[Rule]) -> Manifest:
    return stamp(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": _KIND,
            "metadata": render_metadata(dataset, names.network_policy(dataset.name, component), component),
            "spec": {
                "podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, component)},
                "policyTypes": ["Ingress"],
                **drop_empty(ingress=ingress),  # none: nobody
            },
        }
    )


def _allow(peers: Sequence[Mapping[str, Any]], *ports: Mapping[str, Any]) -> list[Rule]:
    """The rule that lets ``peers`` reach ``ports``; without peers it lets anyone in."""
    return [{**drop_empty(**{"from": list(peers)}), "ports": list(ports)}]


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
