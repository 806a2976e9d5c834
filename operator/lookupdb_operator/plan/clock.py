"""Times in the status: ISO 8601 in UTC, whole seconds.

The status never changes because time passes, only at transitions. Everything that is to happen later is compared with
``now``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lookupdb.backoff import delay_after
from lookupdb_operator.plan import reasons


def format_moment(moment: datetime) -> str:
    """Format ``moment`` as the status has it: ``2026-01-31T12:00:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment(text: str) -> datetime:
    """Parse what ``format_moment`` wrote. Raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def add_seconds(moment: datetime, seconds: float) -> str:
    """Format the time ``seconds`` after ``moment``."""
    return format_moment(moment + timedelta(seconds=seconds))


def clamp_moment(moment: str, latest: datetime) -> str:
    """``moment``, but not after ``latest``: with a second's grace, since two machines' clocks are never quite equal."""
    return format_moment(latest) if parse_moment(moment) > latest + timedelta(seconds=1) else moment


def clamp_to_now(moment: str, now: datetime) -> str:
    """``moment``, if there is one, but not after ``now``."""
    return clamp_moment(moment, now) if moment else moment


def seconds_until(since: str, seconds: float, now: datetime) -> float:
    """Return how long it is until ``seconds`` have passed ``since``; 0 when they have. Never too short: ``since`` was
    cut to whole seconds."""
    due = parse_moment(since) + timedelta(seconds=seconds + 1)
    return max(0.0, (due - now).total_seconds())


def parse_duration(text: str) -> float:
    """Seconds: 1800 for ``30m``."""
    return float(int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]])


# Backoff of builds: after a failure, and after a loss.


FIRST_RETRY_DELAY: Final = 30.0
"""Seconds. A source that is being uploaded is there the next time."""
LONGEST_RETRY_DELAY: Final = 1800.0
"""Seconds. A source that has been broken for days is not read every minute; corrected, it is built at once."""
LONGEST_WAIT: Final = 300.0
"""Seconds between two looks for a success file that is not there: it is expected, and data is late until it is seen."""
MAX_MESSAGE_CHARACTERS: Final = 4000
"""Characters: a little less than the CRD allows."""


def retry_delay(count: int, reason: str = "") -> float:
    """Seconds between the ``count``-th failure in a row, for ``reason``, and the next attempt."""
    longest = LONGEST_WAIT if reason == reasons.WAITING_FOR_SOURCE else LONGEST_RETRY_DELAY
    return delay_after(count, FIRST_RETRY_DELAY, longest)


def remaining_backoff(retry_at: str, now: datetime) -> float:
    """Seconds until the next attempt."""
    return max(0.0, (parse_moment(retry_at) - now).total_seconds())
