"""A rollout: for each shard a StatefulSet and a PodDisruptionBudget, and one headless Service that names all pods.

A StatefulSet's name ends up in a label of its pods (controller-revision-hash) with 11 characters more, of which a
label has 63: it may have 52. The dataset's name has 40 at most, which leaves eight digits for the numbers of
rollout and shard together: 9,999 rollouts of 1,024 shards, ten million of ten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import pod, resources
from lookupdb_operator.manifests.build import TERMINATION_LOG
from lookupdb_operator.manifests.disruption import disruption_budget
from lookupdb_operator.manifests.metadata import digest, metadata, stamped
from lookupdb_operator.model import Dataset, Manifest
from lookupdb_operator.status import Generation, Rollout

GRACE_SECONDS: Final = 30
"""A server answers for 5 seconds after it was told to stop, then finishes what has arrived."""
SCALE_MANAGER: Final = f"{names.FIELD_MANAGER}-scale"
_ANY: Final = Rollout(rollout="r1", generation="", template="", started_at="")


def shards(
    dataset: Dataset, rollout: Rollout, generation: Generation, replicas: int, config: Config
) -> tuple[Manifest, ...]:
    """A rollout's objects, in the order in which they are applied.

    Only of a rollout whose template is ``template_digest`` of the same: another one's would be changed by it. Use
    ``scaled`` for that one.
    """
    return tuple(map(stamped, _shards(dataset, rollout, generation, replicas, config)))


def shard_stamps(
    dataset: Dataset, rollout: Rollout, generation: Generation, replicas: int, config: Config
) -> Iterator[tuple[str, str, str]]:
    """Kind, name and digest of what ``shards`` returns."""
    for manifest in _shards(dataset, rollout, generation, replicas, config):
        yield manifest["kind"], manifest["metadata"]["name"], digest(manifest)


def _shards(
    dataset: Dataset, rollout: Rollout, generation: Generation, replicas: int, config: Config
) -> Iterator[Manifest]:
    yield _service(dataset, rollout)
    for shard in range(generation.shards):
        template = _template(dataset, rollout, generation, config, shard)
        yield _stateful_set(dataset, rollout, shard, replicas, template)
        yield _disruption_budget(dataset, rollout, shard)


def service_and_budgets(dataset: Dataset, rollout: Rollout, generation: Generation) -> tuple[Manifest, ...]:
    """Of a rollout's objects those that have nothing of its template: they are known as long as it is."""
    budgets = (_disruption_budget(dataset, rollout, shard) for shard in range(generation.shards))
    return tuple(map(stamped, (_service(dataset, rollout), *budgets)))


def scaled(dataset: Dataset, rollout: Rollout, shard: int, replicas: int) -> Manifest:
    """The part of a shard's StatefulSet that says how many servers there are, for a rollout whose template is no
    longer what we would make of it. Applied by a manager of its own (``field_manager``): of our own, what it leaves
    out would be taken away."""
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": dataset.namespace, "name": name},
        "spec": {"replicas": replicas},
    }


def field_manager(manifest: Manifest) -> str:
    """In whose name ``manifest`` is applied."""
    is_scaled = manifest["kind"] == "StatefulSet" and "template" not in manifest["spec"]
    return SCALE_MANAGER if is_scaled else names.FIELD_MANAGER


def template_digest(dataset: Dataset, generation: Generation, config: Config) -> str:
    """Of everything that cannot change within a rollout: all that pods are made from, and how many shards there are.

    The StatefulSets of a rollout differ in nothing but the shard, so that one stands for all.
    """
    template = _template(dataset, _ANY, generation, config, 0)
    return digest([generation.generation, generation.shards, digest(_stateful_set(dataset, _ANY, 0, 1, template))])


def _service(dataset: Dataset, rollout: Rollout) -> Manifest:
    """Names pods as soon as they have an address: routers find out themselves which serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(dataset, names.rollout(dataset.name, rollout.rollout), names.SHARDS, _labels(rollout)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout),
            "ports": [
                pod.service_port("resp", names.SHARD_PORT, "resp"),
                pod.service_port("admin", names.ADMIN_PORT, "admin"),
            ],
        },
    }


def _stateful_set(dataset: Dataset, rollout: Rollout, shard: int, replicas: int, template: dict[str, Any]) -> Manifest:
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(dataset, name, names.SHARDS, _labels(rollout, shard)),
        "spec": {
            "serviceName": names.rollout(dataset.name, rollout.rollout),
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            # The template never changes. If somebody changes it all the same, no pod is restarted for it.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {
                "matchLabels": names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
            },
            "template": template,
        },
    }


def _disruption_budget(dataset: Dataset, rollout: Rollout, shard: int) -> Manifest:
    name = names.shard_set(dataset.name, rollout.rollout, shard)
    selector = names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
    return disruption_budget(metadata(dataset, name, names.SHARDS, _labels(rollout, shard)), selector)


def _labels(rollout: Rollout, shard: int | None = None) -> dict[str, str]:
    labels = {names.ROLLOUT: rollout.rollout, names.GENERATION: rollout.generation}
    return labels if shard is None else labels | {names.SHARD: str(shard)}


def _template(dataset: Dataset, rollout: Rollout, generation: Generation, config: Config, shard: int) -> dict[str, Any]:
    labels = names.labels(dataset.name, dataset.uid, names.SHARDS) | _labels(rollout, shard)
    amounts = resources.server(dataset.spec, generation.largest_shard_bytes)
    selector = names.selector(dataset.name, dataset.uid, names.SHARDS, rollout.rollout, shard)
    return pod.template(
        dataset,
        config,
        labels,
        {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "initContainers": [_fetcher(dataset, generation, config, shard, amounts)],
            "containers": [_server(dataset, config, shard, amounts)],
            **pod.placement(selector),
        },
        [{"name": "data", "emptyDir": {"sizeLimit": resources.shard_storage(generation.largest_shard_bytes)}}],
        annotations=pod.SAFE_TO_EVICT,
    )


def _fetcher(
    dataset: Dataset, generation: Generation, config: Config, shard: int, amounts: resources.Resources
) -> dict[str, Any]:
    """The only container of the pod that has the store's credentials."""
    flags = {
        "--store": config.store,
        "--cluster-id": config.cluster,
        "--namespace": dataset.namespace,
        "--dataset": dataset.name,
        "--uid": dataset.uid,
        "--generation": generation.generation,
        "--shard": str(shard),
        "--termination-log": TERMINATION_LOG,
    }
    return pod.container(
        dataset,
        config,
        "fetch",
        ["fetch", *(word for pair in flags.items() for word in pair), names.DATA_PATH],
        resources.fetcher(amounts),
        [{"name": "data", "mountPath": names.DATA_PATH}],
        envFrom=[pod.store_environment(dataset)],
    )


def _server(dataset: Dataset, config: Config, shard: int, amounts: resources.Resources) -> dict[str, Any]:
    workers = dataset.spec["serving"]["workers"]
    flags = {
        "--shard": shard,
        "--workers": workers,
        "--host": config.pod_host,
        "--port": names.SHARD_PORT,
        "--admin-port": names.ADMIN_PORT,
    }
    ports = [pod.port(f"resp-{i}" if i else "resp", names.SHARD_PORT + i) for i in range(workers)]
    return pod.container(
        dataset,
        config,
        "serve",
        ["serve", names.DATA_PATH, *(str(word) for pair in flags.items() for word in pair)],
        amounts,
        [{"name": "data", "mountPath": names.DATA_PATH, "readOnly": True}],
        ports=[*ports, pod.port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pod.probes(),
    )
