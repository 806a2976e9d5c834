"""docs/failures.md names tests, and each one is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "failures.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_the_test_is_there_that_is_named_for(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"


def test_each_row_names_one() -> None:
    rows = [line for line in (ROOT / "docs" / "failures.md").read_text(encoding="utf-8").splitlines() if "::" in line]
    assert len(rows) > 35
    assert all(len(row.split(" | ")) == 4 for row in rows)
