"""How builders and fetchers reach the store: by the operator's settings and Secret, which is read at each resync."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from lookupdb_operator.api.client import Refused
from lookupdb_operator.api.cluster import Cluster
from lookupdb_operator.config import StoreAccess

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCRYPT_ROUNDS: Final = 1 << 14
_SCRYPT_MAX_BYTES: Final = 32 << 20
"""Twice what it needs."""
_DIGEST_BYTES: Final = 8


class StoreAccessReader:
    """The store's environment as it was when last read."""

    def __init__(
        self, cluster: Cluster, *, namespace: str, secret: str, environment: Mapping[str, str], salt: str
    ) -> None:
        """``salt``: what tells this store from others, and stays when the operator starts anew."""
        self._cluster = cluster
        self._namespace = namespace
        self._secret = secret
        self._environment = environment
        self._salt = salt
        self.access = StoreAccess(problem="the store's credentials have not been read yet")

    async def refresh(self) -> bool:
        """Read the Secret. Returns whether anything has changed. Raises Unreachable, and then ``access`` stays."""
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
    """Access by ``environment``, with its digest."""
    text = json.dumps(dict(environment), sort_keys=True)
    return StoreAccess(environment=dict(environment), digest=_digest(text, salt))


@functools.lru_cache(maxsize=1)
def _digest(text: str, salt: str) -> str:
    """Of ``text``, slow to compute and not the same elsewhere: whoever may read a dataset sees it in its status, and
    could tell by a fast one whether he has guessed a secret key. It blocks for some 40 ms, once for each change."""
    return hashlib.scrypt(
        text.encode(), salt=salt.encode(), n=_SCRYPT_ROUNDS, r=8, p=1, maxmem=_SCRYPT_MAX_BYTES, dklen=_DIGEST_BYTES
    ).hex()


def merge_secret(environment: Mapping[str, str], data: Mapping[str, Any], where: str, salt: str) -> StoreAccess:
    """Access by ``environment`` and a Secret's ``data``, which takes precedence. A key that cannot name an environment
    variable is a problem."""
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
