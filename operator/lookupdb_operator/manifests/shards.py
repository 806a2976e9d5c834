"""A rollout: a StatefulSet and a PodDisruptionBudget for each shard, one headless Service that names all pods and, with
delivery by image, the Job that pushes the images; the DaemonSet of `lookupdb sync`; and the NetworkPolicies.

A StatefulSet's name plus 11 characters becomes a pod label (controller-revision-hash) of at most 63, so it may have 52.
A dataset's name has at most 40, which leaves eight digits for rollout and shard together: 9,999 rollouts of 1,024
shards, or ten million of ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.image.artifact import shard_tag
from lookupdb.store.dataset import dataset_path
from lookupdb_operator import names
from lookupdb_operator.manifests import objects, pods
from lookupdb_operator.manifests.objects import digest, drop_empty, render_disruption_budget, render_metadata, stamp
from lookupdb_operator.manifests.pods import TERMINATION_LOG
from lookupdb_operator.model import Config, Manifest, ObservedDataset
from lookupdb_operator.status import GenerationStatus, RolloutStatus, select_shards

# Delivery of files to pods: a shard server's file (fetched, mapped from a volume, or from an image), pushed images,
# `lookupdb sync` on nodes, and NetworkPolicies.
#
# Only fetching needs an init container with access to the store. Servers wait for a missing file and, like fetchers,
# report it when they give up.


FETCH: Final = "Fetch"
VOLUME: Final = "Volume"
IMAGE: Final = "Image"
WAIT_SECONDS: Final = 30
"""Seconds for which a server waits for its file before it reports that and ends. Its startup probe allows 60."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The parts of a shard server's pod that deliver its file."""

    folder: str
    """The generation's folder, from which it serves."""
    volumes: tuple[Mapping[str, Any], ...]
    """The first is mounted at ``names.DATA_PATH``."""
    flags: Mapping[str, Any]
    """Additional flags of the server."""
    init_containers: tuple[Mapping[str, Any], ...] = ()
    """Containers that run before the server starts."""
    pull_secrets: tuple[str, ...] = ()
    """Additional pull secrets of the pod."""
    takes_volumes: bool = True
    """True if the volumes are the pod's own, so that the kubelet may change their group."""


def _render_delivery(
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, shard: int, amounts: pods.Resources
) -> Delivery:
    """Return the delivery for servers of ``shard``; ``amounts`` are a server's resources."""
    if delivery_type(dataset.spec) == VOLUME:
        # The volume shows the store's own folders.
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
    if delivery_type(dataset.spec) == IMAGE:
        # A tag's content never changes, so nodes need not ask for it again. The server verifies the file by the index
        # beside it, as always.
        image = dataset.spec["serving"]["delivery"]["image"]
        tag = shard_tag(dataset.name, dataset.uid, generation.generation, shard)
        mounted = {"reference": f"{image['repository']}:{tag}", "pullPolicy": "IfNotPresent"}
        return Delivery(
            folder=names.DATA_PATH,
            volumes=({"name": names.DATA_VOLUME, "image": mounted},),
            flags={"--wait": WAIT_SECONDS, "--termination-log": TERMINATION_LOG},
            pull_secrets=(image["pullSecretName"],) if "pullSecretName" in image else (),
            takes_volumes=False,
        )
    return Delivery(
        folder=names.DATA_PATH,
        volumes=(
            {"name": names.DATA_VOLUME, **_render_own(dataset, generation)},
            *objects.render_volumes(dataset, config),
        ),
        flags={},
        init_containers=(_render_fetcher(dataset, generation, config, shard, amounts),),
    )


def delivery_type(spec: Mapping[str, Any]) -> str:
    """Return ``Fetch``, ``Volume`` or ``Image``, from a completed spec."""
    return str(spec["serving"]["delivery"]["type"])


def uses_images(dataset: ObservedDataset) -> bool:
    """Return whether servers get their shards from images; False if the spec cannot be used."""
    return dataset.problem is None and delivery_type(dataset.spec) == IMAGE


def _render_own(dataset: ObservedDataset, generation: GenerationStatus) -> dict[str, Any]:
    """Return the volume for a fetched shard: on the node's disk, or a volume that exists as long as the pod."""
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
    """Return the only container of the pod with access to the store."""
    flags = {
        "--store": objects.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--namespace": dataset.namespace,
        "--dataset": dataset.name,
        "--uid": dataset.uid,
        "--generation": generation.generation,
        "--shard": shard,
        "--termination-log": TERMINATION_LOG,
    }
    fetcher = pods.render_container(
        dataset,
        config,
        names.SHARDS,
        "fetch",
        ["fetch", *pods.render_flags(flags), names.DATA_PATH],
        pods.fetcher(amounts),
        [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH}],
    )
    return objects.grant(fetcher, dataset, config)


# The push of a rollout: with delivery by image, a Job pushes the generation's images before servers are created.
#
# It belongs to the rollout, not to the build, so it also covers pinned generations, generations built before images
# were requested, and images that somebody removed. It skips what the registry has, and never gives up.


_TRIES: Final = 2**31 - 1
_GRACE_SECONDS: Final = 10
_DOCKER_KEY: Final = ".dockerconfigjson"
"""The key in a Secret of type kubernetes.io/dockerconfigjson."""
_CONFIG_VOLUME: Final = "registry"
_CA_VOLUME: Final = "registry-ca"
_PATHS: Final = {_CONFIG_VOLUME: names.REGISTRY_PATH, _CA_VOLUME: names.REGISTRY_CA_PATH}
"""Mount path of each volume."""


def _render_push(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, config: Config
) -> Manifest:
    """Return the Job, not stamped."""
    labels = {names.ROLLOUT: rollout.rollout, names.GENERATION: generation.generation}
    return names.JOB.make(
        render_metadata(dataset, names.push(dataset.name, rollout.rollout), names.PUSHER, labels),
        spec={"backoffLimit": _TRIES, "template": _render_template(dataset, generation, config, labels)},
    )


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
        {
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [objects.grant(container, dataset, config)],
        },
        [*volumes, *objects.render_volumes(dataset, config)],
        labels=labels,
        annotations=pods.SAFE_TO_EVICT,
        spreads=False,
    )


def _render_volumes(image: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the volumes of the registry's credentials and CAs, if the dataset names any, with only the
    required key of each Secret."""
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
        "--store": objects.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--dataset": f"{dataset.namespace}/{dataset.name}",
        "--uid": dataset.uid,
        "--repository": image["repository"],
        # The generation's index still says that it was rejected, although the annotation has overridden its gates.
        "--override-gates": generation.generation if generation.overridden else None,
        "--docker-config": f"{names.REGISTRY_PATH}/{names.REGISTRY_FILE}" if "pushSecretName" in image else None,
        "--ca-file": f"{names.REGISTRY_CA_PATH}/{names.REGISTRY_CA_FILE}" if "registryCA" in image else None,
        "--progress": "plain",
        "--log-format": "json",
        "--termination-log": TERMINATION_LOG,
    }
    return ["image", "push", generation.generation, *pods.render_flags(flags)]


# A StatefulSet with an image volume, only for a dry run: its answer shows whether the API server keeps such volumes.
# Without the feature, the API server silently drops them.


_NAME: Final = "lookupdb-image-probe"
_IMAGE: Final = "registry.invalid/lookupdb:probe"


def render_image_probe(namespace: str) -> Manifest:
    """Return the StatefulSet, without pods and with restricted pod security."""
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
    return names.STATEFUL_SET.make(
        {"namespace": namespace, "name": _NAME, "labels": labels},
        spec={
            "replicas": 0,
            "serviceName": _NAME,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    )


def has_image_volume(stateful_set: Mapping[str, Any]) -> bool:
    """Return whether the pods of ``stateful_set`` would have an image volume."""
    template = ((stateful_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any(volume.get("image") for volume in template.get("volumes") or ())


# `lookupdb sync` of a dataset: a DaemonSet that keeps the active generation in a folder of each node, for programs that
# map it (``spec.sync``).
#
# The kubelet creates the folder, and root owns it. So the container runs as root without any capability and can write
# only there. Kubernetes allows hostPath only under the Pod Security profile *privileged*. Each pod mounts only its own
# dataset's folder, so that no namespace reaches another's.


_VOLUME: Final = "node"
_UNAVAILABLE: Final = "10%"
"""Share of nodes whose pods may be replaced at the same time; their folders keep serving meanwhile."""


def render_sync(dataset: ObservedDataset, config: Config) -> tuple[Manifest, ...]:
    """Return the DaemonSet, or nothing if the dataset does not request one."""
    if "sync" not in dataset.spec:
        return ()
    selector = names.selector(dataset.name, dataset.uid, names.SYNC)
    return (
        stamp(
            names.DAEMON_SET.make(
                render_metadata(dataset, names.sync(dataset.name), names.SYNC),
                spec={
                    "revisionHistoryLimit": 2,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": _UNAVAILABLE}},
                    "selector": {"matchLabels": selector},
                    "template": _render_sync_template(dataset, config),
                },
            )
        ),
    )


def _render_sync_template(dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    # The content of the folder on each node is the contract of docs/how-to/sync.md.
    template = pods.render_template(
        dataset,
        config,
        names.SYNC,
        {"terminationGracePeriodSeconds": _GRACE_SECONDS, "containers": [_render_container(dataset, config)]},
        [
            {
                "name": _VOLUME,
                "hostPath": {
                    "path": f"{dataset.spec['sync']['hostPath']}/{dataset.namespace}/{dataset.name}",
                    "type": "DirectoryOrCreate",
                },
            },
            # Optional: nodes exist before the first routing table. Mounted whole: single files are not updated.
            {"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}},
            *objects.render_volumes(dataset, config),
        ],
        labels={names.SYNC_LABEL: dataset.name},
        spreads=False,
    )
    root = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    return {**template, "spec": {**template["spec"], "securityContext": root}}


def _render_container(dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    announced = config.announces and dataset.own_store is None
    options = {
        # Faster than a ConfigMap, which a kubelet may take a minute to update.
        "--dataset": f"{dataset.namespace}/{dataset.name}@{dataset.uid}" if announced else None,
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--store": objects.find_url(dataset, config),
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
        ["sync", names.SYNC_PATH, *pods.render_flags(options)],
        pods.sync(dataset.spec),
        [
            {"name": _VOLUME, "mountPath": f"{names.SYNC_PATH}/{dataset.namespace}/{dataset.name}"},
            {"name": "table", "mountPath": names.TABLE_PATH, "readOnly": True},
        ],
        ports=[pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )
    return objects.grant(container, dataset, config)


# NetworkPolicies limit who may connect to a dataset's pods, not what the pods connect to.


_MOST_WORKERS: Final = 64
"""Maximum number of workers of a shard server in the CRD, so that one policy fits all rollouts."""

_MAKERS: Final = ("DaemonSet", "Deployment", "StatefulSet")

Rule = dict[str, Any]


def render_network_policies(dataset: ObservedDataset, config: Config) -> tuple[Manifest, ...]:
    """Return one policy for each component, or none without ``config.network_policies``.

    Shard servers admit only their own dataset's routers. Routers admit the dataset's clients, else
    ``config.router_clients``, else anyone. Admin ports admit ``config.admin_clients``; no policy can block the node's
    kubelet. Spark's driver admits executors, and executors admit it and each other.
    """
    if not config.network_policies:
        return ()
    admin = _allow(config.admin_clients, _port(names.ADMIN_PORT)) if config.admin_clients else []
    routers, builders, executors = (
        {"podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, component)}}
        for component in (names.ROUTER, names.BUILDER, names.EXECUTOR)
    )
    is_distributed, blocks = pods.uses_spark(dataset.spec), _port(names.BLOCKS_PORT)
    to_driver = _allow([executors], _port(names.DRIVER_PORT), blocks) if is_distributed else []
    clients = dataset.spec["router"].get("clients") or config.router_clients  # the CRD takes no empty list
    public = [_port(names.ROUTER_PORT), *([_port(names.RESP_PORT)] if config.router_resp else [])]
    shards = {**_port(names.SHARD_PORT), "endPort": names.SHARD_PORT + _MOST_WORKERS - 1}
    return (
        _render_policy(dataset, names.SHARDS, [*_allow([routers], shards), *admin]),
        _render_policy(dataset, names.ROUTER, [*_allow(clients, *public), *admin]),
        _render_policy(dataset, names.BUILDER, to_driver),
        *([_render_policy(dataset, names.EXECUTOR, _allow([builders, executors], blocks))] if is_distributed else []),
        *([_render_policy(dataset, names.PUSHER, [])] if delivery_type(dataset.spec) == IMAGE else []),
        *([_render_policy(dataset, names.SYNC, admin)] if "sync" in dataset.spec else []),
    )


def guarding_policy(manifest: Manifest) -> tuple[str, str] | None:
    """Return kind and name of the policy for the servers of ``manifest``; None for objects without servers."""
    if manifest["kind"] not in _MAKERS:
        return None
    labels = manifest["metadata"].get("labels", {})
    return names.NETWORK_POLICY.name, names.network_policy(
        labels.get(names.DATASET, ""), labels.get(names.COMPONENT, "")
    )


def _render_policy(dataset: ObservedDataset, component: str, ingress: list[Rule]) -> Manifest:
    return stamp(
        names.NETWORK_POLICY.make(
            render_metadata(dataset, names.network_policy(dataset.name, component), component),
            spec={
                "podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, component)},
                "policyTypes": ["Ingress"],
                **drop_empty(ingress=ingress),  # no rule admits nobody
            },
        )
    )


def _allow(peers: Sequence[Mapping[str, Any]], *ports: Mapping[str, Any]) -> list[Rule]:
    """Return the rule that admits ``peers`` to ``ports``; without peers it admits anyone."""
    return [{**drop_empty(**{"from": list(peers)}), "ports": list(ports)}]


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}


_SERVER_GRACE_SECONDS: Final = 30
"""After SIGTERM a server answers for 5 seconds, then finishes what has arrived."""
_SCALE_MANAGER: Final = f"{names.FIELD_MANAGER}-scale"
_ANY: Final = RolloutStatus(rollout="r1", generation="", template="", started_at="")


def render_shards(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, replicas: int, config: Config
) -> tuple[Manifest, ...]:
    """Return a rollout's objects, in the order of application.

    Use it only if the digest of the rollout's template is still ``template_digest``: otherwise it would change the
    template. In that case, use ``render_scale``.
    """
    return tuple(map(stamp, _render_unstamped(dataset, rollout, generation, replicas, config)))


def shard_digests(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, replicas: int, config: Config
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and digest of what ``render_shards`` returns."""
    for manifest in _render_unstamped(dataset, rollout, generation, replicas, config):
        yield manifest["kind"], manifest["metadata"]["name"], digest(manifest)


def _render_unstamped(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, replicas: int, config: Config
) -> Iterator[Manifest]:
    yield _render_service(dataset, rollout)
    if delivery_type(dataset.spec) == IMAGE:
        yield _render_push(dataset, rollout, generation, config)
    for shard in select_shards(rollout.shard_ranges, generation.shards):
        template = _render_server_template(dataset, rollout, generation, config, shard)
        yield _render_stateful_set(dataset, rollout, shard, replicas, template, config)
        yield _disruption_budget(dataset, rollout, shard)


def render_service_and_budgets(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus
) -> tuple[Manifest, ...]:
    """Return the rollout's objects that do not depend on its template."""
    shards = select_shards(rollout.shard_ranges, generation.shards)
    budgets = (_disruption_budget(dataset, rollout, shard) for shard in shards)
    return tuple(map(stamp, (_render_service(dataset, rollout), *budgets)))


def render_scale(dataset: ObservedDataset, rollout: RolloutStatus, shard: int, replicas: int) -> Manifest:
    """Return the part of a shard's StatefulSet with the number of servers, for a rollout with an outdated template. A
    separate manager applies it (``field_manager``); the usual one would remove everything left out."""
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    return names.STATEFUL_SET.make({"namespace": dataset.namespace, "name": name}, spec={"replicas": replicas})


def field_manager(manifest: Manifest) -> str:
    """Return the field manager that applies ``manifest``."""
    is_scale = manifest["kind"] == "StatefulSet" and "template" not in manifest["spec"]
    return _SCALE_MANAGER if is_scale else names.FIELD_MANAGER


def template_digest(dataset: ObservedDataset, generation: GenerationStatus, config: Config) -> str:
    """Digest everything that cannot change within a rollout: the pods' inputs and the number of shards.

    A rollout's StatefulSets differ only in the shard, so one is enough.
    """
    template = _render_server_template(dataset, _ANY, generation, config, 0)
    parts: list[str | int] = [generation.generation, generation.shards]
    parts.append(digest(_render_stateful_set(dataset, _ANY, 0, 1, template, config)))
    if delivery_type(dataset.spec) == IMAGE:
        parts.append(digest(_render_push(dataset, _ANY, generation, config)))
    return digest(parts)


def _render_service(dataset: ObservedDataset, rollout: RolloutStatus) -> Manifest:
    """Publishes pods as soon as they have an address: routers find out themselves which ones serve."""
    return names.SERVICE.make(
        render_metadata(dataset, names.rollout(dataset.name, rollout.rollout), names.SHARDS, _labels(rollout)),
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout),
            "ports": [
                pods.render_service_port("resp", names.SHARD_PORT, "resp"),
                pods.render_service_port("admin", names.ADMIN_PORT, "admin"),
            ],
        },
    )


def _render_stateful_set(
    dataset: ObservedDataset,
    rollout: RolloutStatus,
    shard: int,
    replicas: int,
    template: dict[str, Any],
    config: Config,
) -> Manifest:
    labels = _labels(rollout, shard)
    if key := objects.password_key(dataset, config):
        labels[names.PASSWORD_KEY] = key  # from which a lost status is restored
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    return names.STATEFUL_SET.make(
        render_metadata(dataset, name, names.SHARDS, labels),
        spec={
            "serviceName": names.rollout(dataset.name, rollout.rollout),
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            # The template never changes. If somebody edits it, no pod restarts.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {
                "matchLabels": names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
            },
            "template": template,
        },
    )


def _disruption_budget(dataset: ObservedDataset, rollout: RolloutStatus, shard: int) -> Manifest:
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    selector = names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
    return render_disruption_budget(render_metadata(dataset, name, names.SHARDS, _labels(rollout, shard)), selector)


def _labels(rollout: RolloutStatus, shard: int | None = None) -> dict[str, str]:
    labels = {names.ROLLOUT: rollout.rollout, names.GENERATION: rollout.generation}
    return labels if shard is None else labels | {names.SHARD: str(shard)}


def _render_server_template(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, config: Config, shard: int
) -> dict[str, Any]:
    amounts = pods.server(dataset.spec, generation.largest_shard_bytes)
    delivered = _render_delivery(dataset, generation, config, shard, amounts)
    return pods.render_template(
        dataset,
        config,
        names.SHARDS,
        {
            "terminationGracePeriodSeconds": _SERVER_GRACE_SECONDS,
            **drop_empty(initContainers=list(delivered.init_containers)),
            "containers": [_render_server(dataset, rollout, config, shard, amounts, delivered)],
        },
        delivered.volumes,
        labels=_labels(rollout, shard),
        selector=names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard),
        annotations=pods.SAFE_TO_EVICT,
        takes_volumes=delivered.takes_volumes,
        pull_secrets=delivered.pull_secrets,
    )


def _render_server(
    dataset: ObservedDataset,
    rollout: RolloutStatus,
    config: Config,
    shard: int,
    amounts: pods.Resources,
    delivered: Delivery,
) -> dict[str, Any]:
    workers = dataset.spec["serving"]["workers"]
    flags = {
        "--shard": shard,
        "--workers": workers,
        "--host": config.pod_host,
        "--port": names.SHARD_PORT,
        "--admin-port": names.ADMIN_PORT,
        **objects.server_flags(dataset, config, rollout.rollout, shard),
        **delivered.flags,
    }
    ports = [pods.render_port(f"resp-{i}" if i else "resp", names.SHARD_PORT + i) for i in range(workers)]
    return pods.render_container(
        dataset,
        config,
        names.SHARDS,
        "serve",
        ["serve", delivered.folder, *pods.render_flags(flags)],
        amounts,
        [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH, "readOnly": True}],
        ports=[*ports, pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )
