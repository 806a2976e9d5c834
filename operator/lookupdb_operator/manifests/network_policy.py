"""NetworkPolicies: who may talk to a dataset's pods. What pods reach (store, source, names) is not limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.delivery import IMAGE, delivery_type
from lookupdb_operator.manifests.metadata import drop_empty, render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset

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
