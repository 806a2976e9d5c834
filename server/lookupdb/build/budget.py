"""How ``--memory-limit`` is divided between the processes of a build, and within them between who needs memory.

The parts are shares, chosen so that the whole stays under the limit; benchmarks measure that it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from lookupdb.build.compress import SAMPLE_BYTES
from lookupdb.errors import NotEnoughRoom

MIB: Final = 1 << 20
LEAST: Final = 256 * MIB
"""The smallest limit with which a build is tried."""
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
    def of(cls, memory_limit: int, *, sampled: bool = True) -> Self:
        """For the build's own process. Raises NotEnoughRoom when ``memory_limit`` is below ``LEAST``."""
        if memory_limit < LEAST:
            raise NotEnoughRoom(
                f"a memory limit of {memory_limit // MIB} MiB is too small, a build needs {LEAST // MIB} MiB or more",
                hint="raise --memory-limit; 1 GiB suits most builds",
            )
        return cls._divide(memory_limit - _RESIDENT, memory_limit // LEAST, sampled)

    @classmethod
    def of_member(cls, memory_limit: int, members: int, *, sampled: bool) -> Self:
        """For each of ``members`` processes that read beside the build's own."""
        return cls._divide((memory_limit - _RESIDENT) // members - _MEMBER_RESIDENT, 0, sampled)

    @classmethod
    def _divide(cls, free: int, members: int, sampled: bool) -> Self:
        return cls(
            sorting=free * 2 // 5,
            row=max(MIB, free // 12),
            sample=min(SAMPLE_BYTES, free // 16) if sampled else 0,
            duckdb=free // 5,
            members=members,
        )
