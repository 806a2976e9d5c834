"""Gates, as tables: what is known of a new generation, and whether it may be rolled out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.generations import manifest

from lookupdb.build import gates
from lookupdb.build.gates import AFTER_WRITING, BEFORE_WRITING, GateFacts, check_gates, closed_gates
from lookupdb.errors import GateClosed
from lookupdb.manifest import ExcludedRows, RowSample, Totals
from lookupdb.spec import Gates

OPEN = Gates(min_records=0, max_shrink_percent=None, max_growth_percent=None, max_rejected_rows=0, required_keys=())


def facts(records: int = 100, rejected: int = 0, active: int | None = None) -> GateFacts:
    samples = tuple(RowSample("a.csv", row, "the key is empty") for row in range(1, min(rejected, 10) + 1))
    serving = None if active is None else manifest("g7", (), Totals(active, 0, 0, 0, 0))
    return GateFacts(records, ExcludedRows(rejected, samples), serving, {"here"}.__contains__)


@pytest.mark.parametrize(
    ("gate", "given", "is_closed"),
    [
        pytest.param({"min_records": 100}, facts(100), False, id="minRecords: as many"),
        pytest.param({"min_records": 100}, facts(99), True, id="minRecords: one too few"),
        pytest.param({"min_records": 1}, facts(0), True, id="minRecords: nothing at all"),
        pytest.param({"max_shrink_percent": 20}, facts(80, active=100), False, id="maxShrink: just"),
        pytest.param({"max_shrink_percent": 20}, facts(79, active=100), True, id="maxShrink: too far"),
        pytest.param({"max_shrink_percent": 0}, facts(100, active=100), False, id="maxShrink: not at all, and did not"),
        pytest.param({"max_shrink_percent": 0}, facts(99, active=100), True, id="maxShrink: not at all, and did"),
        pytest.param({"max_shrink_percent": 100}, facts(0, active=100), False, id="maxShrink: to nothing"),
        pytest.param({"max_shrink_percent": 20}, facts(1), False, id="maxShrink: nothing to compare with"),
        pytest.param(
            {"max_shrink_percent": 20}, facts(1000, active=100), False, id="maxShrink: growth is another matter"
        ),
        pytest.param({"max_growth_percent": 50}, facts(150, active=100), False, id="maxGrowth: just"),
        pytest.param({"max_growth_percent": 50}, facts(151, active=100), True, id="maxGrowth: too far"),
        pytest.param({"max_growth_percent": 50}, facts(1, active=0), True, id="maxGrowth: from nothing"),
        pytest.param({"max_growth_percent": 50}, facts(0, active=0), False, id="maxGrowth: from nothing to nothing"),
        pytest.param({"max_growth_percent": 50}, facts(10**9), False, id="maxGrowth: nothing to compare with"),
        pytest.param({"max_rejected_rows": 2}, facts(rejected=2), False, id="maxRejectedRows: just"),
        pytest.param({"max_rejected_rows": 2}, facts(rejected=3), True, id="maxRejectedRows: one too many"),
        pytest.param({"required_keys": ("here",)}, facts(), False, id="requiredKeys: there"),
        pytest.param({"required_keys": ("here", "gone")}, facts(), True, id="requiredKeys: one missing"),
    ],
)
def test_gate(gate: dict[str, object], given: GateFacts, is_closed: bool) -> None:
    wanted = replace(OPEN, **gate)  # type: ignore[arg-type]
    assert bool(closed_gates(BEFORE_WRITING + AFTER_WRITING, wanted, given)) is is_closed


def test_every_closed_gate_is_named_with_what_was_expected_and_found() -> None:
    wanted = Gates(1000, 10, 5, 0, ("here", "gone"))
    with pytest.raises(GateClosed) as caught:
        check_gates(BEFORE_WRITING + AFTER_WRITING, wanted, facts(80, rejected=7, active=100))
    assert caught.value.message.splitlines() == [
        "maxRejectedRows: 7 rows cannot be stored, at most 0 allowed:",
        *(f"  row {row} of a.csv: the key is empty" for row in range(1, 6)),
        "  and 2 more",
        "minRecords: expected at least 1,000 records, found 80",
        "maxShrinkPercent: at most 10 % fewer records allowed, g7 has 100, the new one 80 (-20.0 %)",
        "requiredKeys: not found: 'gone'",
    ]


def test_every_gate_of_the_spec_is_checked() -> None:
    checks = {check.__name__ for check in BEFORE_WRITING + AFTER_WRITING}
    assert checks == {f"check_{field}" for field in Gates.__slots__}
    assert all(getattr(gates, name).__doc__ for name in checks)
