"""Wrong answers fail a run at once.

Failed scenarios may run once more, but not after a wrong answer. Wrong answers are recorded in .bench/e2e-wrong.json,
one object a line.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e-wrong.json"


def record(where: str, what: str) -> None:
    """Record that ``where`` (a namespace and dataset) gave a wrong answer."""
    FILE.parent.mkdir(exist_ok=True)
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "where": where, "what": what[:2000]}
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines() -> list[str]:
    """Return the lines recorded since the file was last removed."""
    return FILE.read_text().splitlines() if FILE.exists() else []


def check(right: bool, where: str, what: str) -> None:
    """Assert that an answer is ``right``, and record it if it is not."""
    if not right:
        record(where, what)
    assert right, f"{where}: {what}"
