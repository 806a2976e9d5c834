"""The reference names every reason of a condition, no other one, and every metric."""

from __future__ import annotations

import re

from docs_tools import reference

from lookupdb_operator.metrics import Metrics
from lookupdb_operator.plan import reasons


def test_every_reason_is_documented() -> None:
    told = {value for name, value in vars(reasons).items() if name[0].isupper() and isinstance(value, str)}
    documented = set(re.findall(r"^\| `(\w+)` \|", reference.page("reference/conditions.md"), re.MULTILINE))
    assert documented == told


def test_every_metric_is_documented() -> None:
    families = re.findall(r"^# TYPE (lookupdb_\w+) \w+$", Metrics().render().decode(), re.MULTILINE)
    names = [name for name in families if not name.endswith("_created")]
    assert len(names) > 8
    page = reference.page("reference/metrics.md")
    assert [name for name in names if not re.search(rf"\| `{name}(_bucket)?` \|", page)] == []
