"""A new user applies the airports and looks all of them up: every value is what the file says."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any, Final

from e2e.support import wrong_answers
from e2e.support.figures import BUSY, record
from e2e.support.scenario import Answer, Scenario

CSV: Final = Path(__file__).parents[1] / "server" / "lookupdb" / "data" / "airports.csv.gz"
NUMBERS: Final = ("elevation", "lat", "lon")
READY_SECONDS: Final = 30
"""The goal from kubectl apply to Ready, when the nodes have the images."""


def test_every_airport_is_what_the_file_says(scenario: Scenario) -> None:
    scenario.wait_client()  # an image pull must not count
    dataset = scenario.apply_example("airports")
    took = scenario.wait_ready(dataset)
    record("first-lookup", "kubectl apply of the airports to Ready", took, "s", at_most=READY_SECONDS)

    rows = _read_rows()
    assert len(rows) > 28_000
    keys = list(rows)
    found = scenario.lookup(dataset, keys, batch=500)
    _compare(rows, keys, found)
    few = keys[::50]
    _compare(rows, few, scenario.lookup(dataset, few))
    _compare(rows, few, scenario.lookup(dataset, [f"  {key.lower()} " for key in few]))

    absent = [f"NOT-{number}" for number in range(1000)]
    for batch in (0, 100):
        _compare({}, absent, scenario.lookup(dataset, absent, batch=batch))

    status = scenario.wait_settled(dataset)
    assert status["records"] == len(rows)
    assert status["shards"] == "4/4"
    assert status["endpoint"] == scenario.url(dataset)
    record("first-lookup", "airports compared with the file", len(rows), "keys")
    assert took <= BUSY * READY_SECONDS


def _read_rows() -> dict[str, dict[str, Any]]:
    """Read the file's rows by key, without the builder's code."""
    text = io.StringIO(gzip.decompress(CSV.read_bytes()).decode(), newline="")
    rows = {}
    for row in csv.DictReader(text):
        numbers = {name: float(row[name]) if row[name] else None for name in NUMBERS}
        key = row.pop("icao")
        rows[key] = row | numbers
    return rows


def _compare(rows: dict[str, dict[str, Any]], keys: list[str], found: list[Answer]) -> None:
    """Assert that each key is answered with its row, or with 404."""
    expected = [(200, rows[key]) if key in rows else (404, None) for key in keys]
    differing = [
        (key, answer)
        for key, answer, right in zip(keys, found, expected, strict=True)
        if (answer.status, answer.value) != right
    ]
    wrongly = [(key, answer) for key, answer in differing if answer.status in (200, 404)]
    wrong_answers.check(not wrongly, "first-lookup", f"{len(wrongly)} of {len(keys)} answers are wrong: {wrongly[:5]}")
    assert differing[:5] == [], f"{len(differing)} of {len(keys)} keys are not answered"
