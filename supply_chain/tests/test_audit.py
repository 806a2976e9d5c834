"""The ignored advisories."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

MAX_DAYS = 180
"""An ignored advisory must be reviewed after this time."""


def test_each_has_a_reason_and_a_day_after_which_it_counts_again() -> None:
    """The day may be past: an old commit still passes."""
    config = tomllib.loads(Path(__file__).parents[1].joinpath("osv-scanner.toml").read_text(encoding="utf-8"))
    assert set(config) <= {"IgnoredVulns"}, "a package override hides advisories that are yet to come"
    latest = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=MAX_DAYS)
    for entry in config.get("IgnoredVulns", []):
        assert set(entry) == {"id", "reason", "ignoreUntil"}
        assert entry["reason"].strip()
        assert entry["ignoreUntil"] <= latest
