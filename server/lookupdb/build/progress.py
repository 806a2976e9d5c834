"""What a build reports while it runs. ``progress_display`` shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Phases follow one another: ``begin_phase``, any number of ``advance``, ``end_phase``.

    Called from one thread at a time, at most a few hundred times a second.
    """

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase with ``total`` of ``unit`` ("bytes" or "rows") ahead; None if the total is unknown."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """Add ``amount`` of the phase's unit, and ``rows`` rows if that unit is bytes."""

    def end_phase(self) -> None:
        """End a phase that went well. A phase that fails is not ended."""


class SilentProgress:
    """Shows nothing."""

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Shows nothing."""

    def advance(self, amount: int, rows: int = 0) -> None:
        """Shows nothing."""

    def end_phase(self) -> None:
        """Shows nothing."""


def format_quantity(count: float, unit: str) -> str:
    """``count`` as people read it: 1,234,567 rows, 1.2 GiB."""
    if unit != "bytes":
        return f"{count:,.0f} {unit}"
    size = float(count)
    for name in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} bytes" if name == "bytes" else f"{size:.1f} {name}"
        size /= 1024
    return f"{size:,.1f} TiB"
