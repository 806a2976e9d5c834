"""A generation as the router serves it: how a key finds its shard, and what an answer says of where it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lookupdb.route.shards.replicas import ShardReplicas


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One generation of the routing table in effect, with its shards' connections. Compared by identity."""

    name: str
    """``g12``."""
    value_format: Literal["json", "raw"]
    records: int
    built_at: str
    """ISO 8601, UTC."""
    encode: Callable[[str], bytes]
    """From a key as asked to the bytes it is stored under (see ``keys.key_encoder``); raises InvalidKey."""
    shards: tuple[ShardReplicas, ...]
