"""What the clocks on the walls of a time zone show, and when they are changed.

Moments are aware and in UTC. A wall time has no zone: where clocks are put back it comes twice, where they are put
forward it never comes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

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
