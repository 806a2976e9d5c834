"""Exponential backoff: delays that double with every failure in a row.

Time and randomness are the caller's: nothing here sleeps or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MAX_DOUBLINGS: Final = 30
"""Enough for any limit, and too few to overflow."""


def delay_after(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after this many ``failures`` in a row: ``first``, doubling up to ``longest``."""
    return float(min(longest, first * 2 ** min(failures - 1, _MAX_DOUBLINGS)))


def spread(delay: float, chance: float) -> float:
    """Shorten ``delay`` by up to half, so that clients that failed together do not retry together. ``chance`` is a
    random number from 0 to 1."""
    return delay * (1 - chance / 2)


class Backoff:
    """The delays of one series of failures."""

    __slots__ = ("_chance", "_first", "_longest", "failures")

    def __init__(self, first: float, longest: float, chance: Callable[[], float] | None = None) -> None:
        """``chance`` returns random numbers from 0 to 1, which spread the delays. Without it they are exact."""
        self._first = first
        self._longest = longest
        self._chance = chance
        self.failures = 0
        """Number of failures in a row."""

    def fail(self) -> float:
        """Count a failure. Return the seconds until the next attempt."""
        self.failures += 1
        delay = delay_after(self.failures, self._first, self._longest)
        return spread(delay, self._chance()) if self._chance else delay

    def reset(self) -> None:
        """Begin again with the first delay, because an attempt succeeded."""
        self.failures = 0
