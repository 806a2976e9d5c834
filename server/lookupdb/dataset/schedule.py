"""A cron schedule in a time zone: its slots (the moments at which it fires), and how much later each dataset is
checked.

A slot is a moment, so none occurs twice. When clocks are put forward, a slot in the skipped hour moves to the first
moment after it. When they are put back, a slot in the repeated hour happens only the first time. Schedules whose minute
or hour begins with ``*`` follow elapsed time, and also fire in skipped and repeated hours, as in Debian's cron.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self
from zoneinfo import ZoneInfo, available_timezones

from lookupdb.errors import InvalidManifest

# The wall clock of a time zone, and its changes.
#
# Moments are aware and in UTC. A wall time has no zone: it occurs twice if clocks are put back, and never if they are
# put forward.


_STRIDE: Final = timedelta(hours=12)
"""No zone changes its clocks twice within this time."""
_SECOND: Final = timedelta(seconds=1)


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return the UTC offset of ``zone`` at ``moment``."""
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None, "a zone says its offset at every moment"
    return offset


def wall_time(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the wall time of ``zone`` at ``moment``."""
    return moment.astimezone(zone).replace(tzinfo=None)


def first_moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment with the wall time ``wall`` in ``zone``; if it is skipped, the first moment after the
    gap."""
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_time(moment, zone) == wall:
        return moment
    # In a gap, the offset from before the change gives a moment at or after the change; the offset from after it gives
    # a moment before the change.
    change = next_change(wall.replace(tzinfo=zone, fold=1).astimezone(UTC), moment, zone)
    assert change is not None, f"{wall} is left out in {zone}, and no clock is changed"
    return change


def next_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first change of the UTC offset after ``after`` and up to ``until``."""
    offset = offset_at(after, zone)
    while after < until:
        following = min(after + _STRIDE, until)
        if offset_at(following, zone) != offset:
            return _find_change(after, following, zone)
        after = following
    return None


def last_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the last change of the UTC offset after ``after`` and up to ``until``."""
    offset = offset_at(until, zone)
    while until > after:
        previous = max(until - _STRIDE, after)
        if offset_at(previous, zone) != offset:
            return _find_change(previous, until, zone)
        until = previous
    return None


def _find_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the change of the offset between the moments, at a whole second; it may be ``after`` itself."""
    offset, before, after = offset_at(before, zone), before.replace(microsecond=0), after.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // (2 * _SECOND) * _SECOND
        before, after = (middle, after) if offset_at(middle, zone) == offset else (before, middle)
    return before + _SECOND


_DAY: Final = timedelta(days=1)
LONGEST_JITTER: Final = 300.0
"""A check is due at most this many seconds after its slot: enough to start the builds of all datasets with one
schedule."""
_JITTER_PART: Final = 0.1
"""The same limit as a share of the interval between slots: a check every minute should happen about every minute."""
_ALLOWED = {
    "bad minute": "0 to 59",
    "bad hour": "0 to 23",
    "bad day-of-month": "1 to 31, or L for the last one; one of its months must have that day",
    "bad month": "1 to 12, or JAN to DEC",
    "bad day-of-week": "0 to 7, or SUN to SAT",
}
"""cronsim's complaint about a field → the allowed values."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A valid schedule."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, time_zone: str) -> Self:
        """Parse ``expression`` in ``time_zone``. Raises InvalidManifest if either is invalid, or the schedule
        never fires."""
        from cronsim import CronSimError  # imported here, because few datasets have a schedule

        schedule = cls(expression, _load_zone(time_zone))
        fields = len(expression.split())
        if fields != 5:
            raise _bad_expression(expression, f"it has {fields} fields")
        try:
            slot = schedule.next_slot(datetime(2026, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            why = str(error).lower()
            allowed = f", expected {_ALLOWED[why]}" if why in _ALLOWED else ""
            raise _bad_expression(expression, f"{why}{allowed}") from error
        if slot is None:
            raise _bad_expression(expression, "there is no such day in fifty years")
        return schedule

    def next_slot(self, after: datetime) -> datetime | None:
        """Return the first slot after ``after``, in UTC; None if there is none in fifty years."""
        after = after.astimezone(UTC)
        if not self._is_fixed:
            return self._next_running(after)
        moments = (first_moment(wall, self.zone) for wall in self._walls_from(wall_time(after, self.zone)))
        return next((moment for moment in moments if moment > after), None)

    def last_slot(self, until: datetime) -> datetime | None:
        """Return the last slot that is not after ``until``, in UTC; None if there was none in fifty years."""
        until = until.astimezone(UTC)
        if not self._is_fixed:
            return self._last_running(until)
        # In the second pass of a repeated hour, slots of the first pass may have later wall times.
        put_back = offset_at(until - _DAY, self.zone) - offset_at(until, self.zone)
        walls = self._walls_from(wall_time(until, self.zone) + max(put_back, timedelta()), reverse=True)
        moments = (first_moment(wall, self.zone) for wall in walls)
        return next((moment for moment in moments if moment <= until), None)

    def longest_jitter(self, slot: datetime) -> float:
        """Return the seconds after ``slot`` within which every dataset is checked."""
        following = self.next_slot(slot)
        assert following is not None, "a schedule that does not fire in fifty years is rejected"
        return min(LONGEST_JITTER, _JITTER_PART * (following - slot).total_seconds())

    def due_moment(self, slot: datetime, uid: str) -> datetime:
        """Return when to check the dataset ``uid`` for ``slot``, in whole seconds. Its share of the jitter never
        changes."""
        share = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4]) / 2**32
        return slot + timedelta(seconds=int(share * self.longest_jitter(slot)))

    @property
    def _is_fixed(self) -> bool:
        """Return whether the schedule fires at wall times, not at intervals."""
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def _next_running(self, after: datetime) -> datetime | None:
        """Return the next slot. Each UTC offset applies only until its next change."""
        wall = next(self._walls_from(wall_time(after, self.zone)), None)
        while wall is not None:
            slot = (wall - offset_at(after, self.zone)).replace(tzinfo=UTC)
            change = next_change(after, slot, self.zone)
            if change is None:
                return slot
            after, wall = change, next(self._walls_from(wall_time(change, self.zone) - _SECOND), None)
        return None

    def _last_running(self, until: datetime) -> datetime | None:
        wall = next(self._walls_from(wall_time(until, self.zone), reverse=True), None)
        while wall is not None:
            slot = (wall - offset_at(until, self.zone)).replace(tzinfo=UTC)
            change = last_change(slot, until, self.zone)
            if change is None:
                return slot
            until = change - _SECOND
            wall = next(self._walls_from(wall_time(until, self.zone), reverse=True), None)
        return None

    def _walls_from(self, wall: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        """Yield the wall times of the expression, ignoring changes of the clock: those after ``wall``, or with
        ``reverse`` those up to it, the latest first.

        cronsim also supports zones. But at a change that is not of whole hours, it skips slots, or loops between two.
        """
        from cronsim import CronSim

        return CronSim(self.expression, wall.replace(microsecond=0) + _SECOND if reverse else wall, reverse=reverse)


def _load_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder, such as Europe
        # Suggest only places: an abbreviation resembles one of another continent, and Etc/GMT+1 is west of Greenwich.
        places = (zone for zone in available_timezones() if "/" in zone and not zone.startswith("Etc/"))
        similar = difflib.get_close_matches(name, tuple(places), n=1)
        meant = f"; did you mean {similar[0]}?" if similar else ""
        raise InvalidManifest(
            f"refresh.timeZone: expected a name of the IANA time zone database, such as Europe/Berlin or UTC, found"
            f" {name!r}{meant}"
        ) from error


def _bad_expression(expression: str, why: str) -> InvalidManifest:
    return InvalidManifest(
        "refresh.schedule: expected five cron fields (minute, hour, day of month, month, day of week), such as"
        f" '0 2 * * *' for two o'clock every night, found {expression!r}: {why}"
    )
