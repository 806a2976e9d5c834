"""What shard files are called, and the version of their format: for those who need neither LMDB nor zstd.

``shardfile`` says what is in them.
"""

from __future__ import annotations

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
