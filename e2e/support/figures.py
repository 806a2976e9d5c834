"""Figures that stories measure, for docs/measurements.md: appended to .bench/e2e.json, one object a line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e.json"
BUSY: Final = 3
"""A busy machine may take so many times as long as the goal. What takes longer is a defect."""


def record(story: str, figure: str, value: float | str, unit: str = "", *, at_most: float | None = None) -> None:
    """Append one figure to the file, and print it, with its goal if it has one."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "story": story, "figure": figure, "value": value}
    line |= {"unit": unit} if unit else {}
    line |= {"at_most": at_most} if at_most is not None else {}
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"FIGURE {_format(line)}", *describe_missed_goals([json.dumps(line)]))


def read_lines() -> list[str]:
    """Every line that was ever recorded."""
    return FILE.read_text().splitlines() if FILE.exists() else []


def describe_missed_goals(figures: Iterable[str]) -> list[str]:
    """A sentence for each of the recorded ``figures`` that is above its goal."""
    members = (json.loads(line) for line in figures)
    too_much = (figure for figure in members if _misses_goal(figure))
    return [f"MISSED {_format(figure)}, the goal is at most {figure['at_most']}" for figure in too_much]


def _misses_goal(line: dict[str, Any]) -> bool:
    return "at_most" in line and not isinstance(line["value"], str) and line["value"] > line["at_most"]


def _format(line: dict[str, Any]) -> str:
    value = f"{line['value']:.2f}" if isinstance(line["value"], float) else str(line["value"])
    return f"{line['story']}: {line['figure']} = {value} {line.get('unit', '')}".rstrip()
