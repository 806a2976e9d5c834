"""Whole generations served by real shard servers, and routing tables of them.

with fleet(generation, replicas=2) as shards:
    routing_table = table(fleet_entry(generation, shards))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lookupdb.manifest import FILE_NAME, Manifest
from support.routing import entry
from support.shards import Running, serving

Shards = list[list[Running]]
"""The replicas of each shard."""


@contextlib.contextmanager
def fleet(
    generation: Path, *options: str, replicas: int = 1, of_shard: Callable[[int], Iterable[str]] = lambda shard: ()
) -> Iterator[Shards]:
    """``lookupdb serve`` for each replica of each shard, started side by side."""
    count = len(_manifest(generation).shards)
    contexts = [
        serving(generation, *options, *of_shard(shard), shard=shard) for shard in range(count) for _ in range(replicas)
    ]
    with ThreadPoolExecutor(len(contexts)) as pool:
        entering = [pool.submit(context.__enter__) for context in contexts]
        try:
            running = [future.result() for future in entering]
            yield [running[at : at + replicas] for at in range(0, len(running), replicas)]
        finally:
            entered = [context for context, future in zip(contexts, entering, strict=True) if not future.exception()]
            leaving = [pool.submit(context.__exit__, None, None, None) for context in entered]
        for future in leaving:
            future.result()


def fleet_entry(generation: Path, shards: Shards) -> dict[str, Any]:
    """The generation as a routing table names it."""
    manifest = _manifest(generation)
    composite = {"keyColumns": manifest.key_columns, "separator": manifest.separator}
    return entry(
        [[f"127.0.0.1:{port}" for server in replicas for port in server.ports] for replicas in shards],
        manifest.generation,
        records=manifest.totals.records,
        bytes=manifest.totals.file_bytes,
        builtAt=manifest.built_at,
        normalize=list(manifest.normalize),
        valueFormat=manifest.value_format,
        **(composite if len(manifest.key_columns) > 1 else {}),
    )


def _manifest(generation: Path) -> Manifest:
    return Manifest.from_json((generation / FILE_NAME).read_bytes(), str(generation))
