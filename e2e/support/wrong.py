"""Answers that were wrong. A story may fail because its machine was slow, and is then told once more; of an answer that
was wrong nothing is forgiven: it is kept in .bench/e2e-wrong.json, one object a line, and e2e/run fails of it at once.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[2] / ".bench" / "e2e-wrong.json"


def keep(where: str, what: str) -> None:
    """Writes down that ``where`` (a namespace and dataset) gave a wrong answer."""
    FILE.parent.mkdir(exist_ok=True)
    line = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "where": where, "what": what[:2000]}
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


def kept() -> list[str]:
    """The lines written down since the file was last removed."""
    return FILE.read_text().splitlines() if FILE.exists() else []


def check(right: bool, where: str, what: str) -> None:
    """Asserts that what was answered is right, whatever else may be late or missing."""
    if not right:
        keep(where, what)
    assert right, f"{where}: {what}"
