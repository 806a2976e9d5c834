"""Each test that docs/concepts/failures.md names exists."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = "| fault | what lookupdb does | test |"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _tables() -> list[list[str]]:
    """Return the rows below each head of these columns."""
    lines = (ROOT / "docs" / "concepts" / "failures.md").read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if line == COLUMNS]
    return [list(itertools.takewhile(lambda line: line.startswith("|"), lines[head + 2 :])) for head in heads]


ROWS = [row for table in _tables() for row in table]


def test_each_test_that_is_named_exists() -> None:
    tests: set[tuple[str, str]] = {test for row in ROWS for test in TEST.findall(row)}
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in tests}
    missing = [test for test in tests if not re.search(rf"^ *(async )?def {test[1]}\(", texts[test[0]], re.MULTILINE)]
    assert missing == []


def test_each_row_names_one() -> None:
    assert len(_tables()) == 5
    assert len(ROWS) >= 40
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3, row
        named = cells[-1].split("<br>")
        assert all(TEST.fullmatch(test) for test in named), f"not a test of a module: {cells[-1]!r} of {cells[0]!r}"
