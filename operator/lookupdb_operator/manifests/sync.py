"""A dataset's `lookupdb sync` on nodes: a DaemonSet that keeps the active generation in a folder of each node, for
programs that map it (``spec.sync``).

A folder of a node needs what no other pod of ours does. The kubelet makes it, and root owns it: the container is root,
without any capability, so that it can write there and nowhere else. Kubernetes allows a hostPath under the Pod Security
profile *privileged* alone. The pod mounts its own dataset's folder, so that no namespace reaches another's.
"""

from __future__ import annotations

from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import pods, resources, store_access
from lookupdb_operator.manifests.metadata import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset

_VOLUME: Final = "node"
_GRACE_SECONDS: Final = 10
"""It ends within one."""
_UNAVAILABLE: Final = "10%"
"""Of the nodes, while pods are replaced: what is in their folders serves meanwhile."""


def render_sync(dataset: ObservedDataset, config: Config) -> tuple[Manifest, ...]:
    """The DaemonSet; nothing if the dataset asks for none."""
    if "sync" not in dataset.spec:
        return ()
    selector = names.selector(dataset.name, dataset.uid, names.SYNC)
    return (
        stamp(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": render_metadata(dataset, names.sync(dataset.name), names.SYNC),
                "spec": {
                    "revisionHistoryLimit": 2,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": _UNAVAILABLE}},
                    "selector": {"matchLabels": selector},
                    "template": _render_template(dataset, config, selector),
                },
            }
        ),
    )


def _node_folder(dataset: ObservedDataset) -> str:
    """The folder of the dataset on each node: what stands in it is the contract of docs/how-to/sync.md."""
    return f"{dataset.spec['sync']['hostPath']}/{dataset.namespace}/{dataset.name}"


def _render_template(dataset: ObservedDataset, config: Config, selector: dict[str, str]) -> dict[str, Any]:
    labels = names.labels(dataset.name, dataset.uid, names.SYNC) | {names.SYNC_LABEL: dataset.name}
    template = pods.render_template(
        dataset,
        config,
        names.SYNC,
        selector,
        labels,
        {"terminationGracePeriodSeconds": _GRACE_SECONDS, "containers": [_render_container(dataset, config)]},
        [
            {"name": _VOLUME, "hostPath": {"path": _node_folder(dataset), "type": "DirectoryOrCreate"}},
            # Optional: nodes are there before the first routing table is. Mounted whole: single files are not updated.
            {"name": "table", "configMap": {"name": names.routing_table(dataset.name), "optional": True}},
            *store_access.render_volumes(dataset, config),
        ],
        spreads=False,
    )
    root = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    return {**template, "spec": {**template["spec"], "securityContext": root}}


def _render_container(dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    announced = config.announces and dataset.own_store is None
    options = {
        # Seen sooner than a ConfigMap, which a kubelet takes up to a minute to write.
        **({"--dataset": f"{dataset.namespace}/{dataset.name}@{dataset.uid}"} if announced else {}),
        "--table": f"{names.TABLE_PATH}/{names.TABLE_FILE}",
        "--store": store_access.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--keep": dataset.spec["sync"]["keep"],
        "--host": config.pod_host,
        "--admin-port": names.ADMIN_PORT,
    }
    container = pods.render_container(
        dataset,
        config,
        names.SYNC,
        "sync",
        ["sync", names.SYNC_PATH, *(str(word) for pair in options.items() for word in pair)],
        resources.sync(dataset.spec),
        [
            {"name": _VOLUME, "mountPath": f"{names.SYNC_PATH}/{dataset.namespace}/{dataset.name}"},
            {"name": "table", "mountPath": names.TABLE_PATH, "readOnly": True},
        ],
        ports=[pods.render_port("admin", names.ADMIN_PORT)],
        terminationMessagePolicy="FallbackToLogsOnError",
        **pods.render_probes(),
    )
    return store_access.grant(container, dataset, config)
