"""How a shard server gets its file, by spec.serving.delivery: fetched into a volume of the pod's own before it starts,
mapped from a volume that others fill, or from a container image that the rollout's push has made (``pusher``).

What is not fetched needs no init container, and nothing in its pod reaches the store. The server itself waits for what
is not there yet, and says what it lacks when it gives up, as a fetcher does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.image.artifact import shard_tag
from lookupdb.store.layout import dataset_path
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import pods, resources, store_access
from lookupdb_operator.manifests.builder import TERMINATION_LOG
from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.status import GenerationStatus

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
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, shard: int, amounts: resources.Resources
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
            *store_access.render_volumes(dataset, config),
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
        return {"emptyDir": {"sizeLimit": resources.shard_storage(shard_bytes)}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": resources.shard_volume(shard_bytes)}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


def _render_fetcher(
    dataset: ObservedDataset, generation: GenerationStatus, config: Config, shard: int, amounts: resources.Resources
) -> dict[str, Any]:
    """The only container of the pod that can reach the store."""
    flags = {
        "--store": store_access.find_url(dataset, config),
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
        resources.fetcher(amounts),
        [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH}],
    )
    return store_access.grant(fetcher, dataset, config)
