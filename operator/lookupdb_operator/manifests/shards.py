"""A rollout: a StatefulSet and a PodDisruptionBudget for each shard, one headless Service that names all pods and, with
delivery by image, the Job that pushes the images.

A StatefulSet's name plus 11 characters becomes a pod label (controller-revision-hash) of at most 63, so it may have 52.
A dataset's name has at most 40, which leaves eight digits for rollout and shard together: 9,999 rollouts of 1,024
shards, or ten million of ten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import access, delivery, pods
from lookupdb_operator.manifests.delivery import render_push
from lookupdb_operator.manifests.objects import digest, drop_empty, render_disruption_budget, render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.status import GenerationStatus, RolloutStatus, select_shards

GRACE_SECONDS: Final = 30
"""After SIGTERM a server answers for 5 seconds, then finishes what has arrived."""
SCALE_MANAGER: Final = f"{names.FIELD_MANAGER}-scale"
_ANY: Final = RolloutStatus(rollout="r1", generation="", template="", started_at="")


def render_shards(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, replicas: int, config: Config
) -> tuple[Manifest, ...]:
    """Return a rollout's objects, in the order of application.

    Use it only if the rollout's template is still ``template_digest``, because it would change another one. Otherwise
    use
    ``render_scale``.
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
    if delivery.delivery_type(dataset.spec) == delivery.IMAGE:
        yield render_push(dataset, rollout, generation, config)
    for shard in select_shards(rollout.shard_ranges, generation.shards):
        template = _render_template(dataset, rollout, generation, config, shard)
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
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": dataset.namespace, "name": name},
        "spec": {"replicas": replicas},
    }


def field_manager(manifest: Manifest) -> str:
    """Return the field manager that applies ``manifest``."""
    is_scale = manifest["kind"] == "StatefulSet" and "template" not in manifest["spec"]
    return SCALE_MANAGER if is_scale else names.FIELD_MANAGER


def template_digest(dataset: ObservedDataset, generation: GenerationStatus, config: Config) -> str:
    """Digest everything that cannot change within a rollout: the pods' inputs and the number of shards.

    A rollout's StatefulSets differ only in the shard, so one is enough.
    """
    template = _render_template(dataset, _ANY, generation, config, 0)
    parts: list[str | int] = [generation.generation, generation.shards]
    parts.append(digest(_render_stateful_set(dataset, _ANY, 0, 1, template, config)))
    if delivery.delivery_type(dataset.spec) == delivery.IMAGE:
        parts.append(digest(render_push(dataset, _ANY, generation, config)))
    return digest(parts)


def _render_service(dataset: ObservedDataset, rollout: RolloutStatus) -> Manifest:
    """Publishes pods as soon as they have an address: routers find out themselves which ones serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": render_metadata(
            dataset, names.rollout(dataset.name, rollout.rollout), names.SHARDS, _labels(rollout)
        ),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout),
            "ports": [
                pods.render_service_port("resp", names.SHARD_PORT, "resp"),
                pods.render_service_port("admin", names.ADMIN_PORT, "admin"),
            ],
        },
    }


def _render_stateful_set(
    dataset: ObservedDataset,
    rollout: RolloutStatus,
    shard: int,
    replicas: int,
    template: dict[str, Any],
    config: Config,
) -> Manifest:
    labels = _labels(rollout, shard) | access.server_labels(dataset, config)
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": render_metadata(dataset, name, names.SHARDS, labels),
        "spec": {
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
    }


def _disruption_budget(dataset: ObservedDataset, rollout: RolloutStatus, shard: int) -> Manifest:
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    selector = names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
    return render_disruption_budget(render_metadata(dataset, name, names.SHARDS, _labels(rollout, shard)), selector)


def _labels(rollout: RolloutStatus, shard: int | None = None) -> dict[str, str]:
    labels = {names.ROLLOUT: rollout.rollout, names.GENERATION: rollout.generation}
    return labels if shard is None else labels | {names.SHARD: str(shard)}


def _render_template(
    dataset: ObservedDataset, rollout: RolloutStatus, generation: GenerationStatus, config: Config, shard: int
) -> dict[str, Any]:
    labels = names.labels(dataset.name, dataset.uid, names.SHARDS) | _labels(rollout, shard)
    amounts = pods.server(dataset.spec, generation.largest_shard_bytes)
    delivered = delivery.render_delivery(dataset, generation, config, shard, amounts)
    selector = names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
    return pods.render_template(
        dataset,
        config,
        names.SHARDS,
        selector,
        labels,
        {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            **drop_empty(initContainers=list(delivered.init_containers)),
            "containers": [_render_server(dataset, rollout, config, shard, amounts, delivered)],
        },
        delivered.volumes,
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
    delivered: delivery.Delivery,
) -> dict[str, Any]:
    workers = dataset.spec["serving"]["workers"]
    flags = {
        "--shard": shard,
        "--workers": workers,
        "--host": config.pod_host,
        "--port": names.SHARD_PORT,
        "--admin-port": names.ADMIN_PORT,
        **access.server_flags(dataset, config, rollout.rollout, shard),
        **delivered.flags,
    }
    ports = [pods.render_port(f"resp-{i}" if i else "resp", names.SHARD_PORT + i) for i in range(workers)]
    return pods.render_container(
        dataset,
        config,
        names.SHARDS,
        "serve",
        ["serve", delivered.folder, *(str(word) for pair in flags.items() for word in pair)],
        amounts,
        [{"name": names.DATA_VOLUME, "mountPath": names.DATA_PATH, "readOnly": True}],
        ports=[*ports, pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )
