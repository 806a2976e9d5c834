"""How a container of a pod reaches the store: with a token that it shows to the gateway, or, without a gateway, with
the store's credentials; a store of the dataset's own with the Secret that the dataset names. Builders and fetchers have
it, and no other container.

The token is of the pod's own ServiceAccount, for the gateway of this installation alone, and lasts ten minutes: the
kubelet replaces the file before. It says which namespace the pod is in, and nothing that the pod could have chosen.

The Secret of a store of the dataset's own is its namespace's: pods refer to it, and the operator neither reads it nor
copies it.
"""

from __future__ import annotations

from typing import Any, Final

from lookupdb.store.credentials import SECRET_VARIABLE
from lookupdb.store.gateway_wire import TOKEN_FILE_VARIABLE
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.store_secret import PREFIX
from lookupdb_operator.model import ObservedDataset

_TOKEN_SECONDS: Final = 600
"""As short as Kubernetes allows."""
_TOKEN_MOUNT: Final = {"name": names.STORE_TOKEN_VOLUME, "mountPath": names.STORE_TOKEN_PATH, "readOnly": True}


def find_url(dataset: ObservedDataset, config: Config) -> str:
    """URL of the store as the dataset's builders and fetchers know it."""
    own = dataset.own_store
    return config.store_of_pods if own is None else str(own["url"])


def render_volumes(dataset: ObservedDataset, config: Config) -> list[dict[str, Any]]:
    """What a pod needs, so that a container of it can reach the store."""
    if dataset.own_store is not None or not config.gateway:
        return []
    token = {
        "audience": names.store_audience(config.identity),
        "expirationSeconds": _TOKEN_SECONDS,
        "path": names.STORE_TOKEN_FILE,
    }
    return [{"name": names.STORE_TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]


def grant(container: dict[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """``container``, and it may reach the store."""
    own = dataset.own_store
    if own is not None:
        # Its keys are as people write them: the prefix keeps them from being taken for the source's.
        name = own.get("secretName")
        if not name:
            return container
        variable = {"name": SECRET_VARIABLE, "value": name}
        return _with_secret(
            {**container, "env": [*container["env"], variable]}, {"prefix": PREFIX, "secretRef": {"name": name}}
        )
    if not config.gateway:
        return _with_secret(container, {"secretRef": {"name": names.store_secret(dataset.name, dataset.uid)}})
    # Among these, and not from a Secret: what a source's Secret holds counts less.
    variable = {"name": TOKEN_FILE_VARIABLE, "value": f"{names.STORE_TOKEN_PATH}/{names.STORE_TOKEN_FILE}"}
    return {
        **container,
        "env": [*container["env"], variable],
        "volumeMounts": [*container["volumeMounts"], _TOKEN_MOUNT],
    }


def _with_secret(container: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
    """``container`` with the variables of the store's Secret. They come last: of one name in several, the last is
    taken, and no source may redirect what is published."""
    return {**container, "envFrom": [*container.get("envFrom", ()), secret]}
