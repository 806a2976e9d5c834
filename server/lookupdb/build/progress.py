"""What a build tells about how far it is. How that is shown is not decided here."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Phases follow one another: ``phase``, any number of ``advance``, ``done``.

    Called from one thread at a time, at most a few hundred times a second.
    """

    def phase(self, name: str, total: int | None, unit: str) -> None:
        """A phase begins: ``total`` of ``unit`` ("bytes" or "rows") lie ahead, None when that is not known."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """``amount`` more of the phase's unit, holding ``rows`` more rows where the unit is bytes."""

    def done(self) -> None:
        """The phase has ended well. A phase that fails is not told to be done."""


class Silent:
    """Tells nobody."""

    def phase(self, name: str, total: int | None, unit: str) -> None:
        """Nothing is shown."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """Nothing is shown."""

    def done(self) -> None:
        """Nothing is shown."""
