"""A build's progress on a terminal, with rich: a bar for each phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

from lookupdb.build.progress import format_quantity


@contextmanager
def open_bars(*, is_forced: bool) -> Iterator[ProgressBars]:
    """Show bars on standard error; ``is_forced``: also where that is no terminal."""
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
    """Shows a bar per phase on a terminal: how much, how fast, how long it will take."""

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
        """The text that rich shows."""
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
