"""How the attempts at one thing fail: told in full when it is news, and briefly as long as it is the same."""

from __future__ import annotations

from lookupdb.errors import LookupdbError
from lookupdb.local.builds import BuildFailed


class RepeatedFailure:
    """The failure of the last attempt, and how many in a row have ended so."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._attempts = 0

    def is_repeated_by(self, error: LookupdbError) -> bool:
        """Whether the last attempt has ended as one with ``error``."""
        return self._last == _identify(error)

    def note(self, error: LookupdbError) -> int:
        """Another attempt has ended with ``error``. Returns how many in a row have."""
        self._attempts = self._attempts + 1 if self.is_repeated_by(error) else 1
        self._last = _identify(error)
        return self._attempts

    def reset(self) -> None:
        """The next failure is news: the attempt is at something else, or the last one has succeeded."""
        self._last = None


def _identify(error: LookupdbError) -> tuple[str, str]:
    """What a person is told of it, of a builder's by itself too."""
    return str(error), error.cause if isinstance(error, BuildFailed) else ""
