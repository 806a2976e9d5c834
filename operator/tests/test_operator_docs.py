"""docs/operator.md names every reason that a condition may give, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from lookupdb_operator.plan import reasons

PAGE = Path(__file__).parents[2] / "docs" / "operator.md"


def test_every_reason_is_documented() -> None:
    told = {value for name, value in vars(reasons).items() if name[0].isupper() and isinstance(value, str)}
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == told
