"""The last builds, in status: how each ended, and when the source was last looked at. No decision reads them.

Many checks find the source unchanged. So that these do not push out what people look for, one that ends as the one
before it did takes its place, and counts it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildOutcome, BuildRecord, BuildStatus, DatasetStatus, GenerationStatus

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
