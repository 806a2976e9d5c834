"""A dataset's routers: Deployment, Service, PodDisruptionBudget, and the autoscaler where one is asked for."""

from __future__ import annotations

from typing import Any, Final

from lookupdb.route import flags
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import passwords, pods, resources, router_tls
from lookupdb_operator.manifests.disruption_budget import render_disruption_budget
from lookupdb_operator.manifests.metadata import drop_empty, render_metadata, stamp
from lookupdb_operator.manifests.router_auth import render_auth_mounts, render_auth_options, render_auth_volumes
from lookupdb_operator.model import Manifest, ObservedDataset

_SERVICE_FIELDS: Final = ("type", "loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy")
SPARE_SECONDS: Final = 15
"""On top of the drain time, before a router is killed: it finishes within 5 seconds, or ends itself."""


def render_routers(
    dataset: ObservedDataset, config: Config, password_keys: tuple[str, ...] = ()
) -> tuple[Manifest, ...]:
    """A dataset's routers. They start without a routing table, and wait for one. ``password_keys`` are the fingerprints
    of the keys that they need."""
    metadata = render_metadata(dataset, names.router(dataset.name), names.ROUTER)
    selector = names.selector(dataset.name, dataset.uid, names.ROUTER)
    fixed = (
        _render_deployment(dataset, config, password_keys, metadata, selector),
        _render_service(dataset, config, metadata, selector),
        stamp(render_disruption_budget(metadata, selector)),
    )
    autoscaling = dataset.spec["router"].get("autoscaling")
    return (*fixed, _render_autoscaler(metadata, autoscaling)) if autoscaling else fixed


def router_replicas(dataset: ObservedDataset, present: int) -> int:
    """How many routers there should be where ``present`` are asked for now: with an autoscaler as many as it has
    chosen, within its bounds. It is not left out of what is applied: what nobody owns any more becomes one."""
    router = dataset.spec["router"]
    if autoscaling := router.get("autoscaling"):
        return int(min(max(present, autoscaling["minReplicas"]), autoscaling["maxReplicas"]))
    return int(router["replicas"])


def with_replicas(deployment: Manifest, replicas: int) -> Manifest:
    """``deployment`` with another number of pods. Its digest stays: numbers are compared with numbers."""
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}


def _render_deployment(
    dataset: ObservedDataset,
    config: Config,
    password_keys: tuple[str, ...],
    metadata: dict[str, Any],
    selector: dict[str, str],
) -> Manifest:
    manifest = stamp(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "revisionHistoryLimit": 2,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "selector": {"matchLabels": selector},
                "template": _render_template(dataset, config, password_keys, selector),
            },
        }
    )
    return with_replicas(manifest, router_replicas(dataset, 0))


def _render_template(
    dataset: ObservedDataset, config: Config, password_keys: tuple[str, ...], selector: dict[str, str]
) -> dict[str, Any]:
    keys = [passwords.router_volume(dataset, password_keys)] if password_keys else []
    return pods.render_template(
        dataset,
        config,
        names.ROUTER,
        selector,
        names.labels(dataset.name, dataset.uid, names.ROUTER),
        {
            "terminationGracePeriodSeconds": dataset.spec["router"]["drainSeconds"] + SPARE_SECONDS,
            "containers": [_render_container(dataset, config, password_keys)],
        },
        # Optional: routers are there before the first routing table is. Mounted whole, because the kubelet does not
        # update single files.
        [
            {"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}},
            *keys,
            *router_tls.render_volumes(dataset),
            *render_auth_volumes(dataset),
        ],
        annotations=pods.SAFE_TO_EVICT,
    )


def _render_container(dataset: ObservedDataset, config: Config, password_keys: tuple[str, ...]) -> dict[str, Any]:
    assert dataset.parsed is not None, "there are no routers of a spec that cannot be used"
    options = {
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--dataset-uid": dataset.uid,
        "--host": config.pod_host,
        "--port": names.ROUTER_PORT,
        **({"--resp-port": names.RESP_PORT} if config.router_resp else {}),
        "--admin-port": names.ADMIN_PORT,
        **flags.render_flags(dataset.parsed.router),
        **router_tls.render_options(dataset),
        **({"--password-key-dir": names.PASSWORD_KEYS_PATH} if password_keys else {}),
    }
    keys = [passwords.ROUTER_MOUNT] if password_keys else []
    resp = [pods.render_port(names.RESP, names.RESP_PORT)] if config.router_resp else []
    return pods.render_container(
        dataset,
        config,
        names.ROUTER,
        "route",
        ["route", *(str(word) for pair in options.items() for word in pair), *render_auth_options(dataset)],
        resources.router(dataset.spec),
        [
            {"name": "table", "mountPath": names.TABLE_PATH, "readOnly": True},
            *keys,
            *router_tls.render_mounts(dataset),
            *render_auth_mounts(dataset),
        ],
        ports=[pods.render_port("http", names.ROUTER_PORT), *resp, pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )


def _render_service(
    dataset: ObservedDataset, config: Config, metadata: dict[str, Any], selector: dict[str, str]
) -> Manifest:
    """What the spec does not say is left out, so that it may be somebody else's."""
    service = dataset.spec["router"]["service"]
    node_port = drop_empty(nodePort=service.get("nodePort"))
    protocol = "https" if router_tls.speaks_tls(dataset) else "http"
    port = pods.render_service_port("http", service["port"], "http", appProtocol=protocol, **node_port)
    ports = [port, *_render_resp_ports(dataset, config)]
    given = {name: service.get(name) for name in _SERVICE_FIELDS}
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**metadata, **drop_empty(annotations=service.get("annotations"))},
            "spec": {"selector": selector, "ports": ports, **drop_empty(**given)},
        }
    )


def _render_resp_ports(dataset: ObservedDataset, config: Config) -> list[dict[str, Any]]:
    """The Service's port for clients of Redis, unless HTTP has it already: a Service has each port once."""
    if not config.router_resp or dataset.spec["router"]["service"]["port"] == names.RESP_PORT:
        return []
    protocol = {} if router_tls.speaks_tls(dataset) else {"appProtocol": "redis"}  # the other has no name of its own
    return [pods.render_service_port(names.RESP, names.RESP_PORT, names.RESP, **protocol)]


def _render_autoscaler(metadata: dict[str, Any], autoscaling: dict[str, Any]) -> Manifest:
    """By cpu alone. Memory says nothing metadata a router's load, and of a shard server's it is the page cache."""
    target = {"type": "Utilization", "averageUtilization": autoscaling["targetCPUUtilizationPercentage"]}
    return stamp(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"]},
                "minReplicas": autoscaling["minReplicas"],
                "maxReplicas": autoscaling["maxReplicas"],
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            },
        }
    )
