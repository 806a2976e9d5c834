"""TLS of a dataset's routers: the certificate, and the authorities of clients, as their pods get them.

The volumes are optional: a router whose Secret is missing says so itself, where it says all else, and does not become
ready. They are mounted whole, because the kubelet does not update single files.
"""

from __future__ import annotations

from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.model import ObservedDataset

_CERTIFICATE_VOLUME: Final = "tls"
_CLIENT_CA_VOLUME: Final = "tls-client-ca"


def speaks_tls(dataset: ObservedDataset) -> bool:
    """Whether clients are answered by TLS, and by nothing else."""
    return "tls" in dataset.spec["router"]


def render_options(dataset: ObservedDataset) -> dict[str, str]:
    """The flags of `lookupdb route`."""
    if not speaks_tls(dataset):
        return {}
    options = {
        "--tls-cert": f"{names.TLS_PATH}/{names.TLS_CERTIFICATE}",
        "--tls-key": f"{names.TLS_PATH}/{names.TLS_KEY}",
    }
    if client_ca := dataset.spec["router"]["tls"].get("clientCA"):
        options["--tls-client-ca"] = f"{names.TLS_CLIENT_CA_PATH}/{client_ca['key']}"
    return options


def render_volumes(dataset: ObservedDataset) -> list[dict[str, Any]]:
    """The volumes of a router's pod."""
    if not speaks_tls(dataset):
        return []
    tls = dataset.spec["router"]["tls"]
    volumes = [{"name": _CERTIFICATE_VOLUME, "secret": {"secretName": tls["secretName"], "optional": True}}]
    if client_ca := tls.get("clientCA"):
        secret = {"secret": {"secretName": client_ca.get("secretName"), "optional": True}}
        config_map = {"configMap": {"name": client_ca.get("configMapName"), "optional": True}}
        volumes.append({"name": _CLIENT_CA_VOLUME, **(secret if "secretName" in client_ca else config_map)})
    return volumes


def render_mounts(dataset: ObservedDataset) -> list[dict[str, Any]]:
    """Where a router's container finds them."""
    paths = {_CERTIFICATE_VOLUME: names.TLS_PATH, _CLIENT_CA_VOLUME: names.TLS_CLIENT_CA_PATH}
    return [
        {"name": volume["name"], "mountPath": paths[volume["name"]], "readOnly": True}
        for volume in render_volumes(dataset)
    ]
