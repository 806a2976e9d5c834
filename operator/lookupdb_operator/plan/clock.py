"""Moments in status: ISO 8601 in UTC, whole seconds.

Nothing in status changes because time passes, only at transitions; what is to happen later is compared with ``now``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def written(moment: datetime) -> str:
    """``moment`` as it stands in status: ``2026-01-31T12:00:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: str) -> datetime:
    """What ``written`` wrote. Raises ValueError for what is no moment."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def later(moment: datetime, seconds: float) -> str:
    """The moment ``seconds`` after ``moment``, as it stands in status."""
    return written(moment + timedelta(seconds=seconds))


def at_most(moment: str, latest: datetime) -> str:
    """``moment``, but not after ``latest``: with a second's grace, since two machines' clocks are never quite equal."""
    return written(latest) if read(moment) > latest + timedelta(seconds=1) else moment


def at_most_now(moment: str, now: datetime) -> str:
    """``moment``, if there is one, but not after ``now``."""
    return at_most(moment, now) if moment else moment


def seconds_until(since: str, seconds: float, now: datetime) -> float:
    """How long it is until ``seconds`` have passed ``since``; 0 when they have. Never too short: ``since`` was cut to
    whole seconds."""
    due = read(since) + timedelta(seconds=seconds + 1)
    return max(0.0, (due - now).total_seconds())
