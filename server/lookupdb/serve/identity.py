"""What a shard server says that it serves: the supervisor knows it, a worker answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a worker says that it serves. The router compares it before it uses a connection."""

    format_version: int
    dataset: str
    """``namespace/name``."""
    dataset_uid: str
    generation: str
    shard: int
    shards: int
    records: int
    normalize: Sequence[str]
    value_format: str
