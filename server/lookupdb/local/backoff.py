"""The growing pause between two attempts at what has failed. Nothing fails for good: what an attempt has read may have
been half written, or away for a moment, though it looks the same before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
"""Of what may pass by itself: a disk has room again, a server answers."""
FIRST_PERSISTENT_SECONDS: Final = 30.0
LONGEST_PERSISTENT_SECONDS: Final = 1800.0
"""Of all else, a bad source say: as the operator waits in a cluster."""
_MAX_DOUBLINGS: Final = 30
"""More than any pause needs."""


class Backoff:
    """When to try again: each time after twice as long, from a second to five minutes where the error may pass, else
    from half a minute to half an hour."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` is a clock that is never set back, in seconds."""
        self._now = now
        self._failures = {True: 0, False: 0}
        self._due_at: float | None = None

    def note_failure(self, *, may_pass: bool = True) -> float:
        """The attempt has failed. Returns the seconds until the next one."""
        first, longest = (
            (FIRST_SECONDS, LONGEST_SECONDS) if may_pass else (FIRST_PERSISTENT_SECONDS, LONGEST_PERSISTENT_SECONDS)
        )
        pause: float = min(first * 2 ** min(self._failures[may_pass], _MAX_DOUBLINGS), longest)
        self._failures[may_pass] += 1
        self._due_at = self._now() + pause
        return pause

    def is_due(self) -> bool:
        """Whether the last attempt has failed, and its pause is over."""
        return self._due_at is not None and self._now() >= self._due_at

    def reset(self) -> None:
        """There is nothing to try again: the attempt has succeeded, or is another one."""
        self._failures = {True: 0, False: 0}
        self._due_at = None
