"""Figures that scenarios measure, for docs/measurements.md. Appended to .bench/e2e.json, one object a line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e.json"
BUSY: Final = 3
"""A busy machine may take this many times the goal. More is a defect."""


def record(scenario: str, figure: str, value: float | str, unit: str = "", *, at_most: float | None = None) -> None:
    """Append one figure to the file, and print it with its goal."""
    line = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scenario": scenario,
        "figure": figure,
        "value": value,
    }
    line |= {"unit": unit} if unit else {}
    line |= {"at_most": at_most} if at_most is not None else {}
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"FIGURE {_format(line)}", *describe_missed_goals([json.dumps(line)]))


def read_lines() -> list[str]:
    """Return every line ever recorded."""
    return FILE.read_text().splitlines() if FILE.exists() else []


def describe_missed_goals(figures: Iterable[str]) -> list[str]:
    """Return a sentence for each of the recorded ``figures`` that exceeds its goal."""
    return [
        f"MISSED {_format(line)}, the goal is at most {line['at_most']}"
        for line in map(json.loads, figures)
        if "at_most" in line and not isinstance(line["value"], str) and line["value"] > line["at_most"]
    ]


def _format(line: dict[str, Any]) -> str:
    value = f"{line['value']:.2f}" if isinstance(line["value"], float) else str(line["value"])
    return f"{line['scenario']}: {line['figure']} = {value} {line.get('unit', '')}".rstrip()
