"""Lines of the log."""

from __future__ import annotations

import logging

import pytest

from lookupdb import telemetry


def test_a_line_of_text_does_not_control_the_terminal_that_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure_logging("text")
    logging.getLogger("here").warning("read %s", "a\x1b[2J.csv", extra={"path": "b\x9bc"})
    line = capsys.readouterr().err
    assert line.endswith("here: read a\\x1b[2J.csv path=b\\x9bc\n")
