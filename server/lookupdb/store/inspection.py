"""Statistics of shard files: bytes per record, compression, LMDB's wasted pages, and a few records to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lookupdb.shardfile import ShardReader, unframe_start
from lookupdb.store.difference import MAX_VALUE_BYTES

SAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class ShardFigures:
    """Sums over one or several shards, in bytes unless the name says otherwise."""

    records: int
    key_bytes: int
    value_bytes: int
    stored_bytes: int
    file_bytes: int
    dictionary_bytes: int
    """The size in one file; each file holds a copy."""
    overflow_pages: int
    """Pages that hold (a part of) one long value and nothing else."""
    overflow_waste_bytes: int
    """The unused bytes at the ends of those pages."""

    def per_record(self, size: int) -> float:
        """``size`` divided by the number of records."""
        return size / self.records if self.records else 0.0

    @property
    def compression(self) -> float:
        """Stored bytes divided by value bytes."""
        return self.stored_bytes / self.value_bytes if self.value_bytes else 1.0


def measure_shards(shards: Sequence[ShardReader]) -> ShardFigures:
    """Sum up what the files say of themselves, without reading any record."""
    extras = [shard.meta.extra for shard in shards]
    pages = [shard.pages() for shard in shards]
    waste = sum(
        page["overflow_pages"] * page["psize"] - int(extra.get("overflow_bytes", 0))
        for page, extra in zip(pages, extras, strict=True)
    )
    return ShardFigures(
        records=sum(shard.meta.records for shard in shards),
        key_bytes=sum(int(extra.get("key_bytes", 0)) for extra in extras),
        value_bytes=sum(int(extra.get("value_bytes", 0)) for extra in extras),
        stored_bytes=sum(int(extra.get("stored_bytes", 0)) for extra in extras),
        file_bytes=sum(shard.path.stat().st_size for shard in shards),
        dictionary_bytes=max((shard.dictionary_bytes for shard in shards), default=0),
        overflow_pages=sum(page["overflow_pages"] for page in pages),
        overflow_waste_bytes=waste,
    )


def sample_records(shards: Sequence[ShardReader], count: int = SAMPLES) -> list[tuple[bytes, bytes]]:
    """The first ``count`` keys of the first shards that have records, with their values, of which long ones are cut."""
    records = ((shard, key, stored) for shard in shards for key, stored in shard.items())
    return [
        (key, unframe_start(shard.expand(stored), MAX_VALUE_BYTES)) for shard, key, stored in islice(records, count)
    ]
