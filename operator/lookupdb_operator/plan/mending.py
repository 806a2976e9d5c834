"""What to make of a clock that was set back while status remembers moments."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from lookupdb_operator.plan import clock, failures
from lookupdb_operator.status import Status


def mended(status: Status, now: datetime) -> Status:
    """``status`` without moments that lie ahead of what they could be. The clock was set back: how long ago they were
    cannot be known, so what was to pass since them passes from now on. Nothing waits for ever, nothing ends early."""
    table, failure = status.table, status.failure
    if table is not None:
        table = replace(table, written_at=_past(table.written_at, now), confirmed_at=_past(table.confirmed_at, now))
    if failure is not None:
        latest = now + timedelta(seconds=failures.delay(failure.count))
        failure = replace(failure, retry_at=_at_most(failure.retry_at, latest))
    return replace(status, table=table, failure=failure, store_written_at=_past(status.store_written_at, now))


def _past(moment: str, now: datetime) -> str:
    return _at_most(moment, now) if moment else moment


def _at_most(moment: str, latest: datetime) -> str:
    # A second's grace: two machines' clocks are never quite equal.
    return clock.written(latest) if clock.read(moment) > latest + timedelta(seconds=1) else moment
