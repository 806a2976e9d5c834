"""A build's progress: its display as bars on a terminal or plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from lookupdb.builder.options import Progress, SilentProgress
from lookupdb.logs import LOG_FILE
from lookupdb.wording import format_count


def format_quantity(count: float, unit: str) -> str:
    """Format ``count`` for people: 1,234,567 rows, 1.2 GiB."""
    if unit != "bytes" or count < 1024:
        return format_count(round(count), unit.removesuffix("s"))
    size = count / 1024
    for name in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {name}"
        size /= 1024
    return f"{size:,.1f} TiB"


LINE_SECONDS: Final = 3.0
"""Seconds between two lines of one phase."""


class ProgressLines:
    """Write a line every few seconds during a phase, and one at its end."""

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
        """Write a line if the last one is a few seconds old."""
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
def open_progress(
    style: Literal["auto", "rich", "plain", "none"] | str, phases: Progress | None = None
) -> Iterator[Progress]:
    """Open the progress display of this ``style``; auto is rich on a terminal and plain elsewhere. If LOG_FILE names a
    file, it gets the lines, too. ``phases`` gets the same calls."""
    with ExitStack() as stack:
        shown: Progress
        if style == "none":
            shown = SilentProgress()
        elif style == "rich" or (style == "auto" and sys.stderr.isatty()):
            shown = stack.enter_context(open_bars(is_forced=style == "rich"))
        else:
            shown = ProgressLines(sys.stderr)
        if path := os.environ.get(LOG_FILE):
            shown = _Both(shown, ProgressLines(stack.enter_context(Path(path).open("a", encoding="utf-8"))))
        yield shown if phases is None else _Both(shown, phases)


class _Both:
    """Several displays of the same progress."""

    def __init__(self, *displays: Progress) -> None:
        self._displays = displays

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase."""
        for display in self._displays:
            display.begin_phase(name, total, unit)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Advance the phase."""
        for display in self._displays:
            display.advance(amount, rows)

    def end_phase(self) -> None:
        """End the phase."""
        for display in self._displays:
            display.end_phase()


@contextmanager
def open_bars(*, is_forced: bool) -> Iterator[ProgressBars]:
    """Show bars on standard error; with ``is_forced`` even if that is no terminal."""
    console = Console(stderr=True, force_terminal=True if is_forced else None)
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<10}"),
        BarColumn(20),
        _AmountColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bars:
        yield ProgressBars(bars)


class ProgressBars:
    """Show a bar per phase on a terminal: amount, rate, remaining time."""

    def __init__(self, bars: Bar) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def begin_phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a bar."""
        self._task = self._bars.add_task(name, total=total, unit=unit, rows=0)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Move the bar."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            self._bars.update(self._task, advance=amount, rows=task.fields["rows"] + rows)

    def end_phase(self) -> None:
        """Fill the bar and leave it."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            whole = task.completed or 1
            self._bars.update(self._task, total=whole, completed=whole, empty=not task.completed)
            self._task = None


class _AmountColumn(ProgressColumn):
    """The amount, the total and the rate."""

    def render(self, task: Task) -> Text:
        """Return the text that rich shows."""
        if task.fields.get("empty"):
            return Text("")
        count, unit = task.completed, str(task.fields["unit"])
        total = f" of {format_quantity(task.total, unit)}" if task.total and not task.finished else ""
        if task.fields["rows"]:  # the bar itself shows the share of bytes
            count, unit, total = task.fields["rows"], "rows", ""
        parts = [format_quantity(count, unit) + total]
        seconds = task.finished_time or task.elapsed or 0.0
        if seconds >= 0.1 and count:
            parts.append(f"{format_quantity(count / seconds, unit)}/s")
        return Text("  ".join(parts))
