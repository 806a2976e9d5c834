"""Access of pods to the store: by a token for the gateway or, without a gateway, by the store's credentials. A
dataset's
own store uses the Secret that the dataset names. Only builders and fetchers have access.

The token is for the pod's ServiceAccount and this installation's gateway only, and lasts ten minutes; the kubelet
renews it. It proves the pod's namespace. The Secret of a dataset's own store is only referenced by pods: the operator
neither reads nor copies it.
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

# Passwords of shard servers: routers get the dataset's keys, servers the hash of a password.
#
# A dataset's key is derived from the release's key and the dataset's uid; a shard's password from that key, the
# rollout's name and the shard's number (``lookupdb.shard_passwords``). So nothing must be stored or read back: the
# Secret is created, never read, changed or deleted, and its name contains the key's fingerprint.


_DATA_KEY: Final = "key"
_VOLUME: Final = "password-keys"
ROUTER_MOUNT: Final = {"name": _VOLUME, "mountPath": names.PASSWORD_KEYS_PATH, "readOnly": True}


def password_key(dataset: ObservedDataset, config: Config) -> str:
    """Return the fingerprint of the dataset's current key; empty if servers require no password."""
    key = _derive_key(dataset, config)
    return shard_passwords.fingerprint_key(key) if key else ""


def render_key_secret(dataset: ObservedDataset, config: Config) -> Manifest:
    """Return the Secret of the dataset's key, which must exist."""
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
    """Return whether ``manifest`` is only created if absent, and never updated."""
    return manifest.get("immutable") is True


def server_flags(dataset: ObservedDataset, config: Config, rollout: str, shard: int) -> dict[str, str]:
    """Return the password flags of the servers of ``shard`` of ``rollout``. They are not secret."""
    key = _derive_key(dataset, config)
    if not key:
        return {}
    password = shard_passwords.derive_password(key, rollout, shard)
    return {"--password-sha256": shard_passwords.hash_password(password.encode())}


def server_labels(dataset: ObservedDataset, config: Config) -> dict[str, str]:
    """Return the StatefulSet labels from which a lost status can restore the password key."""
    mark = password_key(dataset, config)
    return {names.PASSWORD_KEY: mark} if mark else {}


def router_volume(dataset: ObservedDataset, password_keys: Iterable[str]) -> dict[str, Any]:
    """Return the volume of the routers' keys, each in a file named by its fingerprint. It is optional: a router without
    a
    key reports that and serves what it can reach. It is mounted whole, because the kubelet does not update single
    files."""
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
    """Return the dataset's key; empty if there is none."""
    return shard_passwords.derive_dataset_key(config.shard_key, dataset.uid) if config.shard_key else b""


# The Secret with the store's credentials in a dataset's namespace.


PREFIX: Final = "LOOKUPDB_STORE_"
"""Prefix of every variable, to keep the store's credentials apart from the source's."""


def render_store_secret(dataset: ObservedDataset, access: StoreAccess) -> Manifest:
    """Return the Secret with the environment variables of ``access``.

    It uses ``data``, not ``stringData``, because server-side apply removes left-out keys only from ``data``.
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
"""The shortest time that Kubernetes allows."""
_TOKEN_MOUNT: Final = {"name": names.STORE_TOKEN_VOLUME, "mountPath": names.STORE_TOKEN_PATH, "readOnly": True}


def find_url(dataset: ObservedDataset, config: Config) -> str:
    """Return the URL of the store for the dataset's builders and fetchers."""
    own = dataset.own_store
    return config.store_of_pods if own is None else str(own["url"])


def render_volumes(dataset: ObservedDataset, config: Config) -> list[dict[str, Any]]:
    """Return the volumes that a pod needs to reach the store."""
    if dataset.own_store is not None or not config.gateway:
        return []
    token = {
        "audience": names.store_audience(config.identity),
        "expirationSeconds": _TOKEN_SECONDS,
        "path": names.STORE_TOKEN_FILE,
    }
    return [{"name": names.STORE_TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]


def grant(container: dict[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return ``container`` with access to the store."""
    own = dataset.own_store
    if own is not None:
        # Users choose its keys; the prefix keeps them apart from the source's.
        name = own.get("secretName")
        if not name:
            return container
        variable = {"name": SECRET_VARIABLE, "value": name}
        return _with_secret(
            {**container, "env": [*container["env"], variable]}, {"prefix": PREFIX, "secretRef": {"name": name}}
        )
    if not config.gateway:
        return _with_secret(container, {"secretRef": {"name": names.store_secret(dataset.name, dataset.uid)}})
    # A plain variable takes precedence over a source's Secret.
    variable = {"name": TOKEN_FILE_VARIABLE, "value": f"{names.STORE_TOKEN_PATH}/{names.STORE_TOKEN_FILE}"}
    return {
        **container,
        "env": [*container["env"], variable],
        "volumeMounts": [*container["volumeMounts"], _TOKEN_MOUNT],
    }


def _with_secret(container: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
    """Return ``container`` with the variables of the store's Secret. They come last, so that no source can override
    them."""
    return {**container, "envFrom": [*container.get("envFrom", ()), secret]}
