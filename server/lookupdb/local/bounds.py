"""How many processes `lookupdb up` may start on one machine: a manifest made for a cluster would take a laptop down."""

from __future__ import annotations

from typing import Final

from lookupdb.errors import UsageError
from lookupdb.spec import DatasetSpec

MAX_SERVERS: Final = 64
"""Shard servers unless --max-servers says otherwise."""
SUPERVISOR_MIB: Final = 30
WORKER_MIB: Final = 12
"""What each process of a shard server takes to itself, beside the shard's data in the page cache: measured, about."""


def count_servers(spec: DatasetSpec) -> int:
    """The shard servers of one generation."""
    return spec.shards * spec.replicas


def check_servers(spec: DatasetSpec, max_servers: int) -> None:
    """Raises UsageError when the dataset needs more than ``max_servers`` shard servers."""
    servers = count_servers(spec)
    if servers <= max_servers:
        return
    processes = servers * (1 + spec.serving_workers)
    mebibytes = servers * (SUPERVISOR_MIB + spec.serving_workers * WORKER_MIB)
    raise UsageError(
        f"{spec.name} needs {servers:,} shard servers (spec.shards {spec.shards:,} × spec.replicas {spec.replicas:,}), "
        f"and `lookupdb up` starts at most {max_servers:,}: they would be {processes:,} processes with about "
        f"{mebibytes / 1024:,.1f} GiB of memory, twice that while a new generation is rolled out",
        hint="to try it out, lower spec.shards (a shard holds millions of records) or spec.replicas; "
        f"a machine that is large enough is asked with --max-servers {servers}",
    )
