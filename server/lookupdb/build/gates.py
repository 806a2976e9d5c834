"""Gates: the checks that a new generation must pass before it is published. Pure, but for the key lookup they are
given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lookupdb.errors import GateClosed
from lookupdb.manifest import ExcludedRows, Manifest
from lookupdb.spec import Gates
from lookupdb.wording import format_count


@dataclass(frozen=True, slots=True)
class GateFacts:
    """What the gates judge a new generation by."""

    records: int
    rejected: ExcludedRows
    active: Manifest | None
    """The manifest of the generation that serves now; None for the first one."""
    has_key: Callable[[str], bool]
    """Whether a client that asks for this key finds it."""


_MAX_ROWS_SHOWN = 5
"""How many rejected rows a message names; the manifest names more."""

Check = Callable[[Gates, GateFacts], str | None]
"""Returns why the gate is closed, or None if it is open."""


def check_min_records(gates: Gates, facts: GateFacts) -> str | None:
    """Refuses a generation of fewer records."""
    if facts.records >= gates.min_records:
        return None
    return f"minRecords: expected at least {format_count(gates.min_records, 'record')}, found {facts.records:,}"


def check_max_shrink_percent(gates: Gates, facts: GateFacts) -> str | None:
    """Refuses a generation that has lost more than this percentage of the active one's records."""
    if gates.max_shrink_percent is None or facts.active is None:
        return None
    before = facts.active.totals.records
    if (before - facts.records) * 100 <= gates.max_shrink_percent * before:
        return None
    change = _describe_change(facts, before)
    return f"maxShrinkPercent: at most {gates.max_shrink_percent} % fewer records allowed, {change}"


def check_max_growth_percent(gates: Gates, facts: GateFacts) -> str | None:
    """Refuses a generation that has grown by more than this percentage of the active one's records."""
    if gates.max_growth_percent is None or facts.active is None:
        return None
    before = facts.active.totals.records
    if (facts.records - before) * 100 <= gates.max_growth_percent * before:
        return None
    change = _describe_change(facts, before)
    return f"maxGrowthPercent: at most {gates.max_growth_percent} % more records allowed, {change}"


def _describe_change(facts: GateFacts, before: int) -> str:
    percent = f" ({(facts.records - before) * 100 / before:+.1f} %)" if before else ""
    generation = facts.active.generation if facts.active else "none"
    return f"{generation} has {before:,}, the new one {facts.records:,}{percent}"


def check_max_rejected_rows(gates: Gates, facts: GateFacts) -> str | None:
    """Refuses a generation whose source has more rejected rows."""
    rejected = facts.rejected
    if rejected.count <= gates.max_rejected_rows:
        return None
    rows = [f"  row {sample.row} of {sample.file}: {sample.reason}" for sample in rejected.samples[:_MAX_ROWS_SHOWN]]
    if rejected.count > len(rows):
        rows.append(f"  and {rejected.count - len(rows):,} more")
    allowed = gates.max_rejected_rows
    return "\n".join(
        [
            f"maxRejectedRows: {format_count(rejected.count, 'row')} cannot be stored, at most {allowed:,} allowed:",
            *rows,
        ]
    )


def check_required_keys(gates: Gates, facts: GateFacts) -> str | None:
    """Refuses a generation that lacks one of these keys."""
    missing = [key for key in gates.required_keys if not facts.has_key(key)]
    if not missing:
        return None
    return f"requiredKeys: not found: {', '.join(map(repr, missing))}"


BEFORE_WRITING: tuple[Check, ...] = (check_max_rejected_rows,)
"""Checked as soon as the source is sorted."""
AFTER_WRITING: tuple[Check, ...] = (
    check_min_records,
    check_max_shrink_percent,
    check_max_growth_percent,
    check_required_keys,
)


def comparing_gates(gates: Gates) -> list[str]:
    """The gates of the spec that compare with the active generation, by their names in a manifest."""
    percents = {"maxShrinkPercent": gates.max_shrink_percent, "maxGrowthPercent": gates.max_growth_percent}
    return [name for name, percent in percents.items() if percent is not None]


def closed_gates(checks: tuple[Check, ...], gates: Gates, facts: GateFacts) -> list[str]:
    """Why gates are closed, one sentence per gate."""
    return [reason for check in checks if (reason := check(gates, facts))]


def check_gates(checks: tuple[Check, ...], gates: Gates, facts: GateFacts) -> None:
    """Raises GateClosed, which names every closed gate."""
    reasons = closed_gates(checks, gates, facts)
    if reasons:
        raise GateClosed(
            "\n".join(reasons),
            hint="nothing was published; correct the source, or change spec.gates if this is as it should be",
        )
