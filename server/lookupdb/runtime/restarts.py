"""Decides when a worker is started again, and when it is given up. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

START_ATTEMPTS: Final = 3
"""A worker that has never been ready is given up after so many attempts: its trouble will not pass."""
FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 5.0
"""Seconds. A worker that was ready once is started again for ever: whatever killed it may pass."""
STEADY_SECONDS: Final = 30.0
"""A worker that was ready for so long has recovered: its next restart is quick again."""


@dataclass(slots=True)
class Restarts:
    """The history of one worker's starts and ends."""

    failures: int = 0
    """In a row: reset by a steady run."""
    was_ready: bool = False
    count: int = 0

    def note_end(self, ready_seconds: float | None) -> float | None:
        """Note that the worker ended after being ready for ``ready_seconds`` (None: never in this run).

        Returns the seconds to wait before the next start, or None: give up.
        """
        self.was_ready = self.was_ready or ready_seconds is not None
        steady = ready_seconds is not None and ready_seconds >= STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        if not self.was_ready and self.failures >= START_ATTEMPTS:
            return None
        self.count += 1
        return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self.failures - 1, 16)))
