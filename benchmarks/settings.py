"""How large and how long a run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers that a full and a quick run differ in, and those they share."""

    rows: int
    """Of recommendations."""
    persons: int
    """Rows of the person database."""
    sample: int
    """Keys that are asked for."""
    seconds: float
    """Of load, a side and a round."""
    rounds: int
    builds: int
    """How often build and load are repeated."""
    lookups: tuple[int, int] = (100_000, 1_000_000)
    """After how many lookups a worker's memory is read."""
    connections: int = 50
    """To a server that speaks RESP: redis-benchmark's own default."""
    http_connections: int = 100
    """To one that speaks HTTP: a front has more clients than what stands behind it. The same for all of them."""
    batch: int = 100
    cold_batches: int = 100
    """Asked for in a round of cold data: few enough to touch less than a quarter of the file's pages."""
    pipeline: int = 16


FULL: Final = Settings(rows=1_000_000, persons=5_000_000, sample=200_000, seconds=2, rounds=5, builds=2)
QUICK: Final = Settings(rows=50_000, persons=50_000, sample=20_000, seconds=1, rounds=2, builds=1, cold_batches=5)
