"""How ``--memory-limit`` is divided between the processes of a build, and within them between who needs memory.

The parts are shares, chosen so that the whole stays under the limit; benchmarks measure that it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from lookupdb.build.write.compression import SAMPLE_BYTES
from lookupdb.errors import NotEnoughRoom

MIB: Final = 1 << 20
LEAST: Final = 256 * MIB
"""The smallest limit with which a build is tried."""
_DIRTY_BYTES: Final = 32 * MIB
"""What all shards together hold in memory before it is written; of each, its transaction's pages."""
_LEAST_TRANSACTION_BYTES: Final = 64 << 10
"""Each transaction writes some pages again."""
_OPEN_SHARD_BYTES: Final = 352 << 10
"""What an open shard file takes beside them: LMDB's and Python's own, and what the kernel maps around touched pages."""
_BATCHES_BYTES: Final = 80 * MIB
"""Records on their way to the shards."""
_LEAST_SORTING: Final = 24 * MIB
_RESIDENT: Final = 80 * MIB
"""What Python and the libraries take in the build's own process."""
_MEMBER_RESIDENT: Final = 32 * MIB
"""The same for a process that only reads."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for each who needs memory that depends on the data. What is left over is the writer side's."""

    sorting: int
    """Records held in memory."""
    row: int
    """The longest row: its text, what is parsed from it and its value are held at once."""
    sample: int
    duckdb: int
    """DuckDB's own limit, while it reads Parquet."""
    members: int
    """How many processes may read beside this one."""

    @classmethod
    def of(cls, memory_limit: int, *, shards: int, sampled: bool = True) -> Self:
        """For the build's own process. Raises NotEnoughRoom when ``memory_limit`` does not suffice."""
        least = least_limit(shards)
        if memory_limit < least:
            raise NotEnoughRoom(
                f"a memory limit of {memory_limit // MIB} MiB is too small, a build of {shards:,} "
                f"{'shard' if shards == 1 else 'shards'} needs {least // MIB} MiB or more",
                hint="raise --memory-limit; 1 GiB suits most builds",
            )
        free = memory_limit - _RESIDENT
        most_sorting = free - _writer_bytes(shards)
        return cls._divide(free, memory_limit // LEAST, sampled, most_sorting)

    @classmethod
    def of_member(cls, memory_limit: int, members: int, *, sampled: bool) -> Self:
        """For each of ``members`` processes that read beside the build's own."""
        free = (memory_limit - _RESIDENT) // members - _MEMBER_RESIDENT
        return cls._divide(free, 0, sampled, free)

    @classmethod
    def _divide(cls, free: int, members: int, sampled: bool, most_sorting: int) -> Self:
        return cls(
            sorting=min(free * 2 // 5, most_sorting),
            row=max(MIB, free // 12),
            sample=min(SAMPLE_BYTES, free // 16) if sampled else 0,
            duckdb=free // 5,
            members=members,
        )


def least_limit(shards: int) -> int:
    """The smallest memory limit, in whole MiB, with which a build of ``shards`` shards is tried."""
    least = max(LEAST, _RESIDENT + _LEAST_SORTING + _writer_bytes(shards))
    return -(-least // MIB) * MIB


def transaction_bytes(shards: int) -> int:
    """What a transaction of a shard file holds: by ``shards`` alone, because the file's bytes depend on it."""
    return max(_LEAST_TRANSACTION_BYTES, _DIRTY_BYTES // shards)


def _writer_bytes(shards: int) -> int:
    """What writing takes beside the sorted records: an eighth more than its pages, for what malloc adds."""
    return shards * (transaction_bytes(shards) * 9 // 8 + _OPEN_SHARD_BYTES) + _BATCHES_BYTES
