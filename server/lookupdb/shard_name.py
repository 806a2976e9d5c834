"""Names of shard files and their format version, without LMDB and zstd. See ``shardfile`` for their content.

Also passwords of shard servers, and the recognition of a Redis port.
"""

from __future__ import annotations

import re
from typing import Final

FORMAT_VERSION: Final = 1

_FILE_NAME: Final = re.compile(r"shard-[0-9]{5}-of-[0-9]{5}(?:-([0-9a-f]{12}))?\.lmdb")


def file_name(shard: int, shards: int, attempt: str = "") -> str:
    """Return the name of a shard's file within its generation; in a bucket it is unique to the ``attempt`` that built
    it."""
    return f"shard-{shard:05d}-of-{shards:05d}{attempt and f'-{attempt}'}.lmdb"


def parse_attempt(name: str, shard: int, shards: int) -> str | None:
    """Return the attempt in the file ``name`` of this shard, "" if it has none; None if this is not the shard's
    file."""
    match = _FILE_NAME.fullmatch(name)
    attempt = (match[1] or "") if match else ""
    return attempt if name == file_name(shard, shards, attempt) else None


def is_file_name(name: str) -> bool:
    """Return whether ``name`` is the name of a shard's file."""
    return _FILE_NAME.fullmatch(name) is not None


# HTTP requests to a Redis port, recognized by their answer, for commands and clients.


_REPLY: Final = re.compile(rb"-[A-Z]+ |[+$:*]")

REDIS_HINT: Final = (
    "this looks like a Redis port, 6379 say. Lookups by HTTP have another one: 8080, or what --port of the router says,"
    " which `lookupdb up` shows in its line with curl; of a Service 80 or 443"
)


def begins_redis_reply(answer: bytes) -> bool:
    """Return whether ``answer``, at least its first line, is a Redis server's refusal of an HTTP request."""
    return _REPLY.match(answer) is not None
