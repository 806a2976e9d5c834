"""A process that `up` keeps running: what is told of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lookupdb.local.child import Child


def test_a_process_that_is_back_with_other_kernels_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`make native` beside an `up` that runs, or an installation that went: it answers the same at another cost."""
    reports: list[str] = []
    child = Child("airports-0", [], tmp_path, lambda report: reports.append(report["kernels"]))
    for kernels in ("native", "native", "python", "python"):
        child.note_ready({"kernels": kernels})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "airports-0 is back with python kernels: before, it had native ones"
    assert reports == ["native", "native", "python", "python"]
