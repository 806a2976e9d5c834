"""Common parts of all pods: restricted pod security, no API token, and the dataset's settings for their component. Also
the Job of a build, and Spark's driver and executors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from lookupdb.wording import parse_quantity
from lookupdb_operator import names
from lookupdb_operator.manifests import objects
from lookupdb_operator.manifests.objects import digest, drop_empty, drop_unsaid, read_digest, render_metadata, stamp
from lookupdb_operator.model import Config, Manifest, ObservedDataset
from lookupdb_operator.status import BuildStatus, replace

# Placement and security of pods: the dataset's settings for a component, or defaults.


Placement = dict[str, Any]
"""Members of a pod's spec."""

_MEMBERS: Final = ("nodeSelector", "tolerations", "priorityClassName", "serviceAccountName")
_POD_TERMS: Final = ("podAffinity", "podAntiAffinity")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def render_placement(
    scheduling: Mapping[str, Any], pod: Mapping[str, Any], selector: Mapping[str, str], *, spreads: bool
) -> Placement:
    """Return the placement of the pods that ``selector`` selects. A field of ``pod`` replaces that of ``scheduling``;
    with ``spreads``, pods are by default spread over nodes and zones."""
    own: Placement = {}
    if spreads:
        # Spread if there are several nodes or zones; on one node the pods still run. The preference for other zones is
        # not a spread constraint: the scheduler ignores nodes without a constraint's label, so that in a cluster
        # without zones nothing would be spread.
        pods = {"labelSelector": {"matchLabels": dict(selector)}}
        by_zone = {"weight": 100, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone", **pods}}
        by_node = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **pods}
        own = {"affinity": {"podAntiAffinity": {_PREFERRED: [by_zone]}}, "topologySpreadConstraints": [by_node]}
    given = {**own, **scheduling, **pod}
    constraints = [_with_selector(constraint, selector) for constraint in given.get("topologySpreadConstraints", ())]
    affinity = own.get("affinity", {}) | {
        name: _complete_terms(member, selector) if name in _POD_TERMS else member
        for name, member in pod.get("affinity", {}).items()
    }
    members = {name: given.get(name) for name in _MEMBERS}
    placement: Placement = drop_unsaid({**members, "affinity": affinity, "topologySpreadConstraints": constraints})
    return placement


def _complete_terms(affinity: Mapping[str, Any], selector: Mapping[str, str]) -> Placement:
    """Return an affinity to pods, with ``selector`` in every term that has none."""
    required = [_with_selector(term, selector) for term in affinity.get(_REQUIRED, ())]
    preferred = [
        {**term, "podAffinityTerm": _with_selector(term["podAffinityTerm"], selector)}
        for term in affinity.get(_PREFERRED, ())
    ]
    return {_REQUIRED: required, _PREFERRED: preferred}


def _with_selector(term: Mapping[str, Any], selector: Mapping[str, str]) -> dict[str, Any]:
    """Return ``term`` with ``selector`` unless it has its own: a user cannot know the labels of future rollouts."""
    return {**term, "labelSelector": term.get("labelSelector", {"matchLabels": dict(selector)})}


# Resources of containers: the dataset's, or defaults.
#
# Every container requests cpu, memory and ephemeral-storage, so that quotas on requests accept the pods and nodes have
# room for their files. The CRD ensures that declared requests do not exceed limits.


Resources = dict[str, dict[str, str]]
"""Requests and limits, by resource."""

MI: Final = 1 << 20
_PROCESS_BYTES: Final = 64 * MI
"""Memory of a shard server's supervisor, and of each worker, without the shard."""
_BUILD_PERCENT: Final = 80
"""The percentage of its memory limit that a builder uses; the rest covers what it cannot count."""
_FETCH_MEMORY: Final = "128Mi"
"""Memory request of the container that fetches a shard; it streams, whatever the size. A pod requests the maximum of
its containers, and a server requests at least as much by default."""
_FETCH_MEMORY_LIMIT: Final = "256Mi"
_SPARE_STORAGE: Final = 64 * MI
"""Disk space besides known files: logs, an index, /tmp."""
TMP_STORAGE: Final = f"{_SPARE_STORAGE // MI}Mi"
"""Size limit of /tmp. Only libraries may write there."""
_VOLUME_FACTOR: Final = 1.1
_VOLUME_SPARE: Final = 512 * MI
_STORAGE: Final = "ephemeral-storage"
_BUILDER_REQUESTS: Final = {"cpu": "100m"}
_ROUTER_REQUESTS: Final = {"cpu": "50m", "memory": "128Mi", _STORAGE: TMP_STORAGE}
_SYNC_REQUESTS: Final = {"cpu": "50m", "memory": "64Mi", _STORAGE: TMP_STORAGE}
_SERVER_REQUESTS: Final = {"cpu": "50m"}
_MOST_THREADS: Final = 256
"""Maximum number of threads of `lookupdb build`."""


def builder(spec: Mapping[str, Any]) -> Resources:
    """Return a builder's resources, by ``spec.build.resources``. By default it requests its memory limit; the disk
    request covers its scratch volume."""
    declared = _read_resources(spec["build"]["resources"])
    storage = {_STORAGE: str(spec["build"]["scratchSize"])}
    return _with_requests(declared, _BUILDER_REQUESTS | {"memory": declared["limits"]["memory"]} | storage)


def builder_memory(resources: Resources) -> int:
    """Return the bytes that a builder with these resources may use."""
    return int(parse_quantity(resources["limits"]["memory"]) * _BUILD_PERCENT / 100)


def builder_threads(resources: Resources) -> int | None:
    """Return the number of cores for a builder with these resources; None for all."""
    limit = resources["limits"].get("cpu")
    return min(max(math.ceil(parse_quantity(limit)), 1), _MOST_THREADS) if limit else None


def router(spec: Mapping[str, Any]) -> Resources:
    """Return a router's resources, by ``spec.router.resources``."""
    return _with_requests(_read_resources(spec["router"]["resources"]), _ROUTER_REQUESTS)


def sync(spec: Mapping[str, Any]) -> Resources:
    """Return the resources of a `lookupdb sync`, by ``spec.sync.resources``."""
    return _with_requests(_read_resources(spec["sync"]["resources"]), _SYNC_REQUESTS)


def server(spec: Mapping[str, Any], largest_shard_bytes: int) -> Resources:
    """Return a shard server's resources, by ``spec.serving``; undeclared memory follows from the generation.

    By default, the memory request equals the limit: the kubelet counts the shard's used pages and first evicts pods
    above their request. All shards get what the largest one needs, because their pods must not differ.
    """
    serving = spec["serving"]
    declared = _read_resources(serving.get("resources") or {})
    # Memory for its processes, and for the hot part of its shard.
    needed_bytes = _PROCESS_BYTES * (1 + serving["workers"]) + serving["hotFraction"] * largest_shard_bytes
    needed = f"{math.ceil(needed_bytes / MI)}Mi"
    if "memory" not in declared["limits"]:
        declared["limits"]["memory"] = max(needed, declared["requests"].get("memory", needed), key=parse_quantity)
    # On a volume, the shard does not use the node's disk.
    is_on_node = serving["delivery"]["type"] == "Fetch" and "storageClassName" not in serving
    storage = {_STORAGE: shard_storage(largest_shard_bytes) if is_on_node else TMP_STORAGE}
    return _with_requests(declared, _SERVER_REQUESTS | {"memory": declared["limits"]["memory"]} | storage)


def shard_storage(shard_bytes: int) -> str:
    """Return the disk space for the shard file on a node, in whole Mi."""
    return f"{math.ceil((shard_bytes + _SPARE_STORAGE) / MI)}Mi"


def shard_volume(shard_bytes: int) -> str:
    """Return the size of a shard's own volume, in whole Mi, with room for the file system: ext4 takes 2 % and a journal
    of up to 1 GiB; XFS needs at least 300 MiB."""
    return f"{math.ceil((shard_bytes * _VOLUME_FACTOR + _VOLUME_SPARE) / MI)}Mi"


def fetcher(server: Resources) -> Resources:
    """Return the resources of the container that fetches a shard: the server's, with less memory.

    So it also meets quotas and limit ranges on other resources (a cpu limit, ephemeral-storage).
    """
    return {
        "requests": server["requests"] | {"memory": _FETCH_MEMORY},
        "limits": server["limits"] | {"memory": _FETCH_MEMORY_LIMIT},
    }


def _read_resources(resources: Mapping[str, Any]) -> Resources:
    """Return ``resources`` as text; YAML may hold numbers."""
    parts = {part: resources.get(part) or {} for part in ("requests", "limits")}
    return {part: {name: str(amount) for name, amount in amounts.items()} for part, amounts in parts.items()}


def _with_requests(declared: Resources, defaults: Mapping[str, str]) -> Resources:
    """Return ``declared`` with ``defaults`` for missing requests, within the limits."""
    limits = declared["limits"]
    defaults = {name: min(amount, limits.get(name, amount), key=parse_quantity) for name, amount in defaults.items()}
    return {"requests": defaults | declared["requests"], "limits": limits}


_SECTIONS: Final = {
    names.BUILDER: "build",
    names.EXECUTOR: "build",
    names.PUSHER: "build",
    names.SHARDS: "serving",
    names.ROUTER: "router",
}
"""The section of the spec for each component."""
_SYNC_PLACEMENT: Final[Mapping[str, Any]] = {"nodeSelector": {}, "tolerations": []}
SAFE_TO_EVICT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Annotations of pods with a disposable emptyDir, so that an autoscaler may remove their node."""

TMP: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - an emptyDir of the pod's own
_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
_TMP_VOLUME: Final = {"name": "tmp", "emptyDir": {"sizeLimit": TMP_STORAGE}}


def render_template(
    dataset: ObservedDataset,
    config: Config,
    component: str,
    members: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    *,
    labels: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spreads: bool = True,
    takes_volumes: bool = True,
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a pod template. ``members`` are members of the pod's spec, such as its containers; ``labels`` are added to
    those of the component. ``selector`` selects the pods that are placed apart; by default those of the component.

    Without ``takes_volumes`` the kubelet does not change the group of mounted volumes.
    """
    pod = _read_pod_fields(dataset, component)
    own_secrets = (secret["name"] for secret in dataset.spec.get("imagePullSecrets") or ())
    secrets = dict.fromkeys([*own_secrets, *pull_secrets, *config.image_pull_secrets])
    user = {name: number for name, number in config.pod_security.items() if takes_volumes or name != "fsGroup"}
    security = {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}
    chosen = selector or names.selector(dataset.name, dataset.uid, component)
    spec: dict[str, Any] = {
        **members,
        **render_placement(dataset.spec["scheduling"], pod, chosen, spreads=spreads),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "volumes": [*volumes, _TMP_VOLUME],
        **drop_empty(imagePullSecrets=[{"name": name} for name in secrets]),
    }
    # Labels for selectors take precedence, whatever the CRD allows.
    own_labels = names.labels(dataset.name, dataset.uid, component) | dict(labels or {})
    pod_labels = {**config.pod_labels, **pod.get("labels", {}), **own_labels}
    pod_annotations = {**(annotations or {}), **pod.get("annotations", {})}
    return {"metadata": {"labels": pod_labels, **drop_empty(annotations=pod_annotations)}, "spec": spec}


def _read_pod_fields(dataset: ObservedDataset, component: str) -> Mapping[str, Any]:
    """Return the dataset's settings for pods of ``component``. For `lookupdb sync`, only ``spec.sync`` counts."""
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
    """Return one container that runs ``lookupdb`` with ``arguments``."""
    # The dataset's variables take precedence over those for traces: no name may occur twice.
    own = [drop_unsaid(variable) for variable in _read_pod_fields(dataset, component).get("extraEnv", ())]
    taken = {variable["name"] for variable in own}
    given = [dict(variable) for variable in config.tracing_env if component in (names.ROUTER, names.BUILDER)]
    if component == names.BUILDER:  # keep the traces of all builds, which are few
        given = [variable for variable in given if not variable["name"].startswith(_SAMPLER)]
    return {
        "name": name,
        "image": dataset.spec.get("image") or config.image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["lookupdb"],
        "args": list(arguments),
        # Libraries look for settings in HOME, which this user does not have.
        "env": [
            {"name": "LOOKUPDB_LOG_FORMAT", "value": "json"},
            {"name": "HOME", "value": TMP["mountPath"]},
            *(variable for variable in given if variable["name"] not in taken),
            *own,
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


def render_flags(flags: Mapping[str, Any]) -> list[str]:
    """Return ``flags`` and their values as words of a command line. A flag whose value is None is left out."""
    return [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]


def render_port(name: str, number: int) -> dict[str, Any]:
    """Return a container's port. Server-side apply identifies ports by number and protocol."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def render_service_port(name: str, number: int, target: str, **members: Any) -> dict[str, Any]:
    """Return a Service's port for the containers' port ``target``."""
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP", **members}


def render_probes() -> dict[str, Any]:
    """Return the probes of shard servers and routers. The admin port answers from the start, however long verifying a
    shard takes. Any answer counts as alive, so that a busy node restarts nothing."""
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


# A build: its Job, and the ConfigMap with the dataset for the builder.


CONTENT: Final = ("source", "key", "value", "duplicates", "shards", "gates")
"""The members of the spec that a builder reads, besides the success file's name."""
TERMINATION_LOG: Final = "/dev/termination-log"
_GRACE_SECONDS: Final = 30
_ANY: Final = BuildStatus(generation="g1", content="", refresh="", digest="", started_at="")


def render_builder(dataset: ObservedDataset, build: BuildStatus, config: Config) -> tuple[Manifest, ...]:
    """Return a build's ConfigMap and Job, in the order of application."""
    template, files = _render_template(dataset, build, config), {}
    if uses_spark(dataset.spec):
        template = _make_driver(template, dataset, config)
        executor = _make_executor(_render_template(dataset, build, config, names.EXECUTOR), dataset, config)
        files = {names.EXECUTOR_FILE: _write_json(executor)}
    job = names.JOB.make(
        _render_metadata(dataset, build),
        spec={
            "backoffLimit": 0,  # the operator judges a failure and times the next attempt
            "activeDeadlineSeconds": dataset.spec["build"]["deadlineSeconds"],
            "template": template,
        },
    )
    return _render_dataset_file(dataset, build, files), stamp(job)


def build_digest(dataset: ObservedDataset, config: Config) -> str:
    """Digest everything that builds are made from, except what differs for each build: generation, active generation,
    fingerprint. When the digest changes, a new build replaces a stuck one."""
    rendered = render_builder(dataset, replace(_ANY, adopt=adopted_address(dataset)), config)
    return digest([read_digest(manifest) for manifest in rendered])


def has_builder_image(dataset: ObservedDataset, config: Config) -> bool:
    """Return whether builds can start: only Spark builds need a named image."""
    return not uses_spark(dataset.spec) or bool(_find_image(dataset, config))


def adopted_address(dataset: ObservedDataset) -> str:
    """Return what to adopt, as a builder's argument: ``uid`` or ``uid/gN``; empty for nothing."""
    adopt = dataset.spec.get("adopt")
    if not adopt:
        return ""
    generation = adopt.get("generation")
    return f"{adopt['uid']}/{generation}" if generation else str(adopt["uid"])


def _render_dataset_file(dataset: ObservedDataset, build: BuildStatus, files: Mapping[str, str]) -> Manifest:
    spec = {member: dataset.spec[member] for member in CONTENT}
    if uses_spark(dataset.spec):
        spec["build"] = {member: dataset.spec["build"][member] for member in ("engine", "spark")}
    if success_file := dataset.spec["refresh"].get("successFile"):
        spec["refresh"] = {"successFile": success_file}
    resource = names.DATASET_KIND.make(
        {"namespace": dataset.namespace, "name": dataset.name, "uid": dataset.uid}, spec=spec
    )
    return stamp(
        names.CONFIG_MAP.make(
            _render_metadata(dataset, build), data={names.DATASET_FILE: _write_json(resource), **files}
        )
    )


def _write_json(document: Mapping[str, Any]) -> str:
    """Return ``document`` as JSON, which is YAML. Members are sorted, because the API server's order means nothing."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2).decode() + "\n"


def _render_metadata(dataset: ObservedDataset, build: BuildStatus) -> dict[str, Any]:
    labels = {names.GENERATION: build.generation}
    return render_metadata(dataset, names.build(dataset.name, build.generation), names.BUILDER, labels)


def _render_template(
    dataset: ObservedDataset, build: BuildStatus, config: Config, component: str = names.BUILDER
) -> dict[str, Any]:
    source, amounts = dataset.spec["source"], builder(dataset.spec)
    volumes: list[dict[str, Any]] = [
        {"name": "dataset", "configMap": {"name": names.build(dataset.name, build.generation)}},
        {"name": "scratch", "emptyDir": {"sizeLimit": str(dataset.spec["build"]["scratchSize"])}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "dataset", "mountPath": names.DATASET_PATH, "readOnly": True},
        {"name": "scratch", "mountPath": names.SCRATCH_PATH},
    ]
    if volume := _source_volume(dataset, build):
        volumes.append({"name": "source", **volume})
        mounts.append({"name": "source", "mountPath": names.SOURCE_PATH, "readOnly": True})
    optional = {"optional": True} if build.adopt else {}
    secrets = [{"secretRef": {"name": source["secretName"], **optional}}] if source.get("secretName") else []
    arguments = _arguments(dataset, build, config, amounts)
    container = render_container(
        dataset, config, component, "build", arguments, amounts, mounts, **drop_empty(envFrom=secrets)
    )
    return render_template(
        dataset,
        config,
        component,
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [objects.grant(container, dataset, config)],
        },
        [*volumes, *objects.render_volumes(dataset, config)],
        labels={names.GENERATION: build.generation},
        spreads=False,
        takes_volumes=not source.get("volume"),
    )


def _source_volume(dataset: ObservedDataset, build: BuildStatus) -> dict[str, Any] | None:
    """Return the volume with the source's files, if any. A builder that adopts gets no claim, because a pod does not
    start without it, and the source may be gone."""
    volume = dataset.spec["source"].get("volume")
    if not volume:
        return None
    if claim := volume.get("claimName"):
        return None if build.adopt else {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    optional = {"optional": True} if build.adopt else {}
    return {"configMap": {"name": volume["configMapName"], **optional}}


def _arguments(dataset: ObservedDataset, build: BuildStatus, config: Config, amounts: Resources) -> list[str]:
    flags = {
        "--file": f"{names.DATASET_PATH}/{names.DATASET_FILE}",
        "--store": objects.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--generation": build.generation,
        "--build-id": build.started_at or None,
        "--active": build.active or None,
        "--active-records": build.active_records or None,
        "--unless-fingerprint": build.unless_fingerprint or None,
        "--unless-success-file": build.unless_success_file or None,
        "--unless-refused": build.unless_refused or None,
        "--adopt": build.adopt or None,
        "--memory-limit": builder_memory(amounts),
        "--threads": builder_threads(amounts),
        "--scratch": names.SCRATCH_PATH,
        "--volume": names.SOURCE_PATH if _source_volume(dataset, build) else None,
        "--progress": "plain",
        "--log-format": "json",
        "--termination-log": TERMINATION_LOG,
    }
    words = render_flags(flags)
    if dataset.own_store is not None:  # no sweep knows the store, so the builder removes earlier generations
        words += ["--keep", str(dataset.spec["keepGenerations"])]
        words += [word for generation in build.protect for word in ("--protect", generation)]
    return ["build", *words, "--no-local-files"]


# Builds by Spark: the Job's pod is the driver, in client mode, and makes executors from a template that is written
# here. Executors are pods of the dataset's namespace. Kubernetes removes them with their owner, the driver's pod.


SPARK: Final = "Spark"
_MASTER: Final = "k8s://https://kubernetes.default.svc"
_POD_NAME: Final = "LOOKUPDB_POD_NAME"
_POD_IP: Final = "LOOKUPDB_POD_IP"
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
_SCRATCH: Final = "spark-local-dir-1"
"""Spark keeps an executor's rows in volumes whose names begin with this. Without one, it creates its own."""
_OF_DRIVER: Final = ("dataset", "scratch")
"""Volumes of a builder that executors lack, or have under another name."""


def uses_spark(spec: Mapping[str, Any]) -> bool:
    """Return whether Spark builds datasets of a completed spec. Pushes are copied without Spark."""
    return bool(spec["build"]["engine"] == SPARK and not spec["source"].get("pushed"))


def _find_image(dataset: ObservedDataset, config: Config) -> str:
    """Return the image of drivers and executors; empty if none is named."""
    return dataset.spec["build"]["spark"].get("image") or config.spark_image


def _driver_flags(dataset: ObservedDataset, config: Config) -> list[str]:
    """Return a driver's flags, besides a builder's. They override the dataset's settings. The CRD already forbids the
    dataset to set them. Spark itself replaces ``${env:…}``.
    """
    settings = {
        "spark.kubernetes.namespace": dataset.namespace,
        "spark.kubernetes.container.image": _find_image(dataset, config),
        "spark.kubernetes.container.image.pullPolicy": config.image_pull_policy,
        "spark.kubernetes.driver.pod.name": f"${{env:{_POD_NAME}}}",  # the owner of executors
        "spark.kubernetes.executor.podNamePrefix": f"${{env:{_POD_NAME}}}",
        "spark.kubernetes.executor.podTemplateFile": f"{names.DATASET_PATH}/{names.EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": names.EXECUTOR,
        # So the driver needs rights to pods only, not to ConfigMaps, Services or claims.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.driver.host": f"${{env:{_POD_IP}}}",
        "spark.driver.bindAddress": f"${{env:{_POD_IP}}}",
        "spark.driver.port": str(names.DRIVER_PORT),
        "spark.driver.blockManager.port": str(names.BLOCKS_PORT),
        "spark.blockManager.port": str(names.BLOCKS_PORT),
        "spark.ui.enabled": "false",
        "spark.authenticate": "true",  # a secret for each build
        "spark.network.crypto.enabled": "true",
    }
    pairs = (f"{name}={value}" for name, value in settings.items())
    return ["--spark-master", _MASTER, *(word for pair in pairs for word in ("--spark-conf", pair))]


def _make_driver(template: Mapping[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return a builder's ``template`` for a driver: with an API token and its address."""
    (container,) = template["spec"]["containers"]
    fields = {_POD_NAME: "metadata.name", _POD_IP: "status.podIP"}
    variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    others = [variable for variable in container["env"] if variable["name"] != _LOCAL_DIRS]  # no name may occur twice
    driver = {
        **container,
        "image": _find_image(dataset, config),
        "args": [*container["args"], *_driver_flags(dataset, config)],
        "env": [*others, *variables, {"name": _LOCAL_DIRS, "value": names.SCRATCH_PATH}],
        "ports": [render_port("driver", names.DRIVER_PORT), render_port("blocks", names.BLOCKS_PORT)],
    }
    account = dataset.spec["build"]["spark"].get("serviceAccountName") or config.spark_service_account
    pod = {"containers": [driver], "serviceAccountName": account, "automountServiceAccountToken": True}
    return {**template, "spec": {**template["spec"], **pod}}


def _make_executor(template: Mapping[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return a builder's ``template``, with an executor's labels, as the pod from which Spark makes executors. Spark
    adds what it decides: name, owner, image, arguments, variables, memory and cpu."""
    (container,) = template["spec"]["containers"]
    scratch = {"name": _SCRATCH, "mountPath": names.SCRATCH_PATH}
    storage = {
        part: {name: size for name, size in sizes.items() if name == _STORAGE}
        for part, sizes in container["resources"].items()
    }
    executor = {
        **{name: member for name, member in container.items() if name != "args"},
        "name": names.EXECUTOR,
        "image": _find_image(dataset, config),
        "command": ["python", "-m", "lookupdb.spark.pods"],
        "workingDir": names.SCRATCH_PATH,
        "resources": drop_empty(**storage),
        "volumeMounts": [scratch, *(mount for mount in container["volumeMounts"] if mount["name"] not in _OF_DRIVER)],
    }
    volumes = template["spec"]["volumes"]
    size = next(volume["emptyDir"] for volume in volumes if volume["name"] == "scratch")
    pod = {
        "containers": [executor],
        "volumes": [
            {"name": _SCRATCH, "emptyDir": size},
            *(volume for volume in volumes if volume["name"] not in _OF_DRIVER),
        ],
        # An executor ends when it loses its driver. If it hangs, the kubelet ends it.
        "activeDeadlineSeconds": dataset.spec["build"]["deadlineSeconds"],
    }
    metadata, spec = template["metadata"], {**template["spec"], **pod}
    return names.POD.make(metadata, spec=spec)
