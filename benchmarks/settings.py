"""The size and length of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of a full and of a quick run."""

    rows: int
    """Rows of recommendations."""
    persons: int
    """Rows of the person database."""
    sample: int
    """Sampled keys."""
    seconds: float
    """Seconds of load, for a side and a round."""
    rounds: int
    builds: int
    """Repetitions of build and load."""
    lookups: tuple[int, int] = (100_000, 1_000_000)
    """Numbers of lookups after which a worker's memory is read."""
    connections: int = 50
    """Connections to a RESP server, as in redis-benchmark."""
    http_connections: int = 100
    """Connections to an HTTP server, the same for all: a front has more clients than the server behind it."""
    batch: int = 100
    cold_batches: int = 100
    """Keys of a round of cold data: they touch less than a quarter of the file's pages."""
    pipeline: int = 16


FULL: Final = Settings(rows=1_000_000, persons=5_000_000, sample=200_000, seconds=2, rounds=5, builds=2)
QUICK: Final = Settings(rows=50_000, persons=50_000, sample=20_000, seconds=1, rounds=2, builds=1, cold_batches=5)
