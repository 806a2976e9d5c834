"""How a container of a pod reaches the store: with a token that it shows to the gateway, or, without a gateway, with
the store's credentials. Builders and fetchers have it, and no other container.

The token is of the pod's own ServiceAccount, for the gateway of this installation alone, and lasts ten minutes: the
kubelet replaces the file before. It says which namespace the pod is in, and nothing that the pod could have chosen.
"""

from __future__ import annotations

from typing import Any, Final

from lookupdb.store.gateway_wire import TOKEN_FILE_VARIABLE
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.model import ObservedDataset

_TOKEN_SECONDS: Final = 600
"""As short as Kubernetes allows."""
_TOKEN_MOUNT: Final = {"name": names.STORE_TOKEN_VOLUME, "mountPath": names.STORE_TOKEN_PATH, "readOnly": True}


def render_volumes(config: Config) -> list[dict[str, Any]]:
    """What a pod needs, so that a container of it can reach the store."""
    if not config.gateway:
        return []
    token = {
        "audience": names.store_audience(config.identity),
        "expirationSeconds": _TOKEN_SECONDS,
        "path": names.STORE_TOKEN_FILE,
    }
    return [{"name": names.STORE_TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]


def grant(container: dict[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """``container``, and it may reach the store."""
    if not config.gateway:
        # The store's come last: of one name in both, the last is taken, and no source may redirect what is published.
        secret = {"secretRef": {"name": names.store_secret(dataset.name, dataset.uid)}}
        return {**container, "envFrom": [*container.get("envFrom", ()), secret]}
    # Among these, and not from a Secret: what a source's Secret holds counts less.
    variable = {"name": TOKEN_FILE_VARIABLE, "value": f"{names.STORE_TOKEN_PATH}/{names.STORE_TOKEN_FILE}"}
    return {
        **container,
        "env": [*container["env"], variable],
        "volumeMounts": [*container["volumeMounts"], _TOKEN_MOUNT],
    }
