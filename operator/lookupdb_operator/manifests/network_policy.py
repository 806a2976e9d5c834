"""NetworkPolicies: who may talk to a dataset's pods. What pods reach (store, source, names) is not limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.metadata import given, metadata, stamped
from lookupdb_operator.model import Dataset, Manifest

_MOST_WORKERS: Final = 64
"""Of a shard server, by the CRD: a rollout with another number of workers needs no other policy."""

Rule = dict[str, Any]


def network_policies(dataset: Dataset, config: Config) -> tuple[Manifest, ...]:
    """One policy a component; none at all when the operator is told to write none.

    Shard servers answer the routers of their own dataset only; routers answer who the operator is told, or anyone;
    admin ports answer those of ``config.admin_clients`` (and the node's kubelet, which no policy keeps out).
    """
    if not config.network_policies:
        return ()
    admin = _from(config.admin_clients, _port(names.ADMIN_PORT)) if config.admin_clients else []
    routers = {"podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, names.ROUTER)}}
    shards = {**_port(names.SHARD_PORT), "endPort": names.SHARD_PORT + _MOST_WORKERS - 1}
    return (
        _policy(dataset, names.SHARDS, [*_from([routers], shards), *admin]),
        _policy(dataset, names.ROUTER, [*_from(config.router_clients, _port(names.ROUTER_PORT)), *admin]),
        _policy(dataset, names.BUILDER, []),
    )


def _policy(dataset: Dataset, component: str, ingress: list[Rule]) -> Manifest:
    return stamped(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(dataset, names.network_policy(dataset.name, component), component),
            "spec": {
                "podSelector": {"matchLabels": names.selector(dataset.name, dataset.uid, component)},
                "policyTypes": ["Ingress"],
                **given(ingress=ingress),  # none: nobody
            },
        }
    )


def _from(peers: Sequence[Mapping[str, Any]], port: Mapping[str, Any]) -> list[Rule]:
    """A rule without peers lets anyone in."""
    return [{**given(**{"from": list(peers)}), "ports": [port]}]


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
