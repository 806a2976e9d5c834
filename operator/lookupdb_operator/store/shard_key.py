"""The release's key, from which the passwords of all shard servers are derived: made once, at random, in a Secret of
the release's namespace, and read at each resync. Who deletes that Secret has all passwords changed: by a new rollout of
each dataset.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from lookupdb import shard_passwords
from lookupdb_operator import names
from lookupdb_operator.api.client import Refused
from lookupdb_operator.api.cluster import Cluster

log = logging.getLogger(__name__)

_DATA_KEY: Final = "key"


class ShardKeyReader:
    """The key as it was when last read; empty before that."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, on_change: Callable[[bytes], None]) -> None:
        """``on_change`` is called with each key that is not as it was read before."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._on_change = on_change
        self._key = b""

    async def refresh(self) -> bool:
        """Read the Secret, or make it if there is none. Returns whether the key has changed. Raises what ``api``
        raises, also when the Secret holds no key, and then the key stays."""
        found = await self._cluster.get_secret(self._namespace, self._name)
        if found is None:
            await self._cluster.create_secret(_render(self._namespace, self._name))
            log.info("created Secret %s/%s with the key of shard servers' passwords", self._namespace, self._name)
            # Read, because somebody else may have been faster.
            found = await self._cluster.get_secret(self._namespace, self._name)
        key = _read_key(found or {}, f"Secret {self._namespace}/{self._name}")
        if key == self._key:
            return False
        self._key = key
        self._on_change(key)
        return True


def _read_key(secret: Mapping[str, Any], where: str) -> bytes:
    """The key that ``secret`` holds. Raises Refused, and shows nothing of what it holds instead."""
    try:
        key = base64.b64decode((secret.get("data") or {}).get(_DATA_KEY) or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        key = b""
    if len(key) != shard_passwords.KEY_BYTES:
        raise Refused(
            where,
            f"it holds no key of {shard_passwords.KEY_BYTES} bytes under {_DATA_KEY!r}; delete it, and the operator"
            " makes another one",
        )
    return key


def _render(namespace: str, name: str) -> dict[str, Any]:
    key = secrets.token_bytes(shard_passwords.KEY_BYTES)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name, "labels": dict(names.OPERATOR_LABELS)},
        "type": "Opaque",
        "data": {_DATA_KEY: base64.b64encode(key).decode()},
    }
