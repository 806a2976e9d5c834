"""What `lookupdb load` shows while it runs: lines of figures, or a table on a terminal."""

from __future__ import annotations

import os

import pytest

from lookupdb.load.display import LoadLines, open_display, read_figures, render_line, render_table
from lookupdb.load.recording import Recording
from lookupdb.load.tally import Tally


def _recording() -> Recording:
    recording = Recording(10, 1)
    for second in range(3):
        tally = Tally(scheduled=100, answered=90, unsent=3, latencies=[1000] * 90 + [2000] * 3, lags=[70])
        tally.count_failure("unavailable", "Deadline")
        tally.count_generation("g1", second)
        recording.take(0, second, tally)
    return recording


def test_lines_are_written_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display(is_terminal=False) as display:
        assert isinstance(display, LoadLines)
        for seconds in (-1, 0, 2, 4.5, 5, 9, 10):
            display.show(read_figures(_recording(), seconds, 10))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "4 of 10 s: 90/s answered of 100/s, p50 1 ms, p99 –, 3 unavailable: Deadline, 9 not sent"
    )


def test_where_there_is_no_answer_no_latency_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording(10, 1)
    for second in range(3):
        tally = Tally(scheduled=10, failure_latencies=[10] * 10)
        tally.failures["broken"] = {"refused": 10}
        recording.take(0, second, tally)
    for figures in (read_figures(recording, 3, 10), read_figures(Recording(10, 1), 3, 10)):
        assert ", p50 –, p99 –" in render_line(figures)
        rows = [[*column.cells] for column in render_table(figures).columns]
        assert [row[:2] for row in rows[3:]] == [["–", "–"]] * 3


def test_a_terminal_gets_a_table() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(render_table(read_figures(_recording(), 3, 10)))
    console.file.close()
    text = console.export_text()
    for words in ("3 of 10 s", "now", "100/s", " 90/s", "unavailable: Deadline", "not sent", "g1", "70 µs"):
        assert words in text, text
