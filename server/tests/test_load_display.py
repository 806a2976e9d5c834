"""Progress of `lookupdb load`: lines of figures, or a line that changes on a terminal."""

from __future__ import annotations

import pytest

from lookupdb.load.plan import Tally
from lookupdb.load.result import Recording, render_progress
from lookupdb.load.run import LoadDisplay


def _recording() -> Recording:
    recording = Recording(10, 1)
    for second in range(3):
        tally = Tally(scheduled=100, answered=90, unsent=3, latencies=[1000] * 90 + [2000] * 3, lags=[70])
        tally.failures["unavailable"] = {"Deadline": 1}
        tally.count_generation("g1", second)
        recording.take(0, second, tally)
    return recording


def test_lines_are_written_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    display = LoadDisplay(is_terminal=False)
    for seconds in (-1, 0, 2, 4.5, 5, 9, 10):
        display.show(_recording(), seconds, 10)
    display.tell("", end="")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "4 of 10 s: 90/s answered of 100/s, p50 1 ms, p99 –, 3 unavailable: Deadline, 9 not sent"
    )


def test_where_there_is_no_answer_no_latency_is_shown() -> None:
    recording = Recording(10, 1)
    for second in range(3):
        tally = Tally(scheduled=10, failure_latencies=[10] * 10)
        tally.failures["broken"] = {"refused": 10}
        recording.take(0, second, tally)
    for shown in (recording, Recording(10, 1)):
        assert ", p50 –, p99 –" in render_progress(shown, 3, 10)
    assert render_progress(Recording(10, 1), -2.6, 10).startswith("warming up, 3 s left: ")


def test_a_terminal_gets_a_line_that_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    display = LoadDisplay(is_terminal=True)
    display.show(_recording(), 2, 10)
    display.tell("at 2.3 s: g2 answers for the first time")
    display.show(_recording(), 3, 10)
    display.tell("", end="")
    erased = capsys.readouterr().err.split("\r\x1b[K")
    assert erased == [
        "",
        "2 of 10 s: 90/s answered of 100/s, p50 ",
        "at 2.3 s: g2 answers for the first time\n",
        "3 of 10 s: 90/s answered of 100/s, p50 ",
        "",
    ], "no line is longer than the terminal"
