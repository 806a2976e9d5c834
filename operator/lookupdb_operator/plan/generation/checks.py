"""Checks: a builder looks at the source when the schedule of ``spec.refresh`` says so. This module decides when one is
asked for; ``generations.is_build_needed`` counts it like a refresh annotation that is not answered.

A slot is a moment of the schedule, and the check of a slot is due a little later (``due_moment``): each dataset has a
part of an interval of its own, so that five hundred datasets at two o'clock do not begin together.

    the next check is due                    that of the newest slot that is due is asked for; those that passed before
                                             it unseen, while no operator ran, are not made up for
    by more than startingDeadlineSeconds     it is skipped, and status and an event say so
    a check is being made                    the newer one is made after it
    a check waits to be made                 newer slots are not noted, and nothing is written, however many pass; the
                                             newest one takes its place when its build begins
    the schedule or its zone changes         it begins anew from now on; a check that is asked for stays
    it is suspended, or taken away           nothing more is asked for; a build under way goes on
    the clock was set forward                as when no operator ran
    the clock was set back                   the slot that passed already does not pass again; when more than one did,
                                             the schedule begins anew, so that nothing waits for longer than an interval
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from lookupdb.schedule import Schedule
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.situation import DesiredSchedule, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, ScheduleStatus


def advance_schedule(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the check that is asked for, if one is due, and with the moment of the next one."""
    desired = situation.desired.schedule
    if desired is None:
        return replace(status, next_check="", schedule=_kept_for_build(status))
    timetable = Timetable.from_desired(desired, situation.dataset.uid)
    schedule = status.schedule
    if schedule is None or not status.next_check or schedule.expression != desired.text:
        return _with_fresh_schedule(status, timetable, situation.now)
    if remaining_seconds(status.next_check, situation.now) > 0:
        return _with_sound_schedule(status, schedule, timetable, situation.now)
    if is_check_waiting(status):
        return status
    slot = timetable.newest_due_slot(clock.parse_moment(schedule.slot), situation.now)
    lateness = (situation.now - timetable.due_moment(slot)).total_seconds()
    deadline = desired.starting_deadline_seconds
    name = clock.format_moment(slot)
    if deadline is not None and lateness > deadline:
        schedule = replace(schedule, slot=name, skipped=name)
    else:
        schedule = replace(schedule, slot=name, due=name)
    return replace(status, schedule=schedule, next_check=timetable.next_check(slot))


def is_check_waiting(status: DatasetStatus) -> bool:
    """Whether a check is asked for and no build has begun for it: for its turn, say, behind hundreds of datasets."""
    schedule, build = status.schedule, status.build
    return schedule is not None and bool(schedule.due) and (build is None or build.slot != schedule.due)


def take_newest_slot(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status``, of which a build is about to begin, with the newest slot that is due in place of the one that has
    waited: the build answers both. It is never skipped, however late."""
    desired, schedule = situation.desired.schedule, status.schedule
    if desired is None or schedule is None or not schedule.due or not status.next_check:
        return status
    if schedule.expression != desired.text or remaining_seconds(status.next_check, situation.now) > 0:
        return status
    timetable = Timetable.from_desired(desired, situation.dataset.uid)
    slot = timetable.newest_due_slot(clock.parse_moment(schedule.slot), situation.now)
    name = clock.format_moment(slot)
    return replace(status, schedule=replace(schedule, slot=name, due=name), next_check=timetable.next_check(slot))


def _kept_for_build(status: DatasetStatus) -> ScheduleStatus | None:
    """What remains of a schedule that rests: the check that is being made."""
    build, schedule = status.build, status.schedule
    if build is None or schedule is None or not build.slot:
        return None
    return replace(schedule, due=build.slot)


def _with_fresh_schedule(status: DatasetStatus, timetable: Timetable, now: datetime) -> DatasetStatus:
    """``status`` with a schedule that begins now; if the clock was set back, after the slot that passes again."""
    before = status.schedule
    begin = now
    if before is not None:
        passed = clock.parse_moment(before.slot)
        begin = passed if now < passed <= timetable.next_slot(now) else now
    schedule = ScheduleStatus(
        expression=timetable.text,
        slot=clock.format_moment(begin),
        due=before.due if before is not None else "",
        skipped=before.skipped if before is not None else "",
    )
    return replace(status, schedule=schedule, next_check=timetable.next_check(begin))


def _with_sound_schedule(
    status: DatasetStatus, schedule: ScheduleStatus, timetable: Timetable, now: datetime
) -> DatasetStatus:
    """``status`` as it is, unless the clock was set back so far that too much would have to be waited for."""
    slot = clock.parse_moment(schedule.slot)
    if slot <= now + timedelta(seconds=1) or slot <= timetable.next_slot(now):
        return status
    return _with_fresh_schedule(status, timetable, now)


def answer_check(status: DatasetStatus, slot: str) -> DatasetStatus:
    """``status`` when the check of ``slot`` was made: it is not asked for any more, unless a newer one is."""
    schedule = status.schedule
    if schedule is None or not slot or schedule.due != slot:
        return status
    return replace(status, schedule=replace(schedule, due=""))


def answer_requests(status: DatasetStatus, refresh: str, slot: str, read_by: int) -> DatasetStatus:
    """``status`` when the build with the number ``read_by`` has read the source for ``refresh`` and ``slot``, either of
    which may be empty."""
    status = answer_check(status, slot)
    if refresh in ("", status.refreshed) and not slot:
        return status
    return replace(status, refreshed=refresh or status.refreshed, refreshed_by=read_by)


def next_check_in(status: DatasetStatus, now: datetime) -> float | None:
    """Seconds until the next check is due; None without a schedule, and while one waits to be made."""
    return remaining_seconds(status.next_check, now) if status.next_check and not is_check_waiting(status) else None


def remaining_seconds(moment: str, now: datetime) -> float:
    """Seconds until ``moment``; 0 when it has passed."""
    return max(0.0, (clock.parse_moment(moment) - now).total_seconds())


@dataclass(frozen=True, slots=True)
class Timetable:
    """The slots of a dataset's schedule, and when their checks are due."""

    text: str
    schedule: Schedule
    uid: str

    @classmethod
    def from_desired(cls, desired: DesiredSchedule, uid: str) -> Timetable:
        """The timetable of the dataset ``uid``."""
        return cls(desired.text, Schedule(desired.expression, ZoneInfo(desired.time_zone)), uid)

    def next_slot(self, after: datetime) -> datetime:
        """The first slot after ``after``."""
        slot = self.schedule.next_slot(after)
        assert slot is not None, "a schedule that does not strike in fifty years is refused"
        return slot

    def due_moment(self, slot: datetime) -> datetime:
        """When the check of ``slot`` is due, in whole seconds."""
        return self.schedule.due_moment(slot, self.uid)

    def next_check(self, after: datetime) -> str:
        """When the check of the first slot after ``after`` is due, as it stands in status."""
        return clock.format_moment(self.due_moment(self.next_slot(after)))

    def newest_due_slot(self, after: datetime, now: datetime) -> datetime:
        """The newest slot whose check is due; at least the first one after ``after``."""
        slot = self.schedule.last_slot(now)
        if slot is not None and self.due_moment(slot) > now:
            slot = self.schedule.last_slot(slot - timedelta(seconds=1))
        first = self.next_slot(after)
        return first if slot is None else max(first, slot)
