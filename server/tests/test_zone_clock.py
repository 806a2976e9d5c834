"""Clocks on walls, and when they are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from lookupdb.dataset.schedule import first_moment, last_change, next_change, wall_time

BERLIN, CHATHAM = ZoneInfo("Europe/Berlin"), ZoneInfo("Pacific/Chatham")
SPRING, AUTUMN = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
@pytest.mark.parametrize("days", [0.001, 1, 100])
def test_a_change_is_found_from_either_side_to_the_second(change: datetime, days: float) -> None:
    far = timedelta(days=days)
    assert next_change(change - far, change + timedelta(days=1), BERLIN) == change
    assert last_change(change - timedelta(days=1), change + far, BERLIN) == change


@pytest.mark.timeout(10)
def test_a_change_is_found_between_moments_that_are_not_whole_seconds() -> None:
    for seconds in (0, 1, 2, 3, 7):
        for micros in (1, 500_000, 999_999):
            near, day = timedelta(seconds=seconds, microseconds=micros), timedelta(days=1)
            assert last_change(SPRING - day, SPRING + near, BERLIN) == SPRING
            assert next_change(SPRING - near, SPRING + near, BERLIN) == SPRING


def test_a_change_counts_from_its_own_moment_on() -> None:
    day, second = timedelta(days=1), timedelta(seconds=1)
    assert next_change(SPRING - day, SPRING, BERLIN) == SPRING
    assert next_change(SPRING - day, SPRING - second, BERLIN) is None
    assert next_change(SPRING, SPRING + day, BERLIN) is None
    assert last_change(SPRING, SPRING + day, BERLIN) is None


def test_of_several_changes_the_nearest_one_is_found() -> None:
    assert next_change(SPRING - timedelta(days=1), AUTUMN + timedelta(days=1), BERLIN) == SPRING
    assert last_change(SPRING - timedelta(days=1), AUTUMN + timedelta(days=1), BERLIN) == AUTUMN


def test_what_clocks_show_twice_is_the_first_time() -> None:
    assert first_moment(datetime(2026, 10, 25, 2, 30), BERLIN) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_what_clocks_never_show_is_the_first_moment_after_it() -> None:
    assert first_moment(datetime(2026, 3, 29, 2, 30), BERLIN) == SPRING
    assert first_moment(datetime(2026, 9, 27, 3, 44), CHATHAM) == datetime(2026, 9, 26, 14, tzinfo=UTC)


@pytest.mark.parametrize("zone", [BERLIN, CHATHAM])
def test_all_else_goes_there_and_back(zone: ZoneInfo) -> None:
    for hour in range(0, 365 * 24, 13):
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
        first = first_moment(wall_time(now, zone), zone)
        assert first <= now
        assert wall_time(first, zone) == wall_time(now, zone)
