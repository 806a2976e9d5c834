"""Shows how far a build is: a bar on a terminal, plain lines elsewhere. Everything goes to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from lookupdb.build.progress import Progress, Silent

LINE_SECONDS: Final = 3.0
"""Between two plain lines of one phase."""


class Lines:
    """A line every few seconds while a phase lasts, and one when it ends."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._name = self._unit = ""
        self._total: int | None = None
        self._count = self._rows = 0
        self._began = self._told = 0.0

    def phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a phase."""
        self._name, self._unit, self._total = name, unit, total
        self._count = self._rows = 0
        self._began = self._told = self._clock()

    def advance(self, amount: int, rows: int = 0) -> None:
        """Tell, if the last line is some seconds old."""
        self._count += amount
        self._rows += rows
        if self._clock() - self._told >= LINE_SECONDS:
            self._told = self._clock()
            of = f" of {quantity(self._total, self._unit)}" if self._total else ""
            self._tell(of, "")

    def done(self) -> None:
        """Tell how the phase went."""
        self._tell("", ", done")

    def _tell(self, of: str, end: str) -> None:
        seconds = self._clock() - self._began
        parts = [f"{quantity(self._count, self._unit)}{of}"] if self._count else []
        if self._rows:
            parts.append(quantity(self._rows, "rows"))
        pace, unit = (self._rows, "rows") if self._rows else (self._count, self._unit)
        if pace and seconds >= 0.1:
            parts.append(f"{quantity(pace / seconds, unit)}/s")
        self._out.write(f"{self._name}{end}: {', '.join([*parts, f'{seconds:.1f} s'])}\n")
        self._out.flush()


class Bars:
    """A bar a phase on a terminal: what is done, how fast, how long it will take."""

    def __init__(self, bars: Bar) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def phase(self, name: str, total: int | None, unit: str) -> None:
        """Begin a bar."""
        self._task = self._bars.add_task(name, total=total, unit=unit, rows=0)

    def advance(self, amount: int, rows: int = 0) -> None:
        """Move the bar."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            self._bars.update(self._task, advance=amount, rows=task.fields["rows"] + rows)

    def done(self) -> None:
        """Leave the bar full."""
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            whole = task.completed or 1
            self._bars.update(self._task, total=whole, completed=whole, empty=not task.completed)
            self._task = None


class _Amounts(ProgressColumn):
    """Done, of how much, at which rate."""

    def render(self, task: Task) -> Text:
        """For rich."""
        if task.fields.get("empty"):
            return Text("")
        count, unit = task.completed, str(task.fields["unit"])
        of = f" of {quantity(task.total, unit)}" if task.total and not task.finished else ""
        if task.fields["rows"]:  # the bar tells how much of the bytes is done
            count, unit, of = task.fields["rows"], "rows", ""
        parts = [quantity(count, unit) + of]
        seconds = task.finished_time or task.elapsed or 0.0
        if seconds >= 0.1 and count:
            parts.append(f"{quantity(count / seconds, unit)}/s")
        return Text("  ".join(parts))


def quantity(count: float, unit: str) -> str:
    """``count`` as people read it: 1,234,567 rows, 1.2 GiB."""
    if unit != "bytes":
        return f"{count:,.0f} {unit}"
    size = float(count)
    for name in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} bytes" if name == "bytes" else f"{size:.1f} {name}"
        size /= 1024
    return f"{size:,.1f} TiB"


@contextmanager
def shown(style: Literal["auto", "rich", "plain", "none"] | str) -> Iterator[Progress]:
    """What shows a build's progress in ``style``; auto is rich on a terminal and plain otherwise."""
    if style == "none":
        yield Silent()
    elif style == "rich" or (style == "auto" and sys.stderr.isatty()):
        console = Console(stderr=True, force_terminal=True if style == "rich" else None)
        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description:<10}"),
            BarColumn(20),
            _Amounts(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=console) as bars:
            yield Bars(bars)
    else:
        yield Lines(sys.stderr)
