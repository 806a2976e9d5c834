"""docs/concepts/failures.md names tests, and each one is there."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = "| fault | what lookupdb does | test |"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _tables() -> list[list[str]]:
    """The rows below each head of these columns."""
    lines = (ROOT / "docs" / "concepts" / "failures.md").read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if line == COLUMNS]
    return [list(itertools.takewhile(lambda line: line.startswith("|"), lines[head + 2 :])) for head in heads]


ROWS = [row for table in _tables() for row in table]


@pytest.mark.parametrize(("file", "name"), sorted({test for row in ROWS for test in TEST.findall(row)}))
def test_the_test_is_there_that_is_named_for(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"


def test_each_row_names_one() -> None:
    assert len(_tables()) == 5
    assert len(ROWS) >= 40
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3, row
        named = cells[-1].split("<br>")
        assert all(TEST.fullmatch(test) for test in named), f"not a test of a module: {cells[-1]!r} of {cells[0]!r}"
