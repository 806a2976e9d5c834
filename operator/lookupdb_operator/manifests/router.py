"""A dataset's routers: Deployment, Service, PodDisruptionBudget, and the autoscaler where one is asked for."""

from __future__ import annotations

from typing import Any, Final

from lookupdb.route import flags
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import pod, resources
from lookupdb_operator.manifests.disruption import disruption_budget
from lookupdb_operator.manifests.metadata import metadata, stamped
from lookupdb_operator.model import Dataset, Manifest

SPARE_SECONDS: Final = 15
"""On top of the drain time, before a router is killed: it finishes within 5 seconds, or ends itself."""


def routers(dataset: Dataset, config: Config) -> tuple[Manifest, ...]:
    """A dataset's routers. They start without a routing table, and wait for one."""
    about = metadata(dataset, names.router(dataset.name), names.ROUTER)
    selector = names.selector(dataset.name, dataset.uid, names.ROUTER)
    fixed = (
        _deployment(dataset, config, about, selector),
        _service(about, selector),
        stamped(disruption_budget(about, selector)),
    )
    autoscaling = dataset.spec["router"].get("autoscaling")
    return (*fixed, _autoscaler(about, autoscaling)) if autoscaling else fixed


def router_replicas(dataset: Dataset, present: int) -> int:
    """How many routers there should be where ``present`` are asked for now: with an autoscaler as many as it has
    chosen, within its bounds. It is not left out of what is applied: what nobody owns any more becomes one."""
    router = dataset.spec["router"]
    if autoscaling := router.get("autoscaling"):
        return int(min(max(present, autoscaling["minReplicas"]), autoscaling["maxReplicas"]))
    return int(router["replicas"])


def with_replicas(deployment: Manifest, replicas: int) -> Manifest:
    """``deployment`` with another number of pods. Its digest stays: numbers are compared with numbers."""
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}


def _deployment(dataset: Dataset, config: Config, about: dict[str, Any], selector: dict[str, str]) -> Manifest:
    manifest = stamped(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": about,
            "spec": {
                "revisionHistoryLimit": 2,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "selector": {"matchLabels": selector},
                "template": _template(dataset, config, selector),
            },
        }
    )
    return with_replicas(manifest, router_replicas(dataset, 0))


def _template(dataset: Dataset, config: Config, selector: dict[str, str]) -> dict[str, Any]:
    return pod.template(
        dataset,
        config,
        names.labels(dataset.name, dataset.uid, names.ROUTER),
        {
            "terminationGracePeriodSeconds": dataset.spec["router"]["drainSeconds"] + SPARE_SECONDS,
            "containers": [_container(dataset, config)],
            **pod.placement(selector),
        },
        # Optional: routers are there before the first routing table is. Mounted whole, because the kubelet does not
        # update single files.
        [{"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}}],
        annotations=pod.SAFE_TO_EVICT,
    )


def _container(dataset: Dataset, config: Config) -> dict[str, Any]:
    assert dataset.parsed is not None, "there are no routers of a spec that cannot be used"
    own = {
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--dataset-uid": dataset.uid,
        "--host": config.pod_host,
        "--port": names.ROUTER_PORT,
        "--admin-port": names.ADMIN_PORT,
        **flags.of(dataset.parsed.router),
    }
    return pod.container(
        dataset,
        config,
        "route",
        ["route", *(str(word) for pair in own.items() for word in pair)],
        resources.router(dataset.spec),
        [{"name": "table", "mountPath": names.TABLE_PATH, "readOnly": True}],
        ports=[pod.port("http", names.ROUTER_PORT), pod.port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pod.probes(),
    )


def _service(about: dict[str, Any], selector: dict[str, str]) -> Manifest:
    return stamped(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            "spec": {
                "selector": selector,
                "ports": [pod.service_port("http", names.SERVICE_PORT, "http", appProtocol="http")],
            },
        }
    )


def _autoscaler(about: dict[str, Any], autoscaling: dict[str, Any]) -> Manifest:
    """By cpu alone. Memory says nothing about a router's load, and of a shard server's it is the page cache."""
    target = {"type": "Utilization", "averageUtilization": autoscaling["targetCPUUtilizationPercentage"]}
    return stamped(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": about,
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": about["name"]},
                "minReplicas": autoscaling["minReplicas"],
                "maxReplicas": autoscaling["maxReplicas"],
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            },
        }
    )
