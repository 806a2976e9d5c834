"""What is seen while a load runs: a table on a terminal, a line every few seconds elsewhere. Both on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO

from lookupdb.load.recording import Recording
from lookupdb.load.summary import LABELS
from lookupdb.load.wording import clean, format_microseconds, format_rate

LINE_SECONDS: Final = 5.0
_SHOWN_LABELS: Final = 6


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """A load that runs."""

    seconds: float
    """Since measuring began; less than 0 while it warms up."""
    duration: float
    scheduled: float
    """A second, of the last point."""
    answered: float
    p50: int | None
    p99: int | None
    highest: int | None
    """All in microseconds, of the last point; None where there is no answer to tell them by."""
    total_p50: int | None
    total_p99: int | None
    total_highest: int | None
    answers: int
    failures: tuple[tuple[str, int], ...]
    """What came of requests besides answers, and how often."""
    generations: tuple[str, ...]
    lag: int | None
    """At the 99th percentile."""

    @property
    def progress(self) -> str:
        """How far it is."""
        if self.seconds < 0:
            return f"warming up, {-self.seconds:.0f} s left"
        return f"{min(self.seconds, self.duration):.0f} of {self.duration:g} s"


def read_figures(recording: Recording, seconds: float, duration: float) -> LiveFigures:
    """The figures of ``recording`` now."""
    total = recording.total
    last = recording.points[-1] if recording.points else None
    p50, p99 = recording.latencies.percentiles((50.0, 99.0), recording.failure_count)
    failures = [
        (f"{LABELS[kind]}: {label}", count)
        for kind, labels in total.failures.items()
        for label, count in labels.items()
    ]
    failures += [("timeout", total.timeouts), ("not sent", total.unsent)]
    return LiveFigures(
        seconds=seconds,
        duration=duration,
        scheduled=last.scheduled / last.seconds if last else 0.0,
        answered=last.answered / last.seconds if last else 0.0,
        p50=last.p50 if last else None,
        p99=last.p99 if last else None,
        highest=last.highest if last else None,
        total_p50=p50,
        total_p99=p99,
        total_highest=recording.latencies.highest,
        answers=total.answered,
        failures=tuple(failure for failure in failures if failure[1]),
        generations=tuple(total.generations),
        lag=recording.lags.percentile(99.0),
    )


class LoadDisplay(Protocol):
    """Shows a load."""

    def show(self, figures: LiveFigures) -> None:
        """Show ``figures``, unless what is shown is young."""

    def tell(self, line: str) -> None:
        """Show ``line``, which stays."""


class LoadLines:
    """A line every few seconds."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown_at: float | None = None

    def show(self, figures: LiveFigures) -> None:
        """Write a line if the last one is some seconds old."""
        if self._shown_at is None:
            self._shown_at = figures.seconds
        if figures.seconds - self._shown_at >= LINE_SECONDS:
            self._shown_at = figures.seconds
            self.tell(render_line(figures))

    def tell(self, line: str) -> None:
        """Write ``line``."""
        self._out.write(f"{line}\n")
        self._out.flush()


def render_line(figures: LiveFigures) -> str:
    """One line of text."""
    parts = [
        figures.progress,
        f"{format_rate(figures.answered)} answered of {format_rate(figures.scheduled)}",
        f"p50 {format_microseconds(figures.p50)}, p99 {format_microseconds(figures.p99)}",
        *(f"{count:,} {name}" for name, count in figures.failures[:_SHOWN_LABELS]),
    ]
    return clean(": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]))


class LoadTable:
    """A table that is drawn again and again."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, figures: LiveFigures) -> None:
        """Draw it."""
        self._live.update(render_table(figures))

    def tell(self, line: str) -> None:
        """Write ``line`` above it."""
        self._live.console.print(line, markup=False, highlight=False)


def render_table(figures: LiveFigures) -> Any:
    """A table of rich."""
    from rich.table import Table

    table = Table(title=figures.progress, title_justify="left", box=None, padding=(0, 2))
    for heading in ("", "rate", "answered", "p50", "p99", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    durations = [format_microseconds(value) for value in (figures.p50, figures.p99, figures.highest)]
    table.add_row("now", format_rate(figures.scheduled), format_rate(figures.answered), *durations)
    durations = [format_microseconds(value) for value in (figures.total_p50, figures.total_p99, figures.total_highest)]
    table.add_row("all", "", f"{figures.answers:,}", *durations)
    for name, count in figures.failures[:_SHOWN_LABELS]:
        table.add_row(name, "", f"{count:,}")
    table.add_row("generations", "", ", ".join(figures.generations[-3:]))
    table.add_row("sent late by (p99)", "", format_microseconds(figures.lag))
    return table


@contextmanager
def open_display(is_terminal: bool | None = None) -> Iterator[LoadDisplay]:
    """The display for standard error, which is looked at unless it is said whether it ``is_terminal``."""
    if not (sys.stderr.isatty() if is_terminal is None else is_terminal):
        yield LoadLines(sys.stderr)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, highlight=False), refresh_per_second=2, transient=True) as live:
        yield LoadTable(live)


def describe_cutover(name: str, seconds: float) -> str:
    """What is said when a generation answers for the first time after another."""
    return clean(f"at {seconds:.1f} s: {name} answers for the first time")
