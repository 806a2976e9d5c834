"""How a container of a pod reaches the store: with a token that it shows to the gateway, or, without a gateway, with
the store's credentials; a store of the dataset's own with the Secret that the dataset names. Builders and fetchers have
it, and no other container.

The token is of the pod's own ServiceAccount, for the gateway of this installation alone, and lasts ten minutes: the
kubelet replaces the file before. It says which namespace the pod is in, and nothing that the pod could have chosen.

The Secret of a store of the dataset's own is its namespace's: pods refer to it, and the operator neither reads it nor
copies it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final

from lookupdb import shard_passwords
from lookupdb.store.credentials import SECRET_VARIABLE
from lookupdb.store.gateway_wire import TOKEN_FILE_VARIABLE
from lookupdb_operator import names
from lookupdb_operator.config import Config, StoreAccess
from lookupdb_operator.manifests.objects import render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset

# Passwords of shard servers, as pods get them: routers the keys of their dataset, servers the hash of a password.
#
# The key of a dataset is made of the release's and of the dataset's uid, a shard's password of that, of the rollout's
# name and of the shard's number (``lookupdb.shard_passwords``). So nothing of it needs to be remembered or read back:
# the Secret of a dataset's key is made, never read, changed or deleted, and a name that holds the key's fingerprint is
# another key's or nobody's.


_DATA_KEY: Final = "key"
_VOLUME: Final = "password-keys"
ROUTER_MOUNT: Final = {"name": _VOLUME, "mountPath": names.PASSWORD_KEYS_PATH, "readOnly": True}


def password_key(dataset: ObservedDataset, config: Config) -> str:
    """The fingerprint of the dataset's key as it is now; empty while servers are to ask for no password."""
    key = _derive_key(dataset, config)
    return shard_passwords.fingerprint_key(key) if key else ""


def render_key_secret(dataset: ObservedDataset, config: Config) -> Manifest:
    """The Secret of the dataset's key, which there must be."""
    key = _derive_key(dataset, config)
    name = names.password_key_secret(dataset.name, shard_passwords.fingerprint_key(key))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": render_metadata(dataset, name, names.ROUTER),
        "type": "Opaque",
        "immutable": True,
        "data": {_DATA_KEY: base64.b64encode(key).decode()},
    }


def is_made_once(manifest: Manifest) -> bool:
    """Whether ``manifest`` is created if there is nothing of its name, and never written again."""
    return manifest.get("immutable") is True


def server_flags(dataset: ObservedDataset, config: Config, rollout: str, shard: int) -> dict[str, str]:
    """What the servers of ``shard`` of ``rollout`` are told of their password. Anybody may see it."""
    key = _derive_key(dataset, config)
    if not key:
        return {}
    password = shard_passwords.derive_password(key, rollout, shard)
    return {"--password-sha256": shard_passwords.hash_password(password.encode())}


def server_labels(dataset: ObservedDataset, config: Config) -> dict[str, str]:
    """What a StatefulSet says of its servers' password, for a status that was lost."""
    mark = password_key(dataset, config)
    return {names.PASSWORD_KEY: mark} if mark else {}


def router_volume(dataset: ObservedDataset, password_keys: Iterable[str]) -> dict[str, Any]:
    """The keys that routers need, each in a file called by its fingerprint. Optional, because a router can do without
    one that is not there: it says so, and answers from what it can reach. Mounted whole, because the kubelet does not
    update single files."""
    sources = [
        {
            "secret": {
                "name": names.password_key_secret(dataset.name, mark),
                "items": [{"key": _DATA_KEY, "path": mark}],
                "optional": True,
            }
        }
        for mark in password_keys
    ]
    return {"name": _VOLUME, "projected": {"sources": sources}}


def _derive_key(dataset: ObservedDataset, config: Config) -> bytes:
    """Empty while there is none."""
    return shard_passwords.derive_dataset_key(config.shard_key, dataset.uid) if config.shard_key else b""


# The Secret through which builders and fetchers in a dataset's namespace reach the store.


PREFIX: Final = "LOOKUPDB_STORE_"
"""Of every variable, so that the store's credentials are not taken for the source's, nor the other way round."""


def render_store_secret(dataset: ObservedDataset, access: StoreAccess) -> Manifest:
    """Of ``access``, as environment variables.

    It is ``data`` and not ``stringData``: what is left out of that stays, because it is not ours to server-side apply.
    """
    data = {
        PREFIX + name: base64.b64encode(value.encode()).decode() for name, value in sorted(access.environment.items())
    }
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": render_metadata(dataset, names.store_secret(dataset.name, dataset.uid)),
            "type": "Opaque",
            "data": data,
        }
    )


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
