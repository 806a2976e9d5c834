"""Shows a build's progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TextIO

from lookupdb.build.progress import Progress, SilentProgress, format_quantity

LINE_SECONDS: Final = 3.0
"""The time between two lines of one phase."""


class ProgressLines:
    """Writes a line every few seconds during a phase, and one at its end."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._name = self._unit = ""
        self._total: int | None = None
        self._count = self._rows = 0
        self._started_at = self._last_line_at = 0.0

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase."""
        self._name, self._unit, self._total = name, unit, total
        self._count = self._rows = 0
        self._started_at = self._last_line_at = self._clock()

    def advance(self, amount: int, rows: int = 0) -> None:
        """Write a line if the last one is some seconds old."""
        self._count += amount
        self._rows += rows
        if self._clock() - self._last_line_at >= LINE_SECONDS:
            self._last_line_at = self._clock()
            total = f" of {format_quantity(self._total, self._unit)}" if self._total else ""
            self._write_line(total, "")

    def end_phase(self) -> None:
        """Write the phase's totals."""
        self._write_line("", ", done")

    def _write_line(self, total: str, end: str) -> None:
        seconds = self._clock() - self._started_at
        parts = [f"{format_quantity(self._count, self._unit)}{total}"] if self._count else []
        if self._rows:
            parts.append(format_quantity(self._rows, "rows"))
        pace, unit = (self._rows, "rows") if self._rows else (self._count, self._unit)
        if pace and seconds >= 0.1:
            parts.append(f"{format_quantity(pace / seconds, unit)}/s")
        self._out.write(f"{self._name}{end}: {', '.join([*parts, f'{seconds:.1f} s'])}\n")
        self._out.flush()


@contextmanager
def open_progress(style: Literal["auto", "rich", "plain", "none"] | str) -> Iterator[Progress]:
    """The progress display of this ``style``; auto is rich on a terminal and plain elsewhere."""
    if style == "none":
        yield SilentProgress()
    elif style == "rich" or (style == "auto" and sys.stderr.isatty()):
        from lookupdb.build import progress_bars  # rich is a quarter of what a build imports

        with progress_bars.open_bars(is_forced=style == "rich") as bars:
            yield bars
    else:
        yield ProgressLines(sys.stderr)
