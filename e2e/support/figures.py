"""Figures that stories measure, for docs/benchmarks.md: appended to .bench/e2e.json, one object a line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e.json"


def record(story: str, figure: str, value: float | str, unit: str = "", *, at_most: float | None = None) -> None:
    """Keeps and prints one figure, with the goal that it has, if any."""
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "story": story, "figure": figure, "value": value}
    line |= {"unit": unit} if unit else {}
    line |= {"at_most": at_most} if at_most is not None else {}
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    missed = at_most is not None and not isinstance(value, str) and value > at_most
    print(f"FIGURE {story}: {figure} = {shown} {unit}".rstrip() + (f", MISSED: at most {at_most}" if missed else ""))
