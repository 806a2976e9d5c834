"""Passwords of shard servers, as pods get them: routers the keys of their dataset, servers the hash of a password.

The key of a dataset is made of the release's and of the dataset's uid, a shard's password of that, of the rollout's
name and of the shard's number (``lookupdb.shard_passwords``). So nothing of it needs to be remembered or read back: the
Secret of a dataset's key is made, never read, changed or deleted, and a name that holds the key's fingerprint is
another key's or nobody's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Final

from lookupdb import shard_passwords
from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests.metadata import render_metadata
from lookupdb_operator.model import Manifest, ObservedDataset

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
