"""Divides ``--memory-limit`` among the processes of a build, and within a process among its consumers of memory.

Each consumer gets a share, chosen so that the sum stays under the limit; benchmarks measure that it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from lookupdb.errors import NotEnoughRoom

MIB: Final = 1 << 20
MIN_MEMORY_LIMIT: Final = 256 * MIB
"""No build starts with a smaller limit."""
SAMPLE_BYTES: Final = 9 * MIB
"""Values to train the compression dictionary on: more made it no better, and training takes time in proportion. No more
than the smallest memory limit leaves for them, because the dictionary must not depend on that limit."""
_DIRTY_BYTES: Final = 32 * MIB
"""What all shards together hold in memory before it is written: the pages of their transactions."""
_MIN_TRANSACTION_BYTES: Final = 64 << 10
"""Smaller transactions write too many pages twice."""
_OPEN_SHARD_BYTES: Final = 352 << 10
"""What an open shard file takes beside its transaction: LMDB's and Python's own, and what the kernel maps around
touched pages."""
_BATCHES_BYTES: Final = 80 * MIB
"""Records on their way to the shards, and two threads that compress them."""
_PACKERS: Final = 2
_PACKER_BYTES: Final = 4 * MIB
"""What each further thread takes that compresses natively: zstd's tables, and the largest dictionary with its own."""
_PACKERS_PART: Final = 16
"""Together they may have this part of what the memory limit is above the smallest."""
_MIN_SORTING_BYTES: Final = 24 * MIB
_RESIDENT_BYTES: Final = 80 * MIB
"""What Python and the libraries take in the build's main process."""
_MEMBER_RESIDENT_BYTES: Final = 32 * MIB
"""The same in a crew member, which only reads."""


@dataclass(frozen=True, slots=True)
class BuildBudget:
    """Bytes for each consumer whose need depends on the data. The writer has the rest."""

    sorting: int
    """For records in memory."""
    row: int
    """The longest row: memory holds its text, the parsed row and its value at once."""
    sample: int
    duckdb: int
    """DuckDB's own limit while it reads Parquet."""
    members: int
    """How many crew members may read beside the main process."""

    @classmethod
    def for_build(cls, memory_limit: int, *, shards: int, threads: int = 1, needs_sample: bool = True) -> Self:
        """For the build's main process. Raises NotEnoughRoom if ``memory_limit`` is too small."""
        minimum = min_memory_limit(shards)
        if memory_limit < minimum:
            raise NotEnoughRoom(
                f"a memory limit of {memory_limit // MIB} MiB is too small, a build of {shards:,} "
                f"{'shard' if shards == 1 else 'shards'} needs {minimum // MIB} MiB or more",
                hint="raise --memory-limit; 1 GiB suits most builds",
            )
        free = memory_limit - _RESIDENT_BYTES
        packers = count_packers(memory_limit, shards=shards, threads=threads)
        max_sorting = free - _writer_bytes(shards) - max(0, packers - _PACKERS) * _PACKER_BYTES
        return cls._divide(free, memory_limit // MIN_MEMORY_LIMIT, needs_sample, max_sorting)

    @classmethod
    def for_member(cls, memory_limit: int, members: int, *, needs_sample: bool) -> Self:
        """For each of ``members`` crew members."""
        free = (memory_limit - _RESIDENT_BYTES) // members - _MEMBER_RESIDENT_BYTES
        return cls._divide(free, 0, needs_sample, free)

    @classmethod
    def _divide(cls, free: int, members: int, needs_sample: bool, max_sorting: int) -> Self:
        return cls(
            sorting=min(free * 2 // 5, max_sorting),
            row=max(MIB, free // 12),
            sample=min(SAMPLE_BYTES, free // 16) if needs_sample else 0,
            duckdb=free // 5,
            members=members,
        )


def min_memory_limit(shards: int) -> int:
    """The smallest memory limit, in whole MiB, for a build of ``shards`` shards."""
    minimum = max(MIN_MEMORY_LIMIT, _RESIDENT_BYTES + _MIN_SORTING_BYTES + _writer_bytes(shards))
    return -(-minimum // MIB) * MIB


def count_packers(memory_limit: int, *, shards: int, threads: int) -> int:
    """How many of ``threads`` may compress at once."""
    spare = max(0, memory_limit - min_memory_limit(shards))
    return min(threads, _PACKERS + spare // _PACKERS_PART // _PACKER_BYTES)


def transaction_bytes(shards: int) -> int:
    """The size of a shard's transaction. It depends on ``shards`` alone, because the file's bytes depend on it."""
    return max(_MIN_TRANSACTION_BYTES, _DIRTY_BYTES // shards)


def _writer_bytes(shards: int) -> int:
    """What the writer needs beside the sorted records: an eighth more than its pages, because malloc adds as much."""
    return shards * (transaction_bytes(shards) * 9 // 8 + _OPEN_SHARD_BYTES) + _BATCHES_BYTES
