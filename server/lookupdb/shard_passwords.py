"""Passwords that shard servers require from routers: one for each shard of a rollout, none of them stored.

release key → key of a dataset → password of a shard of a rollout → SHA-256 of that

The operator has the release key, the routers of a dataset its key, and a shard server the hash of its shard's
password. The hash is public: a password has 256 random bits. A router sends a password before a server has proven
anything, so an impostor at one shard's address learns only that shard's. Each step derives from the one before alone,
so it can be repeated.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

KEY_BYTES: Final = 32
"""Size of a release key, and of a dataset's."""
FINGERPRINT_DIGITS: Final = 8


def derive_dataset_key(release_key: bytes, uid: str) -> bytes:
    """Return the key of the dataset with ``uid``: 32 bytes."""
    return hmac.digest(release_key, b"dataset\0" + uid.encode(), "sha256")


def fingerprint_key(dataset_key: bytes) -> str:
    """Return a public name for a dataset's key: 8 hexadecimal digits."""
    return hashlib.sha256(dataset_key).hexdigest()[:FINGERPRINT_DIGITS]


def derive_password(dataset_key: bytes, rollout: str, shard: int) -> str:
    """Return the password of the servers of ``shard`` of ``rollout``, as ``r34``: 64 hexadecimal digits."""
    return hmac.digest(dataset_key, b"shard\0%b\0%d" % (rollout.encode(), shard), "sha256").hex()


def hash_password(password: bytes) -> str:
    """Return the hash of a password for a shard server: 64 hexadecimal digits."""
    return hashlib.sha256(password).hexdigest()
