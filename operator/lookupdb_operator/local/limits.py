"""The limit on shard servers: a manifest made for a cluster could overload a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import UsageError

MAX_SERVERS: Final = 64
"""Default of --max-servers."""
SUPERVISOR_MIB: Final = 30
WORKER_MIB: Final = 12
"""Approximate private memory of each process of a shard server (measured), without the page cache."""


def count_servers(spec: DatasetSpec) -> int:
    """Return the number of shard servers of one generation."""
    return spec.shards * spec.replicas


def check_servers(specs: Sequence[DatasetSpec], max_servers: int) -> None:
    """Raises UsageError when the datasets need more than ``max_servers`` shard servers together."""
    servers = sum(map(count_servers, specs))
    if servers <= max_servers:
        return
    processes = sum(count_servers(spec) * (1 + spec.serving_workers) for spec in specs)
    mebibytes = servers * SUPERVISOR_MIB + (processes - servers) * WORKER_MIB
    needing = f"{specs[0].name} needs" if len(specs) == 1 else f"{', '.join(spec.name for spec in specs)} need"
    sizes = " + ".join(f"spec.shards {spec.shards:,} × spec.replicas {spec.replicas:,}" for spec in specs)
    raise UsageError(
        f"{needing} {servers:,} shard servers ({sizes}), and `lookupdb up` starts at most {max_servers:,}: they would "
        f"be {processes:,} processes with about {mebibytes / 1024:,.1f} GiB of memory, twice that while a new "
        "generation is rolled out",
        hint="to try it out, lower spec.shards (a shard holds millions of records) or spec.replicas; "
        f"on a machine that is large enough, give --max-servers {servers}",
    )
