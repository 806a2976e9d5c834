"""Figures that stories measure, for docs/benchmarks.md: appended to .bench/e2e.json, one object a line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e.json"
BUSY: Final = 3
"""How many times as long as its goal something may take on a machine that has other things to do; longer is a defect
of ours."""


def record(story: str, figure: str, value: float | str, unit: str = "", *, at_most: float | None = None) -> None:
    """Keeps and prints one figure, with the goal that it has, if any."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "story": story, "figure": figure, "value": value}
    line |= {"unit": unit} if unit else {}
    line |= {"at_most": at_most} if at_most is not None else {}
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"FIGURE {_shown(line)}", *missed([json.dumps(line)]))


def lines() -> list[str]:
    """All that were ever kept."""
    return FILE.read_text().splitlines() if FILE.exists() else []


def missed(figures: Iterable[str]) -> list[str]:
    """A line for people about each of these lines whose value is more than its goal."""
    members = (json.loads(line) for line in figures)
    return [f"MISSED {_shown(one)}, the goal is at most {one['at_most']}" for one in members if _is_missed(one)]


def _is_missed(line: dict[str, Any]) -> bool:
    return "at_most" in line and not isinstance(line["value"], str) and line["value"] > line["at_most"]


def _shown(line: dict[str, Any]) -> str:
    value = f"{line['value']:.2f}" if isinstance(line["value"], float) else str(line["value"])
    return f"{line['story']}: {line['figure']} = {value} {line.get('unit', '')}".rstrip()
