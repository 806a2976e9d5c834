"""How many keys of a shard get a second try while their first goes on. Pure.

To ask another replica for what is late costs little where one server is slow. Where all are, or clients wait for a few
milliseconds only, it would make twice the work of each key. So there are as many as a share of what is answered, and
some more for a short while. What waits for a server that may be dead, because it has not answered for long, needs none
of them, nor does a try that has failed.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
"""Of the keys that are answered."""
BURST_KEYS: Final = 1000
SUSPECT_SECONDS: Final = 0.05
"""A server whose batch has waited for so long may be dead."""


class SecondTries:
    """A bucket of so many keys, which fills as keys are answered."""

    __slots__ = ("_answered", "_left")

    def __init__(self) -> None:
        self._left = float(BURST_KEYS)
        self._answered = 0

    def take(self, key_count: int, answered: int) -> bool:
        """Whether ``key_count`` keys may have a second try, where so many were ``answered`` since the router began. The
        last ones may be more than are left, so that a large slice is asked for as a small one is."""
        self._left = min(BURST_KEYS, self._left + SHARE * max(0, answered - self._answered))
        self._answered = answered
        if self._left <= 0:
            return False
        self._left -= key_count
        return True
