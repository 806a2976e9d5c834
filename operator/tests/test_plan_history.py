"""The last builds in the status: their outcomes, bounded, with repetitions merged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.plan_samples import broken, serving
from operator_support.plan_world import BEGIN

from lookupdb_operator.model import BuildResult, Trouble, format_moment
from lookupdb_operator.plan import builds
from lookupdb_operator.status import BuildOutcome, BuildRecord, BuildStatus, DatasetStatus

NOW = BEGIN + timedelta(minutes=10)


def build(number: int) -> BuildStatus:
    return BuildStatus(f"g{number}", "content", "", "digest", format_moment(BEGIN))


def built(status: DatasetStatus, number: int) -> DatasetStatus:
    result = BuildResult("built", f"g{number}", "f", 28_000, reason="Built", message=f"built g{number}", seconds=2.6)
    return builds.record_end(status, build(number), "built", Trouble("Built", result.message), result, NOW)


def failed(status: DatasetStatus, number: int, reason: str = "BadSource", message: str = "no file") -> DatasetStatus:
    outcome: BuildOutcome = "gateClosed" if reason == "GateClosed" else "failed"
    return builds.record_end(status, build(number), outcome, Trouble(reason, message), None, NOW)


def unchanged(status: DatasetStatus, number: int) -> DatasetStatus:
    result = BuildResult("unchanged", reason="Unchanged", message="the source is unchanged")
    return builds.record_end(status, build(number), "unchanged", Trouble("Unchanged", result.message), result, NOW)


def test_a_build_is_reported_with_what_it_built_and_how_long_it_took() -> None:
    (record,) = built(DatasetStatus(), 12).builds
    assert record == BuildRecord(
        "g12", "built", "Built", "2026-01-01T12:00:00Z", "2026-01-01T12:10:00Z", 28_000, 3, "built g12"
    )


def test_a_builder_that_could_not_tell_took_as_long_as_nobody_heard_of_it() -> None:
    (record,) = failed(DatasetStatus(), 12, "Evicted", "the node needed the room").builds
    assert (record.outcome, record.reason, record.seconds) == ("failed", "Evicted", 600)


def test_a_closed_gate_has_an_outcome_of_its_own() -> None:
    (record,) = failed(DatasetStatus(), 12, "GateClosed", "10 records, expected 1000").builds
    assert (record.outcome, record.message) == ("gateClosed", "10 records, expected 1000")


def test_lines_of_a_message_are_distinguished_on_one() -> None:
    message = "people.csv names no column id\n  its columns are x and y:\n    look at them"
    (record,) = failed(DatasetStatus(), 12, "BadSource", message).builds
    assert record.message == "people.csv names no column id; its columns are x and y: look at them"


def test_ten_are_kept_and_the_newest_is_the_last() -> None:
    status = DatasetStatus()
    for number in range(1, 25):
        status = built(status, number)
    assert [record.generation for record in status.builds] == [f"g{number}" for number in range(15, 25)]


def test_what_ends_as_the_one_before_it_takes_its_place() -> None:
    status = failed(built(DatasetStatus(), 1), 2)
    for number in range(3, 1000):
        status = unchanged(status, number)
    assert [(record.generation, record.outcome, record.count) for record in status.builds] == [
        ("g1", "built", 1),
        ("g2", "failed", 1),
        ("g999", "unchanged", 997),
    ]


def test_failures_for_other_reasons_are_distinguished() -> None:
    status = failed(failed(failed(DatasetStatus(), 1), 2), 3, "OutOfMemory")
    assert [(record.reason, record.count) for record in status.builds] == [("BadSource", 2), ("OutOfMemory", 1)]


def test_a_rejected_generation_keeps_its_name_while_retries_are_rejected_too() -> None:
    (record,) = failed(failed(DatasetStatus(), 2, "GateClosed"), 3, "GateClosed").builds
    assert (record.generation, record.count) == ("g2", 2)


def test_failures_with_other_messages_are_distinguished() -> None:
    status = failed(failed(failed(DatasetStatus(), 1), 2), 3, message="no column id")
    assert [(record.message, record.count) for record in status.builds] == [("no file", 2), ("no column id", 1)]


def test_every_generation_that_was_built_is_reported() -> None:
    assert [record.count for record in built(built(DatasetStatus(), 1), 2).builds] == [1, 1]


@pytest.mark.parametrize("message", ["x" * 10_000, "line\n" * 1000])
def test_a_message_has_one_line_of_at_most_256_characters(message: str) -> None:
    (record,) = failed(DatasetStatus(), 1, message=message).builds
    assert len(record.message) == 256
    assert "\n" not in record.message


def test_a_builder_that_fails_does_not_tell_how_the_source_is() -> None:
    assert built(DatasetStatus(), 1).last_checked == "2026-01-01T12:10:00Z"
    assert unchanged(DatasetStatus(), 1).last_checked == "2026-01-01T12:10:00Z"
    assert failed(DatasetStatus(last_checked="before"), 1).last_checked == "before"


def test_a_clock_that_was_set_back_leaves_no_moment_ahead() -> None:
    status = builds.clamp_records(built(DatasetStatus(), 1), BEGIN - timedelta(hours=1))
    (record,) = status.builds
    assert {record.started_at, record.finished_at, status.last_checked} == {"2026-01-01T11:00:00Z"}


def test_the_end_of_a_build_and_its_record_are_one_write() -> None:
    world = serving()
    world.fails = lambda spec: broken("GateClosed", "too few records")
    world.annotate("monday")
    world.settle(until=lambda: world.status.failure is not None)
    assert [(record.generation, record.outcome) for record in world.status.builds] == [
        ("g1", "built"),
        ("g2", "gateClosed"),
    ]


def test_that_gates_were_overridden_is_reported_by_itself() -> None:
    world = serving()
    world.closes_gate = lambda content: "bad" in content
    world.edit(source={"url": "s3://data/bad.csv"})
    world.settle(until=lambda: world.status.refused is not None)
    world.override("g2")
    world.settle()
    assert [(record.generation, record.outcome, record.count) for record in world.status.builds] == [
        ("g1", "built", 1),
        ("g2", "gateClosed", 1),
        ("g2", "overridden", 1),
    ]
    (*_, refused, overridden) = world.status.builds
    assert (overridden.reason, overridden.records, overridden.started_at) == (
        "GateClosed",
        10,
        overridden.finished_at,
    )
    assert overridden.message.startswith("maxShrinkPercent: expected at most 20 %")
    assert overridden.finished_at >= refused.finished_at


def test_what_took_no_time_says_so() -> None:
    result = BuildResult("built", "g1", "f", 10, reason="Built", seconds=0.2)
    status = builds.record_end(DatasetStatus(), build(1), "built", Trouble("Built", ""), result, NOW)
    assert status.to_json()["builds"][0]["seconds"] == 0
