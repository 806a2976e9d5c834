"""Refreshes: when the source is checked by schedule, how old the data are that serve, and how the last builds ended
(``status.builds``, which no decision reads)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from lookupdb.dataset.schedule import Schedule
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import DesiredSchedule, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import (
    BuildOutcome,
    BuildRecord,
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    ScheduleStatus,
)

# Checks: a builder looks at the source when the schedule of ``spec.refresh`` is due. ``generations.is_build_needed``
# counts a due check like a refresh annotation that is not answered.
#
# A slot is a time of the schedule, and its check is due a little later (``due_moment``): each dataset has its own
# offset, so that five hundred datasets at two o'clock do not begin together.
#
#     event                                    effect
#     the next check is due                    the check of the newest slot is asked for; earlier slots, from while no
#                                              operator ran, are not made up for
#     it is late by more than                  it is skipped, and the status and an event say so
#     startingDeadlineSeconds
#     a check is being made                    the newer one is made after it
#     a check waits to be made                 newer slots are not noted, and nothing is written; the newest one
#                                              replaces it when its build begins
#     the schedule or its zone changes         it starts again from now; a check that is asked for stays
#     it is suspended or removed               no more checks; a build under way goes on
#     the clock was set forward                as when no operator ran
#     the clock was set back                   a slot that has passed does not pass again; if more than one has, the
#                                              schedule starts again, so that nothing waits longer than an interval


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
    """Whether a check is due and no build has begun for it, for example because it is queued behind hundreds of
    datasets."""
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
    """The part of a suspended schedule that remains: the check that is being made."""
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
        """The time at which the check of the first slot after ``after`` is due, as the status has it."""
        return clock.format_moment(self.due_moment(self.next_slot(after)))

    def newest_due_slot(self, after: datetime, now: datetime) -> datetime:
        """The newest slot whose check is due; at least the first one after ``after``."""
        slot = self.schedule.last_slot(now)
        if slot is not None and self.due_moment(slot) > now:
            slot = self.schedule.last_slot(slot - timedelta(seconds=1))
        first = self.next_slot(after)
        return first if slot is None else max(first, slot)


# Age of the data that serve: counted from the start of the build that last read their source, or found it unchanged. A
# generation that is built and does not serve makes nothing fresh. If several serve, shard by shard or while routers
# change from one to the other, the oldest counts.


def note_refresh(status: DatasetStatus) -> DatasetStatus:
    """``status`` with when the oldest data that serve were last known to be as their source; empty without any."""
    oldest = _find_oldest(status)
    return replace(status, last_refreshed="" if oldest is None else _fresh_at(oldest))


def _find_oldest(status: DatasetStatus) -> GenerationStatus | None:
    """The generation, among those that serve, whose source was checked the longest ago."""
    if not status.generation:
        return None
    known = (status.find_generation(name) for name in _list_serving(status))
    serving = [generation for generation in known if generation is not None and _fresh_at(generation)]
    return min(serving, key=lambda generation: clock.parse_moment(_fresh_at(generation)), default=None)


def _list_serving(status: DatasetStatus) -> Iterator[str]:
    """The generations that routers may answer from. What is active counts until every router has left it."""
    table = status.table
    if table is None or not table.confirmed_at:
        yield status.generation
    if table is not None:
        yield from (table.generation, *(part.generation for part in table.parts))


def _fresh_at(generation: GenerationStatus) -> str:
    # What a version has written that did not note it was known to be fresh when it was built.
    return generation.refreshed_at or generation.built_at


def diagnose_staleness(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why the data that serve count as too old; None while they do not."""
    oldest = _find_oldest(status)
    if oldest is None or remaining_freshness(status, situation) != 0.0:
        return None
    limit = situation.desired.stale_after_seconds
    return Trouble(
        reasons.STALE,
        f"{oldest.generation} holds the source as it was at {status.last_refreshed}, which is more than"
        f" refresh.staleAfterSeconds ({limit}) ago",
    )


def remaining_freshness(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until the data that serve are too old; None when they never are."""
    limit = situation.desired.stale_after_seconds
    if limit is None or not status.last_refreshed:
        return None
    return clock.seconds_until(status.last_refreshed, limit, situation.now)


def next_stale_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until it is to be said that they are too old; None when it is said, or never will be."""
    return remaining_freshness(status, situation) or None


# The last builds, in the status. Many checks find the source unchanged: a record with the same outcome as the one
# before replaces it and counts it, so that it does not push out the builds that people look for.


MAX_RECORDS: Final = 10
MAX_MESSAGE_CHARACTERS: Final = 256
_LOOKED: Final = ("built", "adopted", "unchanged", "waiting")
"""Outcomes of builders that could say how the source is, unless they have adopted what an earlier dataset left."""


def record_success(status: DatasetStatus, build: BuildStatus, result: BuildResult, now: datetime) -> DatasetStatus:
    """``status`` with the end of ``build``, whose builder has done, or found, what it was to."""
    assert result.outcome != "failed"
    record = _make_record(build, result.outcome, result.reason or result.outcome.capitalize(), result.message, now)
    record = replace(record, records=result.records, seconds=round(result.seconds))
    after = _add(status, record)
    return replace(after, last_checked=status.last_checked) if result.adopted_from else after


def record_failure(
    status: DatasetStatus, build: BuildStatus, trouble: Trouble, result: BuildResult | None, now: datetime
) -> DatasetStatus:
    """``status`` with the end of ``build``, which failed on account of ``trouble``."""
    outcome: BuildOutcome = "gateClosed" if trouble.reason == reasons.GATE_CLOSED else "failed"
    record = _make_record(build, outcome, trouble.reason, trouble.message, now)
    return _add(status, record if result is None else replace(record, seconds=round(result.seconds)))


def record_override(status: DatasetStatus, generation: GenerationStatus, now: datetime) -> DatasetStatus:
    """``status`` with the moment at which the gates of ``generation`` were overridden."""
    moment = clock.format_moment(now)
    return _add(
        status,
        BuildRecord(
            generation=generation.generation,
            outcome="overridden",
            reason=reasons.GATE_CLOSED,
            started_at=moment,
            finished_at=moment,
            records=generation.records,
            message=reasons.shorten(reasons.join_lines(generation.overridden), MAX_MESSAGE_CHARACTERS),
        ),
    )


def _make_record(build: BuildStatus, outcome: BuildOutcome, reason: str, message: str, now: datetime) -> BuildRecord:
    took = max(0.0, (now - clock.parse_moment(build.started_at)).total_seconds())
    return BuildRecord(
        generation=build.generation,
        outcome=outcome,
        reason=reasons.shorten(reason, MAX_MESSAGE_CHARACTERS),
        started_at=clock.clamp_to_now(build.started_at, now),
        finished_at=clock.format_moment(now),
        seconds=round(took),
        message=reasons.shorten(reasons.join_lines(message), MAX_MESSAGE_CHARACTERS),
    )


def _add(status: DatasetStatus, record: BuildRecord) -> DatasetStatus:
    records = status.builds
    if records and _is_repeated(record, records[-1]):
        record = replace(record, count=records[-1].count + 1)
        records = records[:-1]
    checked = record.finished_at if record.outcome in _LOOKED else status.last_checked
    return replace(status, builds=(*records, record)[-MAX_RECORDS:], last_checked=checked)


def _is_repeated(record: BuildRecord, before: BuildRecord) -> bool:
    is_new = record.outcome in ("built", "adopted", "overridden")
    return not is_new and (record.outcome, record.reason) == (before.outcome, before.reason)


def clamp_records(status: DatasetStatus, now: datetime) -> DatasetStatus:
    """``status`` without ends of builds that lie ahead: the clock was set back."""
    return replace(
        status,
        last_checked=clock.clamp_to_now(status.last_checked, now),
        builds=tuple(
            replace(
                record,
                started_at=clock.clamp_to_now(record.started_at, now),
                finished_at=clock.clamp_to_now(record.finished_at, now),
            )
            for record in status.builds
        ),
    )
