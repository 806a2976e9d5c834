"""Keys that a generation has, at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb

from lookupdb.errors import CorruptFile, UsageError
from lookupdb.load.key_source import DEFAULT_SAMPLE, MAX_KEYS, take_sample
from lookupdb.store.stored_generation import StoredGeneration, open_shard


def sample_generation(generation: StoredGeneration, scratch: Path, seed: int, size: int = DEFAULT_SAMPLE) -> list[str]:
    """At most ``size`` keys of ``generation``, each as likely as any other. All shards are looked through, one at a
    time; their values are not read. Raises UsageError, StoreError, CorruptFile."""
    total = generation.manifest.totals.records
    keys = [key.decode() for key in take_sample(_iterate_keys(generation, scratch), min(size, MAX_KEYS), seed)]
    if not keys:
        raise UsageError(f"{generation.where} has no keys to ask for ({total} records)", hint="give keys in a file")
    return keys


def _iterate_keys(generation: StoredGeneration, scratch: Path) -> Iterator[bytes]:
    for shard in generation.manifest.shards:
        with generation.file(shard, scratch) as path, open_shard(path) as reader:
            try:
                yield from reader.txn.cursor().iternext(keys=True, values=False)
            except lmdb.Error as error:
                raise CorruptFile(f"{path} is damaged: {error}", hint="fetch or build it again") from error
