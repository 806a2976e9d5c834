"""A cron schedule in a time zone: whether it can be used, its slots, the moments at which it strikes, and how much
later each dataset is looked at.

A slot is a moment, so none is there twice. Where clocks are put forward, a slot of an hour that is left out is the
first moment after it; where they are put back, a slot of the hour that comes twice is in the first one. Schedules whose
minute or hour begins with ``*`` go by the time that passes, and strike in both hours. This is what Debian's cron does.
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

# What the clocks on the walls of a time zone show, and when they are changed.
#
# Moments are aware and in UTC. A wall time has no zone: where clocks are put back it comes twice, where they are put
# forward it never comes.


_STRIDE: Final = timedelta(hours=12)
"""No zone changes its clocks twice within that."""
_SECOND: Final = timedelta(seconds=1)


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    """What the clocks of ``zone`` show more than UTC at ``moment``."""
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None, "a zone says its offset at every moment"
    return offset


def wall_time(moment: datetime, zone: ZoneInfo) -> datetime:
    """What the clocks of ``zone`` show at ``moment``."""
    return moment.astimezone(zone).replace(tzinfo=None)


def first_moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the clocks of ``zone`` show ``wall``; if they never do, the first one after what is
    left out."""
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_time(moment, zone) == wall:
        return moment
    # Left out: by the offset from before the change it is at or after the change, by the one from after it before that.
    change = next_change(wall.replace(tzinfo=zone, fold=1).astimezone(UTC), moment, zone)
    assert change is not None, f"{wall} is left out in {zone}, and no clock is changed"
    return change


def next_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The first moment after ``after``, and not after ``until``, from which on the clocks show another offset."""
    offset = offset_at(after, zone)
    while after < until:
        following = min(after + _STRIDE, until)
        if offset_at(following, zone) != offset:
            return _find_change(after, following, zone)
        after = following
    return None


def last_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The last moment after ``after``, and not after ``until``, from which on the clocks show another offset."""
    offset = offset_at(until, zone)
    while until > after:
        previous = max(until - _STRIDE, after)
        if offset_at(previous, zone) != offset:
            return _find_change(previous, until, zone)
        until = previous
    return None


def _find_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The change between both, which is at a whole second, and at which ``after`` may stand."""
    offset, before, after = offset_at(before, zone), before.replace(microsecond=0), after.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // (2 * _SECOND) * _SECOND
        before, after = (middle, after) if offset_at(middle, zone) == offset else (before, middle)
    return before + _SECOND


_FIELDS = "minute, hour, day of month, month, day of week"
_DAY: Final = timedelta(days=1)
LONGEST_JITTER: Final = 300.0
"""Seconds after its slot at which a check may be due: as many datasets as are likely to share a schedule have their
builders started within that, and nobody wonders where a check remains."""
_JITTER_PART: Final = 0.1
"""Of the interval until the next slot: whoever wants to look every minute is to do so about every minute."""
_ALLOWED = {
    "bad minute": "0 to 59",
    "bad hour": "0 to 23",
    "bad day-of-month": "1 to 31, or L for the last one, and one that a month of the schedule has",
    "bad month": "1 to 12, or JAN to DEC",
    "bad day-of-week": "0 to 7, or SUN to SAT",
}
"""What cronsim says of a field → what may stand there."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that can be used."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, time_zone: str) -> Self:
        """The schedule that ``expression`` denotes in ``time_zone``. Raises InvalidManifest for either that cannot be
        used, and for a schedule that never strikes."""
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
        """The first slot after ``after``, in UTC; None when there is none in fifty years."""
        after = after.astimezone(UTC)
        return self._next_fixed(after) if self._is_fixed else self._next_running(after)

    def last_slot(self, until: datetime) -> datetime | None:
        """The last slot that is not after ``until``, in UTC; None when there was none in fifty years."""
        until = until.astimezone(UTC)
        return self._last_fixed(until) if self._is_fixed else self._last_running(until)

    def longest_jitter(self, slot: datetime) -> float:
        """Seconds after ``slot`` within which every dataset is looked at."""
        following = self.next_slot(slot)
        assert following is not None, "a schedule that does not strike in fifty years is refused"
        return min(LONGEST_JITTER, _JITTER_PART * (following - slot).total_seconds())

    def due_moment(self, slot: datetime, uid: str) -> datetime:
        """When the dataset ``uid`` is to be looked at for ``slot``, in whole seconds. Its share of the jitter never
        changes."""
        share = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4]) / 2**32
        return slot + timedelta(seconds=int(share * self.longest_jitter(slot)))

    @property
    def _is_fixed(self) -> bool:
        """Whether it strikes at times that clocks show, and not every so often."""
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def _next_fixed(self, after: datetime) -> datetime | None:
        moments = (first_moment(wall, self.zone) for wall in self._walls_after(wall_time(after, self.zone)))
        return next((moment for moment in moments if moment > after), None)

    def _last_fixed(self, until: datetime) -> datetime | None:
        # In the second one of two equal hours, the first one has shown what is later.
        put_back = offset_at(until - _DAY, self.zone) - offset_at(until, self.zone)
        walls = self._walls_until(wall_time(until, self.zone) + max(put_back, timedelta()))
        moments = (first_moment(wall, self.zone) for wall in walls)
        return next((moment for moment in moments if moment <= until), None)

    def _next_running(self, after: datetime) -> datetime | None:
        """The next slot as clocks show it that are changed no more; from the next change on, as those show it."""
        wall = next(self._walls_after(wall_time(after, self.zone)), None)
        while wall is not None:
            slot = (wall - offset_at(after, self.zone)).replace(tzinfo=UTC)
            change = next_change(after, slot, self.zone)
            if change is None:
                return slot
            after, wall = change, next(self._walls_after(wall_time(change, self.zone) - _SECOND), None)
        return None

    def _last_running(self, until: datetime) -> datetime | None:
        wall = next(self._walls_until(wall_time(until, self.zone)), None)
        while wall is not None:
            slot = (wall - offset_at(until, self.zone)).replace(tzinfo=UTC)
            change = last_change(slot, until, self.zone)
            if change is None:
                return slot
            until = change - _SECOND
            wall = next(self._walls_until(wall_time(until, self.zone)), None)
        return None

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        """The times that the expression denotes on clocks that nobody changes, later than ``wall``.

        cronsim also knows zones. Where a change is not of whole hours, it skips slots, or steps for ever between two.
        """
        from cronsim import CronSim

        return CronSim(self.expression, wall)

    def _walls_until(self, wall: datetime) -> Iterator[datetime]:
        """The same that are not later than ``wall``, the latest first."""
        from cronsim import CronSim

        return CronSim(self.expression, wall.replace(microsecond=0) + _SECOND, reverse=True)


def _load_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder, as Europe is
        # Of places alone: an abbreviation resembles that of another continent, and Etc/GMT+1 is west of Greenwich.
        places = (zone for zone in available_timezones() if "/" in zone and not zone.startswith("Etc/"))
        similar = difflib.get_close_matches(name, tuple(places), n=1)
        meant = f"; did you mean {similar[0]}?" if similar else ""
        raise InvalidManifest(
            f"refresh.timeZone: expected a name of the IANA time zone database, such as Europe/Berlin or UTC, found"
            f" {name!r}{meant}",
        ) from error


def _bad_expression(expression: str, why: str) -> InvalidManifest:
    return InvalidManifest(
        f"refresh.schedule: expected five cron fields ({_FIELDS}), such as '0 2 * * *' for two o'clock every night,"
        f" found {expression!r}: {why}"
    )
