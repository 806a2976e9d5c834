"""Decides whether lookups wait so long for a disk that it pays to read their pages beforehand, in other threads.

What is weighed is time: what the loop waits against what it computes, for a key costs up to five times as much
processor time while data is taken for cold. Some pages of a large file that have left the page cache are no reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COLD_FAULTS: Final = 100
"""Fewer page faults in a second make nothing cold: but for the slowest of disks, they take a hundredth of it."""
COLD_WAITS: Final = 1.0
"""Data is cold when the loop has waited so many times as long as it has computed, which to take a fault is as well."""
WARM_WAITS: Final = 0.1
"""It is warm again when the loop would have waited so many times as long as is computed, which is more than before."""
WARM_READS: Final = 100
"""With fewer pages read in a second it is warm in any case."""
SECONDS: Final = 1.0
"""What is weighed together. Short, because neither to wait nor to be cold costs much in so little time."""


class Usage(NamedTuple):
    """What a worker has used since it began, or in a while."""

    seconds: float
    faults: int
    """Page faults of the loop's thread that waited for something."""
    reads: int
    """Pages that all threads have read from disk."""
    cpu: float
    """Processor seconds of all threads."""
    waited: float
    """Seconds in which the loop's thread neither computed nor waited for clients or a processor: but for a disk."""

    def __sub__(self, start: Usage) -> Usage:
        """What was used after ``start``."""
        return Usage(
            seconds=self.seconds - start.seconds,
            faults=self.faults - start.faults,
            reads=self.reads - start.reads,
            cpu=self.cpu - start.cpu,
            waited=self.waited - start.waited,
        )


class ColdSwitch:
    """Says whether data is cold, by what was used since ``start``: to start a process may take many faults."""

    def __init__(self, start: Usage) -> None:
        self.is_cold = False
        self._start = start
        self._page_seconds = 0.0
        """What a page fault took when data became cold."""

    def is_due(self, seconds: float, faults: int) -> bool:
        """Whether ``update`` could change anything, or begins a new second."""
        is_over = seconds - self._start.seconds >= SECONDS
        return is_over or (not self.is_cold and faults - self._start.faults >= COLD_FAULTS)

    def update(self, usage: Usage) -> Usage | None:
        """Take note of ``usage``. If data becomes cold or warm by it, returns what was weighed."""
        delta = usage - self._start
        is_over = delta.seconds >= SECONDS
        has_changed = is_over and self._is_warm(delta) if self.is_cold else _is_cold(delta)
        if has_changed or is_over:
            self._start = usage
        if not has_changed:
            return None
        self.is_cold = not self.is_cold
        if self.is_cold:
            self._page_seconds = delta.waited / delta.faults
        return delta

    def _is_warm(self, delta: Usage) -> bool:
        return delta.reads < WARM_READS or delta.reads * self._page_seconds < WARM_WAITS * delta.cpu


def _is_cold(delta: Usage) -> bool:
    return delta.faults >= COLD_FAULTS and delta.waited >= COLD_WAITS * delta.cpu
