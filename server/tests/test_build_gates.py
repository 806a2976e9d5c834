"""Gates, as tables: what is known of a new generation, and whether it may be rolled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lookupdb.builder import gates
from lookupdb.builder.gates import (
    CHECKS,
    ActiveGeneration,
    GateFacts,
    SampledDifference,
    describe_closed_gates,
    find_closed_gates,
)
from lookupdb.dataset.spec import ExpectedValue, Gates
from lookupdb.errors import NotEnoughRoom
from lookupdb.manifest import ExcludedRows, RowSample

SERVED = {
    "here": b'{"b": [1, true], "a": "x"}',
    "text": b'"plain"',
    "one": b"1",
    "long": b"%d" % 2**64,
    "huge": b"9" * 5000,
    "far": b"1e400",
}
NO_DIFFERENCE = SampledDifference(same=100)


def facts(
    records: int = 100,
    rejected: int = 0,
    active: int | None = None,
    largest: int = 0,
    found: SampledDifference | str = NO_DIFFERENCE,
    value_format: str = "json",
) -> GateFacts:
    samples = tuple(RowSample("a.csv", row, "the key is empty") for row in range(1, min(rejected, 10) + 1))
    serving = None if active is None else ActiveGeneration("g7", active, None)
    return GateFacts(
        records,
        ExcludedRows(rejected, samples),
        serving,
        value_format,
        largest,
        SERVED.get,
        large_values,
        lambda: found,
    )


def large_values(limit: int) -> Iterator[tuple[bytes, int]]:
    return ((b"k%d" % number, limit + number) for number in range(1, 1000))


def differing(changed: int, same: int, *, is_whole: bool = True) -> SampledDifference:
    keys = [b"c%d" % number for number in range(changed)][:10]
    return SampledDifference(0, 0, changed, same, is_whole, {"added": [], "removed": [], "changed": keys})


def expecting(key: str, value: str) -> dict[str, Any]:
    return {"expected_values": (ExpectedValue(key, value),)}


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
        pytest.param(
            {"max_changed_percent": 5}, facts(active=100, found=differing(5, 95)), False, id="maxChanged: just"
        ),
        pytest.param(
            {"max_changed_percent": 5}, facts(active=100, found=differing(6, 94)), True, id="maxChanged: too many"
        ),
        pytest.param(
            {"max_changed_percent": 5}, facts(active=0, found=differing(0, 0)), False, id="maxChanged: both empty"
        ),
        pytest.param({"max_changed_percent": 5}, facts(found="lost"), False, id="maxChanged: the first generation"),
        pytest.param({"max_changed_percent": 5}, facts(active=9, found="lost"), True, id="maxChanged: cannot be told"),
        pytest.param({"max_changed_percent": 100}, facts(active=9, found="lost"), False, id="maxChanged: any will do"),
        pytest.param({"max_value_bytes": 10}, facts(largest=10), False, id="maxValueBytes: just"),
        pytest.param({"max_value_bytes": 10}, facts(largest=11), True, id="maxValueBytes: too large"),
        pytest.param({"max_rejected_rows": 2}, facts(rejected=2), False, id="maxRejectedRows: just"),
        pytest.param({"max_rejected_rows": 2}, facts(rejected=3), True, id="maxRejectedRows: one too many"),
        pytest.param({"required_keys": ("here",)}, facts(), False, id="requiredKeys: there"),
        pytest.param({"required_keys": ("here", "gone")}, facts(), True, id="requiredKeys: one missing"),
        pytest.param(expecting("gone", "1"), facts(), True, id="expectedValues: missing"),
        pytest.param(expecting("here", '{"a":"x","b":[1,true]}'), facts(), False, id="expectedValues: the same JSON"),
        pytest.param(expecting("here", '{"a":"x","b":[true,1]}'), facts(), True, id="expectedValues: another order"),
        pytest.param(expecting("here", '{"a":"x"}'), facts(), True, id="expectedValues: a member more"),
        pytest.param(expecting("one", "1.0"), facts(), False, id="expectedValues: the same number"),
        pytest.param(expecting("one", "true"), facts(), True, id="expectedValues: true is not 1"),
        pytest.param(expecting("long", str(2**64)), facts(), False, id="expectedValues: the same long number"),
        pytest.param(expecting("long", str(2**64 + 1)), facts(), True, id="expectedValues: one that a float rounds"),
        pytest.param(expecting("huge", "9" * 5000), facts(), False, id="expectedValues: the same digits, unread"),
        pytest.param(expecting("far", "2e500"), facts(), True, id="expectedValues: both beyond a float"),
        pytest.param(expecting("far", "1e400"), facts(), False, id="expectedValues: the same text"),
        pytest.param(expecting("text", '"plain"'), facts(), False, id="expectedValues: text"),
        pytest.param(expecting("text", '"plain"'), facts(value_format="raw"), False, id="expectedValues: raw"),
        pytest.param(expecting("text", ' "plain"'), facts(value_format="raw"), True, id="expectedValues: raw, a space"),
    ],
)
def test_gate(gate: dict[str, Any], given: GateFacts, is_closed: bool) -> None:
    assert bool(find_closed_gates(replace(Gates(), **gate), given)) is is_closed


def test_every_closed_gate_is_named_with_what_was_expected_and_found() -> None:
    found = SampledDifference(1, 3, 0, 100, False, {"added": [b"n"], "removed": [b"x", b"y", b"z"], "changed": []})
    wanted = Gates(
        min_records=1000,
        max_shrink_percent=10,
        max_growth_percent=5,
        max_changed_percent=1,
        max_value_bytes=8,
        required_keys=("here", "gone"),
        expected_values=(ExpectedValue("one", "2"), ExpectedValue("two", "2")),
    )
    given = facts(80, rejected=7, active=100, largest=99, found=found)
    assert "\n".join(describe_closed_gates(find_closed_gates(wanted, given))).splitlines() == [
        "maxRejectedRows: expected at most 0 rows that cannot be stored, found 7",
        *(f"  row {row} of a.csv: the key is empty" for row in range(1, 4)),
        "minRecords: expected at least 1,000 records, found 80",
        "maxShrinkPercent: expected at most 10 % fewer records, found 80 where g7 has 100 (-20.0 %)",
        *(f"  removed: '{key}'" for key in "xyz"),
        "requiredKeys: expected 2 keys to be there, found 1 missing",
        "  missing: 'gone'",
        "expectedValues: expected 2 keys to have the given value, found 1 missing and 1 with another value",
        "  another value: 'one'",
        "  missing: 'two'",
        "maxValueBytes: expected values of at most 8 bytes, found one of 99",
        *(f"  'k{number}': {8 + number} bytes" for number in range(1, 4)),
        "maxChangedPercent: expected at most 1 % of the keys to differ from g7, found 3.8 %: 1 added, 3 removed, "
        "0 changed of 104 keys, a sample",
        *("  removed: 'x'", "  added: 'n'", "  removed: 'y'"),
    ]


@pytest.mark.parametrize(
    "key", ["\N{GRINNING FACE}" * 5000, "\n" * 5000, b"\xff" * 5000], ids=["wide", "lines", "no text"]
)
def test_a_message_is_short_whatever_keys_there_are(key: str | bytes) -> None:
    text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    (closed,) = find_closed_gates(Gates(required_keys=tuple(text + str(number) for number in range(100))), facts())
    (reason,) = describe_closed_gates([closed])
    assert len(reason.splitlines()) == 1 + gates.MAX_SHOWN
    assert max(map(len, reason.splitlines())) < 250


def test_a_message_of_many_rows_names_ten_and_cuts_them() -> None:
    rows = ExcludedRows(10**6, tuple(RowSample("f" * 2000, row, "r" * 2000) for row in range(10)))
    (closed,) = find_closed_gates(Gates(), replace(facts(), rejected=rows))
    lines = describe_closed_gates([closed])[0].splitlines()
    assert len(lines) == 11
    assert max(map(len, lines)) <= 202


def test_no_value_is_shown() -> None:
    values = {"expected_values": (ExpectedValue("here", '"other"'),), "max_value_bytes": 1}
    reasons = "\n".join(describe_closed_gates(find_closed_gates(replace(Gates(), **values), facts(largest=9))))  # type: ignore[arg-type]
    sentence = "expectedValues: expected 1 key to have the given value, found 1 with another value"
    assert reasons.startswith(f"{sentence}\n  another value: 'here'\n")
    assert not [part for part in ("other", "true", '"x"') if part in reasons.replace("another value", "")]


def test_what_could_not_be_judged_may_be_judged_otherwise_another_time() -> None:
    def judge(found: SampledDifference | str) -> list[bool]:
        given = facts(1, active=100, found=found)
        closed = find_closed_gates(Gates(max_shrink_percent=20, max_changed_percent=5), given)
        return [gate.is_unjudged for gate in closed]

    assert judge("shard-00000 is missing") == [False, True]
    assert judge(differing(50, 50)) == [False, False]


def test_a_gate_stays_closed_when_there_is_no_room_to_look_for_examples() -> None:
    def compare() -> SampledDifference:
        raise NotEnoughRoom("the scratch disk is full")

    given = replace(facts(1, active=100), compare=compare)
    (closed,) = find_closed_gates(Gates(max_shrink_percent=20), given)
    assert closed.samples == ()
    with pytest.raises(NotEnoughRoom):
        find_closed_gates(Gates(max_changed_percent=20), given)


def test_nothing_is_compared_for_gates_that_need_no_comparison() -> None:
    def compare() -> SampledDifference:
        raise AssertionError

    given = replace(facts(80, active=100), compare=compare)
    assert find_closed_gates(Gates(min_records=1, max_shrink_percent=20, max_growth_percent=0), given) == []


def test_every_gate_of_the_spec_is_checked() -> None:
    checks = {check.__name__ for check in CHECKS}
    assert checks == {f"check_{field}" for field in Gates.__slots__}
    documented: Callable[[str], Any] = lambda name: getattr(gates, name).__doc__  # noqa: E731
    assert all(map(documented, checks))
