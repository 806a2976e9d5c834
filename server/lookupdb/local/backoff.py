"""The growing pause between two attempts at what has failed and may yet succeed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0


class Backoff:
    """When to try again: after a second, then after twice as long each time, five minutes at most."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` is a clock that is never set back, in seconds."""
        self._now = now
        self._pause = 0.0
        self._due_at: float | None = None

    def note_failure(self) -> float:
        """The attempt has failed for now. Returns the seconds until the next one."""
        self._pause = min(2 * self._pause, LONGEST_SECONDS) or FIRST_SECONDS
        self._due_at = self._now() + self._pause
        return self._pause

    def is_due(self) -> bool:
        """Whether the last attempt has failed for now, and its pause is over."""
        return self._due_at is not None and self._now() >= self._due_at

    def reset(self) -> None:
        """There is nothing to try again: the attempt has succeeded, or failed for good."""
        self._pause = 0.0
        self._due_at = None
