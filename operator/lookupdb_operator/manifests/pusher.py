"""The push of a rollout: with delivery by image, the Job that pushes the images of its generation before its servers
are made.

It belongs to the rollout, and not to the build: so it comes for a generation that was built before anybody asked for
images, for one that is pinned, and for one whose images somebody has removed. What the registry has is not sent again.
It never gives up, as an init container that fetches does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import pods, resources, store_access
from lookupdb_operator.manifests.builder import TERMINATION_LOG
from lookupdb_operator.manifests.metadata import render_metadata
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.status import GenerationStatus, RolloutStatus

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
    amounts = resources.fetcher(resources.server(dataset.spec, generation.largest_shard_bytes))
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
            "containers": [store_access.grant(container, dataset, config)],
        },
        [*volumes, *store_access.render_volumes(dataset, config)],
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
        "--store": store_access.find_url(dataset, config),
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
