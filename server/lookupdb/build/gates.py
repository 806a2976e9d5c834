"""Gates: the checks that a new generation must pass before it may be rolled out. No I/O beyond the lookup given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lookupdb.errors import GateClosed
from lookupdb.manifest import Manifest, Rows
from lookupdb.spec import Gates
from lookupdb.wording import counted


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a new generation when it stands before the gates."""

    records: int
    rejected: Rows
    active: Manifest | None
    """Of the generation that serves now; None for the first one."""
    has_key: Callable[[str], bool]
    """Whether a key, as a client would ask for it, is found."""


_SHOWN = 5
"""Rows that a message names; the manifest would name more."""

Check = Callable[[Gates, Facts], str | None]
"""Why the gate is closed, or None when it is open."""


def min_records(gates: Gates, facts: Facts) -> str | None:
    """At least so many records."""
    if facts.records >= gates.min_records:
        return None
    return f"minRecords: expected at least {counted(gates.min_records, 'record')}, found {facts.records:,}"


def max_shrink_percent(gates: Gates, facts: Facts) -> str | None:
    """At most so many percent fewer records than the active generation."""
    if gates.max_shrink_percent is None or facts.active is None:
        return None
    before = facts.active.totals.records
    if (before - facts.records) * 100 <= gates.max_shrink_percent * before:
        return None
    return f"maxShrinkPercent: at most {gates.max_shrink_percent} % fewer records allowed, {_change(facts, before)}"


def max_growth_percent(gates: Gates, facts: Facts) -> str | None:
    """At most so many percent more records than the active generation."""
    if gates.max_growth_percent is None or facts.active is None:
        return None
    before = facts.active.totals.records
    if (facts.records - before) * 100 <= gates.max_growth_percent * before:
        return None
    return f"maxGrowthPercent: at most {gates.max_growth_percent} % more records allowed, {_change(facts, before)}"


def _change(facts: Facts, before: int) -> str:
    percent = f" ({(facts.records - before) * 100 / before:+.1f} %)" if before else ""
    generation = facts.active.generation if facts.active else "none"
    return f"{generation} has {before:,}, the new one {facts.records:,}{percent}"


def max_rejected_rows(gates: Gates, facts: Facts) -> str | None:
    """At most so many rows left out."""
    rejected = facts.rejected
    if rejected.count <= gates.max_rejected_rows:
        return None
    rows = [f"  row {sample.row} of {sample.file}: {sample.reason}" for sample in rejected.samples[:_SHOWN]]
    if rejected.count > len(rows):
        rows.append(f"  and {rejected.count - len(rows):,} more")
    allowed = gates.max_rejected_rows
    return "\n".join(
        [f"maxRejectedRows: {counted(rejected.count, 'row')} cannot be stored, at most {allowed:,} allowed:", *rows]
    )


def required_keys(gates: Gates, facts: Facts) -> str | None:
    """Certain keys are found."""
    missing = [key for key in gates.required_keys if not facts.has_key(key)]
    if not missing:
        return None
    return f"requiredKeys: not found: {', '.join(map(repr, missing))}"


BEFORE_WRITING: tuple[Check, ...] = (max_rejected_rows,)
"""What can be told as soon as the source is sorted."""
AFTER_WRITING: tuple[Check, ...] = (min_records, max_shrink_percent, max_growth_percent, required_keys)


def comparing(gates: Gates) -> list[str]:
    """The gates that are set and compare with the active generation, as a manifest calls them."""
    percents = {"maxShrinkPercent": gates.max_shrink_percent, "maxGrowthPercent": gates.max_growth_percent}
    return [name for name, percent in percents.items() if percent is not None]


def closed(checks: tuple[Check, ...], gates: Gates, facts: Facts) -> list[str]:
    """Why gates are closed, one sentence a gate."""
    return [reason for check in checks if (reason := check(gates, facts))]


def pass_all(checks: tuple[Check, ...], gates: Gates, facts: Facts) -> None:
    """Raises GateClosed naming every gate that is closed."""
    reasons = closed(checks, gates, facts)
    if reasons:
        raise GateClosed(
            "\n".join(reasons),
            hint="nothing was published; correct the source, or change spec.gates if this is as it should be",
        )
