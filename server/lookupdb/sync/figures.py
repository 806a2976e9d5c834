"""What a process has done since it began, as /metrics tells it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SyncFigures:
    """Sums over all datasets."""

    fetches: int = 0
    fetch_seconds: float = 0.0
    fetched_bytes: int = 0
    linked_bytes: int = 0
    swaps: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By reason."""
