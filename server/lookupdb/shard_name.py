"""What shard files are called, and the version of their format: for those who need neither LMDB nor zstd.

``shardfile`` says what is in them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

FORMAT_VERSION: Final = 1

_FILE_NAME: Final = re.compile(r"shard-[0-9]{5}-of-[0-9]{5}(?:-([0-9a-f]{12}))?\.lmdb")


def file_name(shard: int, shards: int, attempt: str = "") -> str:
    """The name of a shard's file within its generation; in a bucket it is unique to the ``attempt`` that built it."""
    return f"shard-{shard:05d}-of-{shards:05d}{attempt and f'-{attempt}'}.lmdb"


def parse_attempt(name: str, shard: int, shards: int) -> str | None:
    """The attempt in the file ``name`` of this shard, "" if it has none; None if this is not the shard's file."""
    match = _FILE_NAME.fullmatch(name)
    attempt = (match[1] or "") if match else ""
    return attempt if name == file_name(shard, shards, attempt) else None


def is_file_name(name: str) -> bool:
    """Whether ``name`` is the name of a shard's file."""
    return _FILE_NAME.fullmatch(name) is not None


# Passwords that shard servers ask routers for: one for each shard of a rollout, none of them stored.
#
#     release key  →  key of a dataset  →  password of a shard of a rollout  →  SHA-256 of that
#
# The operator has the release key, the routers of a dataset have the key of their dataset, a shard server has the hash
# of its shard's password, which anybody may see: the password has 256 random bits, so that nobody finds it by its hash.
# A router shows a password before a server has proven anything, so who listens at one shard's address learns that
# shard's. Each is made of the one before and of nothing secret besides, so that whoever has made one can make it again.


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


# What is known by the answer when HTTP is spoken to a Redis port: the one place, for commands and clients.


_REPLY: Final = re.compile(rb"-[A-Z]+ |[+$:*]")

REDIS_HINT: Final = (
    "this looks like a Redis port, 6379 say. Lookups by HTTP have another one: 8080, or what --port of the router says,"
    " which `lookupdb up` shows in its line with curl; of a Service 80 or 443"
)


def begins_redis_reply(answer: bytes) -> bool:
    """Whether ``answer``, its first line at least, is none of HTTP but a Redis server's: such refuse the first line of
    a request."""
    return _REPLY.match(answer) is not None
