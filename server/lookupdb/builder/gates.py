"""Gates: the checks that a new generation must pass before it may serve. They do no I/O: ``GateFacts`` has functions,
made by ``existing``, for lookups and comparisons.

A message names at most ten keys and rows, each cut to a hundred characters. It names no value, because everybody who
may see the dataset's status reads it. Values can be looked up in the generation, which is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from lookupdb import records
from lookupdb.dataset.spec import ExpectedValue, Gates
from lookupdb.errors import LookupdbError
from lookupdb.manifest import ExcludedRows, Manifest
from lookupdb.wording import format_count, shorten

MAX_SHOWN: Final = 10
"""The most keys or rows that a message names for one gate."""
_MAX_SHOWN_OF_SEVERAL: Final = 3
"""The same if several gates failed: a builder's termination message holds 4 KB."""
_MAX_SHOWN_CHARACTERS: Final = 100


@dataclass(slots=True)
class SampledDifference:
    """The result of a comparison with the active generation's keys."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    is_whole: bool = True
    """True if all keys were compared."""
    samples: dict[str, list[bytes]] = field(default_factory=lambda: {"added": [], "removed": [], "changed": []})

    @property
    def differing(self) -> int:
        """Number of keys that only one generation has, or that have different values in the two."""
        return self.added + self.removed + self.changed

    @property
    def compared(self) -> int:
        """Number of keys that one generation has, or both have."""
        return self.differing + self.same

    def count(self, kind: Literal["added", "removed", "changed"], key: bytes) -> None:
        """Count ``key`` as one of ``kind``, and keep it as an example unless there are enough."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.samples[kind]) < MAX_SHOWN:
            self.samples[kind].append(key)


@dataclass(frozen=True, slots=True)
class ActiveGeneration:
    """The generation that gates compare with."""

    generation: str
    records: int
    manifest: Manifest | None
    """None if the store has lost it, and only the number of its records is known."""


@dataclass(frozen=True, slots=True)
class GateFacts:
    """The facts that gates check."""

    records: int
    rejected: ExcludedRows
    active: ActiveGeneration | None
    """None for the first generation."""
    value_format: str
    largest_value_bytes: int
    find: Callable[[str], bytes | None]
    """Returns the value that a client finds for this key; None if it finds none."""
    list_large_values: Callable[[int], Iterator[tuple[bytes, int]]]
    """Yields the keys with values of more bytes than this, with their sizes."""
    compare: Callable[[], SampledDifference | str]
    """Returns the changes since the active generation, or why they are unknown. Slow the first time. Raises
    NotEnoughRoom, or StoreError if the store does not answer."""


@dataclass(frozen=True, slots=True)
class ClosedGate:
    """Why one gate failed."""

    sentence: str
    """The expected and the actual state."""
    samples: tuple[str, ...] = ()
    """Lines with example keys or rows, the most telling first."""
    is_unjudged: bool = False
    """True if it failed because it could not be checked: the same generation might pass another time."""

    def describe(self, max_samples: int) -> str:
        """Return the sentence with at most ``max_samples`` samples, each on a line of its own."""
        return "\n".join([self.sentence, *(f"  {sample}" for sample in self.samples[:max_samples])])


Check = Callable[[Gates, GateFacts], ClosedGate | None]
"""Returns why the gate failed, or None if it passed."""


def check_min_records(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation with fewer than ``minRecords`` records."""
    if facts.records >= gates.min_records:
        return None
    expected = format_count(gates.min_records, "record")
    return ClosedGate(f"minRecords: expected at least {expected}, found {facts.records:,}")


def check_max_shrink_percent(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation with fewer records than the active one, by more than ``maxShrinkPercent``."""
    return _check_change(facts, "maxShrinkPercent", gates.max_shrink_percent, "fewer", "removed")


def check_max_growth_percent(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation with more records than the active one, by more than ``maxGrowthPercent``."""
    return _check_change(facts, "maxGrowthPercent", gates.max_growth_percent, "more", "added")


def _check_change(facts: GateFacts, gate: str, limit: int | None, word: str, kind: str) -> ClosedGate | None:
    active = facts.active
    if limit is None or active is None:
        return None
    change = facts.records - active.records
    if (change if word == "more" else -change) * 100 <= limit * active.records:
        return None
    percent = f" ({change * 100 / active.records:+.1f} %)" if active.records else ""
    found = f"{facts.records:,} where {active.generation} has {active.records:,}{percent}"
    sentence = f"{gate}: expected at most {limit} % {word} records, found {found}"
    return ClosedGate(sentence, _sample_changes(facts, (kind,)))


def check_max_changed_percent(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation if more than ``maxChangedPercent`` of the keys differ from the active one, or if the
    percentage is unknown."""
    limit, active = gates.max_changed_percent, facts.active
    if limit is None or limit == 100 or active is None:
        return None
    found = facts.compare()
    if isinstance(found, str):
        expected = f"maxChangedPercent: expected at most {limit} % of the keys to differ from {active.generation}"
        return ClosedGate(f"{expected}, found nothing to compare with: {found}", is_unjudged=True)
    if found.differing * 100 <= limit * found.compared:
        return None
    kinds = f"{found.added:,} added, {found.removed:,} removed, {found.changed:,} changed"
    sample = "" if found.is_whole else ", a sample"
    return ClosedGate(
        f"maxChangedPercent: expected at most {limit} % of the keys to differ from {active.generation}, found "
        f"{found.differing * 100 / found.compared:.1f} %: {kinds} of {format_count(found.compared, 'key')}{sample}",
        _sample_changes(facts, ("removed", "changed", "added")),
    )


def _sample_changes(facts: GateFacts, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return examples of changed keys, alternating between kinds, so that even a few show every kind."""
    try:
        found = facts.compare()
    except LookupdbError:  # no room for a copy, for example: the gate has failed even without examples
        return ()
    if isinstance(found, str):
        return ()
    turns = range(MAX_SHOWN)
    samples = [(kind, found.samples[kind][turn]) for turn in turns for kind in kinds if turn < len(found.samples[kind])]
    return tuple(f"{kind}: {show_key(key)}" for kind, key in samples)


def check_max_value_bytes(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation with a value of more than ``maxValueBytes``."""
    limit = gates.max_value_bytes
    if limit is None or facts.largest_value_bytes <= limit:
        return None
    large = islice(facts.list_large_values(limit), MAX_SHOWN)
    return ClosedGate(
        f"maxValueBytes: expected values of at most {limit:,} bytes, found one of {facts.largest_value_bytes:,}",
        tuple(f"{show_key(key)}: {size:,} bytes" for key, size in large),
    )


def check_max_rejected_rows(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation whose source has more rejected rows than ``maxRejectedRows``."""
    rejected, allowed = facts.rejected, gates.max_rejected_rows
    if rejected.count <= allowed:
        return None
    expected = format_count(allowed, "row")
    return ClosedGate(
        f"maxRejectedRows: expected at most {expected} that cannot be stored, found {rejected.count:,}",
        tuple(shorten(f"row {sample.row} of {sample.file}: {sample.reason}", 199) for sample in rejected.samples),
    )


def check_required_keys(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation that lacks one of ``requiredKeys``."""
    missing = [key for key in gates.required_keys if facts.find(key) is None]
    if not missing:
        return None
    expected = format_count(len(gates.required_keys), "key")
    return ClosedGate(
        f"requiredKeys: expected {expected} to be there, found {len(missing):,} missing",
        tuple(f"missing: {show_key(key)}" for key in missing[:MAX_SHOWN]),
    )


def check_expected_values(gates: Gates, facts: GateFacts) -> ClosedGate | None:
    """Reject a generation in which a key of ``expectedValues`` is missing or has another value."""
    differing = [
        ("missing" if value is None else "another value", expected.key)
        for expected in gates.expected_values
        if (value := facts.find(expected.key)) is None or not _is_expected(value, expected, facts.value_format)
    ]
    if not differing:
        return None
    missing = sum(what == "missing" for what, _ in differing)
    counts = [f"{missing:,} missing"] if missing else []
    counts += [f"{len(differing) - missing:,} with another value"] if missing < len(differing) else []
    expected_keys = format_count(len(gates.expected_values), "key")
    return ClosedGate(
        f"expectedValues: expected {expected_keys} to have the given value, found {' and '.join(counts)}",
        tuple(f"{what}: {show_key(key)}" for what, key in differing[:MAX_SHOWN]),
    )


def _is_expected(value: bytes, expected: ExpectedValue, value_format: str) -> bool:
    if value_format == "raw":
        return value == expected.value.encode()
    try:
        return value == expected.value.encode() or _is_same_json(
            records.decode_json(value), records.decode_json(expected.value.encode())
        )
    except (ValueError, RecursionError):
        return False  # nested too deeply, or with too long a number


def _is_same_json(found: Any, expected: Any) -> bool:
    """Return whether both are the same JSON value. Python considers true equal to 1."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _is_same_json(value, expected[name]) for name, value in found.items()
        )
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_is_same_json, found, expected))
    if isinstance(found, float) and math.isinf(found):
        return False  # numbers beyond floats cannot be compared
    return bool(found == expected)


CHECKS: tuple[Check, ...] = (
    check_max_rejected_rows,
    check_min_records,
    check_max_shrink_percent,
    check_max_growth_percent,
    check_required_keys,
    check_expected_values,
    check_max_value_bytes,
    check_max_changed_percent,
)
"""All checks, in the order of messages."""


def comparing_gates(gates: Gates) -> list[str]:
    """Return the changes to a manifest that avoid a comparison with the active generation's number of records."""
    ways_out = {
        "set spec.gates.maxShrinkPercent to 100": gates.max_shrink_percent not in (None, 100),
        "remove spec.gates.maxGrowthPercent": gates.max_growth_percent is not None,
    }
    return [way_out for way_out, is_comparing in ways_out.items() if is_comparing]


def find_closed_gates(gates: Gates, facts: GateFacts) -> list[ClosedGate]:
    """Return every gate that failed."""
    return [closed for check in CHECKS if (closed := check(gates, facts))]


def describe_closed_gates(closed_gates: Sequence[ClosedGate]) -> tuple[str, ...]:
    """Return one reason for each gate, with samples."""
    most = MAX_SHOWN if len(closed_gates) == 1 else _MAX_SHOWN_OF_SEVERAL
    return tuple(gate.describe(most) for gate in closed_gates)


def show_key(key: str | bytes) -> str:
    """Return ``key``, quoted and cut."""
    text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
    return repr(shorten(text, _MAX_SHOWN_CHARACTERS - 1))
