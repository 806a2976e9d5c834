"""Slots of cron schedules: by time zone, through hours that are left out and hours that come twice."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from lookupdb.dataset.schedule import Schedule
from lookupdb.errors import InvalidManifest

BERLIN = "Europe/Berlin"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(expression: str, zone: str, begin: str, count: int) -> list[str]:
    """The first slots after ``begin``."""
    schedule, found, at = Schedule.parse(expression, zone), [], moment(begin)
    for _ in range(count):
        following = schedule.next_slot(at)
        assert following is not None
        at = following
        found.append(f"{at:%m-%d %H:%M}")
    return found


def test_a_slot_is_a_moment_of_its_zone_in_utc() -> None:
    assert slots("0 2 * * *", "UTC", "2026-01-31 12:00", 2) == ["02-01 02:00", "02-02 02:00"]
    assert slots("0 2 * * *", BERLIN, "2026-01-31 12:00", 2) == ["02-01 01:00", "02-02 01:00"]


def test_a_slot_is_after_the_moment_that_is_asked_about() -> None:
    schedule = Schedule.parse("0 2 * * *", "UTC")
    assert schedule.next_slot(moment("2026-01-01 02:00")) == moment("2026-01-02 02:00")
    assert schedule.last_slot(moment("2026-01-01 02:00")) == moment("2026-01-01 02:00")
    assert schedule.last_slot(moment("2026-01-01 01:59")) == moment("2025-12-31 02:00")


def test_a_slot_of_an_hour_that_is_left_out_is_the_first_moment_after_it() -> None:
    """In Berlin, 2026-03-29 goes from 01:59 to 03:00, which is 01:00 in UTC."""
    assert slots("30 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["03-29 01:00", "03-30 00:30"]


def test_slots_that_fall_together_there_are_one() -> None:
    assert slots("15,30 2 * * *", BERLIN, "2026-03-28 12:00", 2) == ["03-29 01:00", "03-30 00:15"]


def test_a_slot_of_an_hour_that_comes_twice_is_in_the_first_one() -> None:
    """In Berlin, 2026-10-25 has 02:30 at 00:30 and at 01:30 in UTC."""
    assert slots("30 2 * * *", BERLIN, "2026-10-24 12:00", 2) == ["10-25 00:30", "10-26 01:30"]


def test_from_the_second_one_of_two_equal_hours_the_next_slot_is_tomorrow() -> None:
    for minute in range(0, 60, 5):
        schedule, now = Schedule.parse("30 2 * * *", BERLIN), moment("2026-10-25 01:00") + timedelta(minutes=minute)
        assert schedule.next_slot(now) == moment("2026-10-26 01:30")
        assert schedule.last_slot(now) == moment("2026-10-25 00:30")


def test_schedules_of_every_so_many_minutes_go_by_the_time_that_passes() -> None:
    assert len(set(slots("*/30 * * * *", BERLIN, "2026-10-24 23:59", 8))) == 8
    assert slots("*/30 * * * *", BERLIN, "2026-10-25 00:01", 4) == [
        "10-25 00:30",
        "10-25 01:00",
        "10-25 01:30",
        "10-25 02:00",
    ]


def test_back_and_forth_the_slots_are_the_same() -> None:
    """From a moment back to the slot before and on again: through a year, and more often when the clocks change."""
    for expression in ("30 2 * * *", "*/20 * * * *", "10 */3 * * *", "0-59 1,2 * * *"):
        for zone in ("UTC", BERLIN, "America/Los_Angeles", "Australia/Lord_Howe", "Pacific/Apia"):
            schedule, begin = Schedule.parse(expression, zone), moment("2026-01-01 00:17")
            for step in range(365 * 24 // 17):
                now = begin + timedelta(hours=17 * step)
                if step % 5 and offset(zone, now - timedelta(days=2)) == offset(zone, now + timedelta(days=2)):
                    continue
                last, following = schedule.last_slot(now), schedule.next_slot(now)
                assert last is not None
                assert following is not None
                assert last <= now < following
                assert schedule.next_slot(last) == following


CHANGES = {
    BERLIN: ("2026-03-29 01:00", "2026-10-25 01:00"),
    "Australia/Lord_Howe": ("2026-04-04 15:00", "2026-10-03 15:30"),  # by half an hour
    "Pacific/Chatham": ("2026-04-04 14:00", "2026-09-26 14:00"),  # by an hour, at a quarter to three or four
    "America/Havana": ("2026-03-08 05:00", "2026-11-01 05:00"),  # at midnight
    "Pacific/Apia": ("2011-12-30 10:00",),  # by a day
}


def test_around_a_change_of_clocks_slots_are_what_looking_at_each_minute_finds() -> None:
    """cronsim's own zones never come to an end for some of these."""
    for expression in (
        "0 */2 * * *",
        "30 */2 * * *",
        "*/15 3 * * *",
        "* 3 * * *",
        "10 */3 * * *",
        "45 2 * * *",
        "0-59/7 0,1,2,3 * * *",
    ):
        for zone, change in [(name, change) for name in CHANGES for change in CHANGES[name]]:
            schedule, begin = Schedule.parse(expression, zone), moment(change) - timedelta(hours=30)
            expected = [slot for slot in strikes(expression, zone, begin, timedelta(hours=66)) if slot > begin]
            for step in range(0, 60 * 60, 211):
                now = begin + timedelta(minutes=step, microseconds=step % 3 * 333_333)
                before, after = [slot for slot in expected if slot <= now], [slot for slot in expected if slot > now]
                assert not after or schedule.next_slot(now) == after[0], f"after {now}"
                assert not before or schedule.last_slot(now) == before[-1], f"until {now}"


@cache
def clocks(zone: str, begin: datetime, lasts: timedelta) -> tuple[list[datetime], list[datetime]]:
    """Every minute from a day before ``begin`` on, and the time that clocks show then."""
    minutes = [begin + timedelta(minutes=step) for step in range(-1440, int(lasts.total_seconds()) // 60)]
    return minutes, [now.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for now in minutes]


def strikes(expression: str, zone: str, begin: datetime, lasts: timedelta) -> list[datetime]:
    """Minute by minute: when clocks show a time of the expression; if it denotes fixed times, only the first time that
    clocks show it or what is later."""
    minutes, shown = clocks(zone, begin, lasts)
    walls, latest = set(), max(shown)
    for wall in CronSim(expression, min(shown)):
        if wall > latest:
            break
        walls.add(wall)
    if any(field.startswith("*") for field in expression.split()[:2]):
        return [now for now, wall in zip(minutes, shown, strict=True) if wall in walls]
    firsts = {next(now for now, clock in zip(minutes, shown, strict=True) if clock >= wall) for wall in walls}
    return sorted(firsts)


def offset(zone: str, now: datetime) -> timedelta | None:
    return now.astimezone(ZoneInfo(zone)).utcoffset()


def test_what_never_strikes_is_refused_with_what_was_expected_and_found() -> None:
    for expression, why in (
        ("61 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 32 * *", "bad day-of-month"),
        ("0 0 1 FOO *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("30-10 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        (
            "0 0 30 2 *",
            "bad day-of-month, expected 1 to 31, or L for the last one; one of its months must have that day",
        ),
        ("0 0 */31 2 SUN#5", "no such day in fifty years"),
        ("0 0 0 1 * *", "6 fields"),
        ("@daily", "1 fields"),
    ):
        with pytest.raises(InvalidManifest) as caught:
            Schedule.parse(expression, "UTC")
        message = str(caught.value)
        assert message.startswith("refresh.schedule: expected five cron fields")
        assert f"found {expression!r}" in message
        assert why in message
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("zone", ["Europe/Berlim", "Europe", "../etc/passwd", "/etc/localtime", "", "\0"])
def test_a_zone_that_nobody_knows_is_refused(zone: str) -> None:
    with pytest.raises(InvalidManifest, match=r"refresh\.timeZone: expected a name of the IANA"):
        Schedule.parse("0 2 * * *", zone)


@pytest.mark.parametrize(("zone", "meant"), [("Europe/Berlim", "Europe/Berlin"), ("Berlin", "Europe/Berlin")])
def test_a_zone_that_is_misspelt_is_found(zone: str, meant: str) -> None:
    with pytest.raises(InvalidManifest, match=rf"did you mean {meant}\?"):
        Schedule.parse("0 2 * * *", zone)


@pytest.mark.parametrize("zone", ["CEST", "IST", "PDT", "GMT+1"])
def test_an_abbreviation_is_not_taken_for_that_of_another_place(zone: str) -> None:
    with pytest.raises(InvalidManifest, match=rf"found '{re.escape(zone)}'$"):
        Schedule.parse("0 2 * * *", zone)
