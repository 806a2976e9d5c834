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

_FIELDS = "minute, hour, day of month, month, day of week"
_SOON = timedelta(seconds=1)
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
        slots = self._slots(after, reverse=False)
        return next((slot for slot in slots if slot > after), None)

    def last_slot(self, until: datetime) -> datetime | None:
        """The last slot that is not after ``until``, in UTC; None when there was none in fifty years."""
        slots = self._slots(until.replace(microsecond=0) + _SOON, reverse=True)
        slot = next((slot for slot in slots if slot <= until), None)
        # In the second one of two equal hours, the slots of the first one are missed on the way back.
        while slot is not None:
            following = self.next_slot(slot)
            if following is None or following > until:
                break
            slot = following
        return slot

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

    def _slots(self, start: datetime, *, reverse: bool) -> Iterator[datetime]:
        from cronsim import CronSim

        simulation = CronSim(self.expression, start.astimezone(self.zone), reverse=reverse)
        return (slot.astimezone(UTC) for slot in simulation)


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
