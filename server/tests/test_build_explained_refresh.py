"""`lookupdb build --explain` prints the schedule: the next slots, their time zone, and the dataset's offset in them; or
why there are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lookupdb.builder.explain import describe_refresh
from lookupdb.dataset.schedule import Schedule
from lookupdb.dataset.spec import LOCAL, parse_refresh

BERLIN: dict[str, Any] = {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin"}
NOW = datetime(2026, 10, 24, 12, tzinfo=UTC)


def described(*, uid: str = LOCAL, is_suspended: bool = False, now: datetime = NOW, **refresh: Any) -> list[str]:
    members = {"timeZone": "UTC", "suspend": False} | refresh
    parsed = parse_refresh({"source": {"url": "people.csv"}, "refresh": members})
    return list(describe_refresh(parsed, uid=uid, is_suspended=is_suspended, now=now))


def test_the_next_three_slots_by_the_clock_of_the_schedule() -> None:
    """In Berlin clocks are put back on 2026-10-25 at three."""
    first, *slots, share = described(**BERLIN)
    assert first == "'0 2 * * *' in Europe/Berlin: the source is read at"
    assert slots == [
        "  Sun 2026-10-25 02:00:00 CEST, or up to 300 s later",
        "  Mon 2026-10-26 02:00:00 CET, or up to 300 s later",
        "  Tue 2026-10-27 02:00:00 CET, or up to 300 s later",
    ]
    assert "status.nextCheck shows the time" in share


def test_of_a_dataset_of_a_cluster_when_it_is_looked_at_itself() -> None:
    lines = described(uid="uid-1", **BERLIN)
    slot = datetime(2026, 10, 25, tzinfo=UTC)
    seconds = int((Schedule.parse("0 2 * * *", "Europe/Berlin").due_moment(slot, "uid-1") - slot).total_seconds())
    due = datetime(2026, 10, 25, 2) + timedelta(seconds=seconds)
    assert lines[1] == f"  Sun {due:%Y-%m-%d %H:%M:%S} CEST, {seconds} s after the slot"
    assert len(lines) == 4
    assert 0 < seconds < 300


def test_a_slot_that_has_passed_and_is_not_due_yet_comes_first() -> None:
    slot = datetime(2026, 10, 25, tzinfo=UTC)
    due = Schedule.parse("0 2 * * *", "Europe/Berlin").due_moment(slot, "uid-1")
    assert described(uid="uid-1", now=due - timedelta(seconds=1), **BERLIN)[1].startswith("  Sun 2026-10-25")
    assert described(uid="uid-1", now=due, **BERLIN)[1].startswith("  Mon 2026-10-26")


def test_of_a_short_interval_the_jitter_is_a_tenth() -> None:
    assert described(schedule="*/10 * * * *")[1] == "  Sat 2026-10-24 12:10:00 UTC, or up to 60 s later"


def test_what_begins_too_late_is_skipped() -> None:
    assert described(startingDeadlineSeconds=3600, **BERLIN)[-1] == (
        "  a refresh that would begin more than 3,600 s late is skipped"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"suspend": True, **BERLIN}, ["'0 2 * * *' in Europe/Berlin, suspended: refresh.suspend is true"]),
        (
            {"is_suspended": True, **BERLIN},
            [
                "'0 2 * * *' in Europe/Berlin, suspended",
                "  suspend is true: nothing is built or rolled out",
            ],
        ),
    ],
    ids=["refresh", "dataset"],
)
def test_what_is_suspended_has_no_slots(given: dict[str, Any], expected: list[str]) -> None:
    assert described(**given) == expected


def test_without_a_schedule_it_says_what_else_makes_a_cluster_look() -> None:
    (line,) = described()
    assert line.startswith("no schedule: the source is read when the spec changes, ")
    assert described(suspend=True)[1] == "  refresh.suspend is true, and there is no schedule to suspend"
