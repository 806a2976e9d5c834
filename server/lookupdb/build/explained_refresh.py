"""When a cluster looks at the source again, in words, for `lookupdb build --explain`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from lookupdb.refresh import Refresh
from lookupdb.spec import LOCAL

_SHOWN_SLOTS: Final = 3


def describe_refresh(refresh: Refresh, *, uid: str, is_suspended: bool, now: datetime) -> Iterator[str]:
    """The schedule and its next slots after ``now``, each when the dataset ``uid`` is looked at for it; or why there is
    none."""
    if refresh.schedule is None:
        yield (
            "no schedule: a cluster looks at the source when the spec changes, and when the annotation"
            " lookupdb.dev/refresh gets another value"
        )
        if refresh.suspend:
            yield "  refresh.suspend is true, and there is no schedule that could rest"
    else:
        yield from _describe_schedule(refresh.schedule, refresh, uid, now, rests=is_suspended or refresh.suspend)
    if is_suspended:
        yield "  suspend is true: a cluster builds nothing and rolls nothing out"


def _describe_schedule(expression: str, refresh: Refresh, uid: str, now: datetime, *, rests: bool) -> Iterator[str]:
    where = f"{expression!r} in {refresh.time_zone}"
    if rests:
        yield f"{where}, which rests{': refresh.suspend is true' if refresh.suspend else ''}"
        return
    yield f"{where}: a cluster looks at the source at"
    yield from (f"  {line}" for line in _describe_slots(expression, ZoneInfo(refresh.time_zone), uid, now))
    if uid == LOCAL:
        yield "  later by a part of its own, fixed by its uid in the cluster: status.nextCheck says when"
    if refresh.starting_deadline_seconds is not None:
        yield f"  one that would begin more than {refresh.starting_deadline_seconds:,} s late is skipped"


def _describe_slots(expression: str, zone: ZoneInfo, uid: str, now: datetime) -> Iterator[str]:
    from lookupdb.schedule import Schedule  # only who gives one needs it

    schedule = Schedule(expression, zone)
    slot = schedule.last_slot(now)
    if slot is None or uid == LOCAL or schedule.due_moment(slot, uid) <= now:
        slot = schedule.next_slot(now)
    for _ in range(_SHOWN_SLOTS):
        if slot is None:
            return
        if uid == LOCAL:
            yield f"{_format_moment(slot, zone)}, or up to {schedule.longest_jitter(slot):.0f} s later"
        else:
            due = schedule.due_moment(slot, uid)
            yield f"{_format_moment(due, zone)}, {(due - slot).total_seconds():.0f} s after the slot"
        slot = schedule.next_slot(slot)


def _format_moment(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
