"""A dataset's routers (Deployment, Service, PodDisruptionBudget, optional autoscaler) and their routing table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from lookupdb.dataset.spec import render_router_flags
from lookupdb.router.routing_table import FORMAT_VERSION, MIXED_FORMAT_VERSION
from lookupdb_operator import names
from lookupdb_operator.manifests import objects, pods
from lookupdb_operator.manifests.objects import drop_empty, render_disruption_budget, render_metadata, stamp
from lookupdb_operator.model import Config, Manifest, ObservedDataset, Pod
from lookupdb_operator.status import GenerationStatus, TableCandidate, TableStatus, parse_shards

_CERTIFICATE_VOLUME: Final = "tls"
_CLIENT_CA_VOLUME: Final = "tls-client-ca"
_PATHS: Final = {
    "table": names.TABLE_PATH,
    objects.KEYS_VOLUME: names.PASSWORD_KEYS_PATH,
    "tokens": names.TOKENS_PATH,
    "keys": names.KEYS_PATH,
    _CERTIFICATE_VOLUME: names.TLS_PATH,
    _CLIENT_CA_VOLUME: names.TLS_CLIENT_CA_PATH,
}
"""Mount path of each volume."""
_SERVICE_FIELDS: Final = ("type", "loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy")
_SPARE_SECONDS: Final = 15
"""Seconds after the drain time until a router is killed. It needs at most 5 of them to finish."""


def uses_service_accounts(dataset: ObservedDataset) -> bool:
    """Return whether routers need the cluster's public keys."""
    return "serviceAccounts" in (dataset.spec["router"].get("auth") or {})


def render_router_keys(dataset: ObservedDataset, keys: str) -> Manifest:
    """Return the ConfigMap with the cluster's public keys, a JWKS."""
    return stamp(
        names.CONFIG_MAP.make(
            render_metadata(dataset, names.router_keys(dataset.name), names.ROUTER), data={names.KEYS_FILE: keys}
        )
    )


def render_routers(
    dataset: ObservedDataset, config: Config, password_keys: tuple[str, ...] = ()
) -> tuple[Manifest, ...]:
    """Return a dataset's routers. They start without a routing table and wait for one. ``password_keys`` are the
    fingerprints of the keys that they need."""
    metadata = render_metadata(dataset, names.router(dataset.name), names.ROUTER)
    selector = names.selector(dataset.name, dataset.uid, names.ROUTER)
    fixed = (
        _render_deployment(dataset, config, password_keys, metadata, selector),
        _render_service(dataset, config, metadata, selector),
        stamp(render_disruption_budget(metadata, selector)),
    )
    autoscaling = dataset.spec["router"].get("autoscaling")
    return (*fixed, _render_autoscaler(metadata, autoscaling)) if autoscaling else fixed


def scale_routers(deployment: Manifest, dataset: ObservedDataset, present: int) -> Manifest:
    """Return ``deployment`` with the number of routers to request, and the same digest: numbers are compared
    separately. ``present`` is the number requested now, which an autoscaler may have chosen; it is kept within the
    autoscaler's bounds. The number is always applied, because a field without an owner resets to one.
    """
    router = dataset.spec["router"]
    replicas = router["replicas"]
    if autoscaling := router.get("autoscaling"):
        replicas = min(max(present, autoscaling["minReplicas"]), autoscaling["maxReplicas"])
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}


def _render_deployment(
    dataset: ObservedDataset,
    config: Config,
    password_keys: tuple[str, ...],
    metadata: dict[str, Any],
    selector: dict[str, str],
) -> Manifest:
    template = pods.render_template(
        dataset,
        config,
        names.ROUTER,
        {
            "terminationGracePeriodSeconds": dataset.spec["router"]["drainSeconds"] + _SPARE_SECONDS,
            "containers": [_render_container(dataset, config, password_keys)],
        },
        _render_volumes(dataset, password_keys),
        annotations=pods.SAFE_TO_EVICT,
    )
    manifest = stamp(
        names.DEPLOYMENT.make(
            metadata,
            spec={
                "revisionHistoryLimit": 2,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "selector": {"matchLabels": selector},
                "template": template,
            },
        )
    )
    return scale_routers(manifest, dataset, 0)


def _render_volumes(dataset: ObservedDataset, password_keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the volumes for the routing table, shard passwords, TLS and the authentication of clients. They are
    optional: routers start before the first routing table exists, and report themselves which other volumes they lack.
    They are mounted whole, because the kubelet does not update single files."""
    router = dataset.spec["router"]
    tls, auth = router.get("tls"), router.get("auth") or {}
    volumes: list[dict[str, Any]] = [
        {"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}}
    ]
    if password_keys:
        volumes.append(objects.router_volume(dataset, password_keys))
    if tls is not None:
        volumes.append({"name": _CERTIFICATE_VOLUME, "secret": {"secretName": tls["secretName"], "optional": True}})
        if client_ca := tls.get("clientCA"):
            secret = {"secret": {"secretName": client_ca.get("secretName"), "optional": True}}
            config_map = {"configMap": {"name": client_ca.get("configMapName"), "optional": True}}
            volumes.append({"name": _CLIENT_CA_VOLUME, **(secret if "secretName" in client_ca else config_map)})
    if tokens := auth.get("tokens"):
        volumes.append({"name": "tokens", "secret": {"secretName": tokens["secretName"], "optional": True}})
    if "serviceAccounts" in auth:
        volumes.append({"name": "keys", "configMap": {"name": names.router_keys(dataset.name), "optional": True}})
    return volumes


def _render_container(dataset: ObservedDataset, config: Config, password_keys: tuple[str, ...]) -> dict[str, Any]:
    assert dataset.parsed is not None, "there are no routers of a spec that cannot be used"
    router = dataset.spec["router"]
    has_tls, auth = "tls" in router, router.get("auth") or {}
    client_ca = router["tls"].get("clientCA") if has_tls else None
    options = {
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--dataset-uid": dataset.uid,
        "--host": config.pod_host,
        "--port": names.ROUTER_PORT,
        "--resp-port": names.RESP_PORT if config.router_resp else None,
        "--admin-port": names.ADMIN_PORT,
        **render_router_flags(dataset.parsed.router),
        "--tls-cert": f"{names.TLS_PATH}/{names.TLS_CERTIFICATE}" if has_tls else None,
        "--tls-key": f"{names.TLS_PATH}/{names.TLS_KEY}" if has_tls else None,
        "--tls-client-ca": f"{names.TLS_CLIENT_CA_PATH}/{client_ca['key']}" if client_ca else None,
        "--password-key-dir": names.PASSWORD_KEYS_PATH if password_keys else None,
        "--auth-tokens": names.TOKENS_PATH if "tokens" in auth else None,
    }
    arguments = ["route", *pods.render_flags(options)]
    if accounts := auth.get("serviceAccounts"):
        arguments += ["--auth-keys", f"{names.KEYS_PATH}/{names.KEYS_FILE}", "--auth-audience", accounts["audience"]]
        arguments += [word for subject in accounts["subjects"] for word in ("--auth-subject", subject)]
    resp = [pods.render_port(names.RESP, names.RESP_PORT)] if config.router_resp else []
    return pods.render_container(
        dataset,
        config,
        names.ROUTER,
        "route",
        arguments,
        pods.router(dataset.spec),
        [
            {"name": volume["name"], "mountPath": _PATHS[volume["name"]], "readOnly": True}
            for volume in _render_volumes(dataset, password_keys)
        ],
        ports=[pods.render_port("http", names.ROUTER_PORT), *resp, pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )


def _render_service(
    dataset: ObservedDataset, config: Config, metadata: dict[str, Any], selector: dict[str, str]
) -> Manifest:
    """Fields that the spec leaves open are left out, so that others may own them."""
    service, has_tls = dataset.spec["router"]["service"], "tls" in dataset.spec["router"]
    node_port = drop_empty(nodePort=service.get("nodePort"))
    protocol = "https" if has_tls else "http"
    port = pods.render_service_port("http", service["port"], "http", appProtocol=protocol, **node_port)
    ports = [port]
    if config.router_resp and service["port"] != names.RESP_PORT:  # a port may be only once in a Service
        redis = {} if has_tls else {"appProtocol": "redis"}  # Redis over TLS has no protocol name
        ports.append(pods.render_service_port(names.RESP, names.RESP_PORT, names.RESP, **redis))
    given = {name: service.get(name) for name in _SERVICE_FIELDS}
    return stamp(
        names.SERVICE.make(
            {**metadata, **drop_empty(annotations=service.get("annotations"))},
            spec={"selector": selector, "ports": ports, **drop_empty(**given)},
        )
    )


def _render_autoscaler(metadata: dict[str, Any], autoscaling: dict[str, Any]) -> Manifest:
    """Scale by CPU only. Memory does not show a router's load; for shard servers it is page cache."""
    target = {"type": "Utilization", "averageUtilization": autoscaling["targetCPUUtilizationPercentage"]}
    return stamp(
        names.AUTOSCALER.make(
            metadata,
            spec={
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"]},
                "minReplicas": autoscaling["minReplicas"],
                "maxReplicas": autoscaling["maxReplicas"],
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            },
        )
    )


# The routing table: the ConfigMap that routers mount, and the annotation that makes kubelets sync it now.


MAX_ENDPOINT_BYTES: Final = 950_000
"""Maximum bytes of all addresses in a routing table. The API server refuses objects of more than 1 MiB."""


def render_routing_table(
    dataset: ObservedDataset, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> Manifest:
    """Return the ConfigMap of ``table``, whose generations are among ``generations``. At 1 MiB, shards × replicas ×
    workers may be about 6,000 with the longest names, 16,000 with short ones."""
    generation = generations[table.generation]
    entries = [_entry(table, generation, _render_shards(dataset, table, generations))]
    offered = table.candidate
    if offered is not None and offered.generation in generations:
        shards = range(generations[offered.generation].shards)
        servers: list[dict[str, object]] = [{"endpoints": _endpoints(dataset, offered, shard)} for shard in shards]
        entries.append(_entry(offered, generations[offered.generation], servers))
    content = {
        "formatVersion": MIXED_FORMAT_VERSION if table.is_mixed else FORMAT_VERSION,
        "version": table.version,
        "dataset": {"namespace": dataset.namespace, "name": dataset.name, "uid": dataset.uid},
        "active": table.generation,
        "generations": entries,
    }
    about = render_metadata(dataset, names.routing_table(dataset.name), names.ROUTER)
    return stamp(
        names.CONFIG_MAP.make(
            {**about, "annotations": {names.TABLE_VERSION: str(table.version)}},
            data={names.TABLE_FILE: orjson.dumps(content).decode() + "\n"},
        )
    )


def render_nudge(dataset: ObservedDataset, pod: Pod, version: int) -> Manifest:
    """Return the operator's part of a router pod: the annotation that makes the kubelet sync the routing table at once.

    Because of the uid, the API server neither creates a pod nor changes another one of this name.
    """
    return names.POD.make(
        {
            "namespace": dataset.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "annotations": {names.TABLE_VERSION: str(version)},
        }
    )


def has_room_for_both(
    dataset: ObservedDataset,
    active: tuple[TableStatus | TableCandidate, int],
    candidate: tuple[TableStatus | TableCandidate, int],
) -> bool:
    """Return whether one routing table has room for ``active`` and ``candidate``, each with its number of shards."""
    endpoint_bytes = 0
    for part, shards in (active, candidate):
        # An upper bound: no address is longer than the last one. Each has quotes and a comma.
        longest = _address(dataset, part, shards - 1, part.replicas - 1, part.workers - 1)
        endpoint_bytes += shards * part.replicas * part.workers * (len(longest) + 3)
    return endpoint_bytes <= MAX_ENDPOINT_BYTES


def _entry(
    part: TableStatus | TableCandidate,
    generation: GenerationStatus,
    shards: list[dict[str, object]],
) -> dict[str, object]:
    columns = generation.key_columns
    composite = {"keyColumns": list(columns), "separator": generation.separator} if len(columns) > 1 else {}
    return {
        "generation": part.generation,
        "rollout": part.rollout,
        **_key_member(part.password_key),
        "records": generation.records,
        "bytes": generation.bytes,
        "builtAt": generation.built_at,
        "normalize": list(generation.normalize),
        **composite,
        "valueFormat": generation.value_format,
        "shards": shards,
    }


def _render_shards(
    dataset: ObservedDataset, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> list[dict[str, object]]:
    """Return each shard's servers, and the name and age of its generation if that is not the table's."""
    owners = {shard: part for part in table.parts for shard in parse_shards(part.shard_ranges)}
    shards: list[dict[str, object]] = []
    for shard in range(generations[table.generation].shards):
        part = owners.get(shard)
        if part is None:
            shards.append({"endpoints": _endpoints(dataset, table, shard)})
            continue
        servers = TableCandidate(part.rollout, part.generation, table.replicas, part.workers)
        about: dict[str, object] = {}
        if table.password_key or part.password_key:
            about = {"rollout": part.rollout, **_key_member(part.password_key)}
        if part.generation != table.generation:
            about |= {"generation": part.generation, "builtAt": generations[part.generation].built_at}
        shards.append(about | {"endpoints": _endpoints(dataset, servers, shard)})
    return shards


def _key_member(password_key: str) -> dict[str, object]:
    """Return the fingerprint of the password key, if servers require a password."""
    return {"passwordKey": password_key} if password_key else {}


def _endpoints(dataset: ObservedDataset, part: TableStatus | TableCandidate, shard: int) -> list[str]:
    """Return all workers of pods 0 to replicas-1, ready or not."""
    return [
        _address(dataset, part, shard, replica, worker)
        for replica in range(part.replicas)
        for worker in range(part.workers)
    ]


def _address(
    dataset: ObservedDataset, part: TableStatus | TableCandidate, shard: int, replica: int, worker: int
) -> str:
    host = names.pod_host(dataset.name, part.rollout, shard, replica, dataset.namespace)
    return f"{host}:{names.SHARD_PORT + worker}"
