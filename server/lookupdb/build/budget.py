"""How ``--memory-limit`` is divided. The parts were measured: resident memory stays under the limit as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from lookupdb.errors import NotEnoughRoom

MIB: Final = 1 << 20
LEAST: Final = 128 * MIB
"""The smallest limit with which a build is tried."""
_RESIDENT: Final = 80 * MIB
"""What Python and the libraries take before the first row."""


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

    @classmethod
    def of(cls, memory_limit: int) -> Self:
        """Raises NotEnoughRoom when ``memory_limit`` is below ``LEAST``."""
        if memory_limit < LEAST:
            raise NotEnoughRoom(
                f"the memory limit of {memory_limit // MIB} MiB is too small: a build needs {LEAST // MIB} MiB",
                hint="raise --memory-limit; 1 GiB suits most builds",
            )
        free = memory_limit - _RESIDENT
        return cls(sorting=free * 2 // 5, row=max(MIB, free // 12), sample=min(32 * MIB, free // 16), duckdb=free // 5)
