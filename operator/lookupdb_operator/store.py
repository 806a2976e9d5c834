"""Access to the store, the credentials of the chart's own store, and the release's shard key.

All shard passwords are derived from that key. It is created once, at random, in a Secret in the release's namespace,
and
read at each resync. Deleting the Secret changes all passwords, by a new rollout of each dataset.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from lookupdb import shard_passwords
from lookupdb_operator import names
from lookupdb_operator.cluster.client import Refused
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.config import StoreAccess

# The store's environment for builders and fetchers: settings and a Secret, which is read at each resync.


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCRYPT_ROUNDS: Final = 1 << 14
_SCRYPT_MAX_BYTES: Final = 32 << 20
"""Twice what scrypt needs."""
_DIGEST_BYTES: Final = 8


class StoreAccessReader:
    """The store's environment as last read."""

    def __init__(
        self, cluster: Cluster, *, namespace: str, secret: str, environment: Mapping[str, str], salt: str
    ) -> None:
        """``salt`` identifies the store and stays the same across restarts of the operator."""
        self._cluster = cluster
        self._namespace = namespace
        self._secret = secret
        self._environment = environment
        self._salt = salt
        self.access = StoreAccess(problem="the store's credentials have not been read yet")

    async def refresh(self) -> bool:
        """Read the Secret and return whether anything changed. If it raises Unreachable, ``access`` stays."""
        before = self.access
        if not self._secret:
            self.access = make_access(self._environment, self._salt)
            return self.access != before
        where = f"Secret {self._secret} in namespace {self._namespace}"
        try:
            found = await self._cluster.get_secret(self._namespace, self._secret)
        except Refused as error:
            self.access = StoreAccess(problem=f"the operator may not read {where}: {error.message}")
            return self.access != before
        if found is None:
            problem = f"{where} does not exist; create it with the store's credentials, as environment variables"
            self.access = StoreAccess(problem=problem)
        else:
            self.access = merge_secret(self._environment, found.get("data") or {}, where, self._salt)
        return self.access != before


def make_access(environment: Mapping[str, str], salt: str) -> StoreAccess:
    """Return access by ``environment``, with its digest."""
    text = json.dumps(dict(environment), sort_keys=True)
    return StoreAccess(environment=dict(environment), digest=_digest(text, salt))


@functools.lru_cache(maxsize=1)
def _digest(text: str, salt: str) -> str:
    """Return a slow, salted digest of ``text``. It is visible in statuses, where a fast one would allow guessing the
    secret key. It blocks for about 40 ms at each change."""
    return hashlib.scrypt(
        text.encode(), salt=salt.encode(), n=_SCRYPT_ROUNDS, r=8, p=1, maxmem=_SCRYPT_MAX_BYTES, dklen=_DIGEST_BYTES
    ).hex()


def merge_secret(environment: Mapping[str, str], data: Mapping[str, Any], where: str, salt: str) -> StoreAccess:
    """Return access by ``environment`` and a Secret's ``data``, which takes precedence. A key that is not a valid
    variable name is a problem."""
    merged = dict(environment)
    for key, value in data.items():
        if not _VARIABLE.fullmatch(key):
            return StoreAccess(
                problem=f"{where} has the key {key!r}, which is no environment variable's name; "
                "expected keys like AWS_ACCESS_KEY_ID"
            )
        try:
            merged[key] = base64.b64decode(value or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError):
            return StoreAccess(problem=f"{where} has a value for {key} that is no text")
    return make_access(merged, salt)


# The credentials of the chart's own store: generated once, at random, and never changed.


log = logging.getLogger(__name__)

_ID_BYTES: Final = 10  # 20 characters in hex, as in AWS
_SECRET_BYTES: Final = 20  # 40 characters in hex


async def ensure_credentials(cluster: Cluster, namespace: str, name: str) -> None:
    """Create the Secret ``name`` if absent. Only the store and the operator read it."""
    if await cluster.get_secret(namespace, name) is not None:
        return
    if await cluster.create_secret(_credentials(namespace, name)):
        log.info("created Secret %s/%s with credentials for the store", namespace, name)


def _credentials(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name, "labels": dict(names.OPERATOR_LABELS)},
        "type": "Opaque",
        "stringData": {
            "AWS_ACCESS_KEY_ID": secrets.token_hex(_ID_BYTES),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(_SECRET_BYTES),
        },
    }


_DATA_KEY: Final = "key"


class ShardKeyReader:
    """The key as last read; empty before that."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, on_change: Callable[[bytes], None]) -> None:
        """``on_change`` is called with each new key."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._on_change = on_change
        self._key = b""

    async def refresh(self) -> bool:
        """Read the Secret, or create it if absent. Return whether the key changed. Raises what ``Api`` raises, also if
        the Secret holds no key; the last key stays then."""
        found = await self._cluster.get_secret(self._namespace, self._name)
        if found is None:
            await self._cluster.create_secret(_render(self._namespace, self._name))
            log.info("created Secret %s/%s with the key of shard servers' passwords", self._namespace, self._name)
            # Read it back, because somebody else may have created it first.
            found = await self._cluster.get_secret(self._namespace, self._name)
        key = _read_key(found or {}, f"Secret {self._namespace}/{self._name}")
        if key == self._key:
            return False
        self._key = key
        self._on_change(key)
        return True


def _read_key(secret: Mapping[str, Any], where: str) -> bytes:
    """Return the key in ``secret``. Raises Refused without showing the content."""
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
