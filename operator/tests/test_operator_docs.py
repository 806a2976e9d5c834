"""docs/conditions.md names every reason that a condition may give, and no other; docs/metrics.md every metric."""

from __future__ import annotations

import re
from pathlib import Path

from lookupdb_operator.metrics import Metrics
from lookupdb_operator.plan import reasons

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"


def test_every_reason_is_documented() -> None:
    told = {value for name, value in vars(reasons).items() if name[0].isupper() and isinstance(value, str)}
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == told


def test_every_metric_is_documented() -> None:
    text = (PAGE.parent / "metrics.md").read_text(encoding="utf-8")
    families = re.findall(r"^# TYPE (lookupdb_\w+) \w+$", Metrics().render().decode(), re.MULTILINE)
    names = [name for name in families if not name.endswith("_created")]
    assert len(names) > 8
    assert [name for name in names if f"| `{name}` |" not in text] == []
