"""Passwords that shard servers ask routers for: one for each shard of a rollout, none of them stored.

    release key  →  key of a dataset  →  password of a shard of a rollout  →  SHA-256 of that

The operator has the release key, the routers of a dataset have the key of their dataset, a shard server has the hash of
its shard's password, which anybody may see: the password has 256 random bits, so that nobody finds it by its hash. A
router shows a password before a server has proven anything, so who listens at one shard's address learns that shard's.
Each is made of the one before and of nothing secret besides, so that whoever has made one can make it again.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

KEY_BYTES: Final = 32
"""Of a release key, and of a dataset's."""
FINGERPRINT_DIGITS: Final = 8


def derive_dataset_key(release_key: bytes, uid: str) -> bytes:
    """The key of the dataset with ``uid``: 32 bytes."""
    return hmac.digest(release_key, b"dataset\0" + uid.encode(), "sha256")


def fingerprint_key(dataset_key: bytes) -> str:
    """What a dataset's key is called where everybody may see it: 8 hexadecimal digits."""
    return hashlib.sha256(dataset_key).hexdigest()[:FINGERPRINT_DIGITS]


def derive_password(dataset_key: bytes, rollout: str, shard: int) -> str:
    """The password of the servers of ``shard`` of ``rollout``, as ``r34``: 64 hexadecimal digits."""
    return hmac.digest(dataset_key, b"shard\0%b\0%d" % (rollout.encode(), shard), "sha256").hex()


def hash_password(password: bytes) -> str:
    """What a shard server is given of a password: 64 hexadecimal digits."""
    return hashlib.sha256(password).hexdigest()
