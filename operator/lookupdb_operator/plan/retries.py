"""How long the next build waits: after a failure, and after a loss."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from lookupdb_operator.plan import clock, reasons

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
    return clock.doubling_delay(count, FIRST_RETRY_DELAY, longest)


def remaining_backoff(retry_at: str, now: datetime) -> float:
    """Seconds until the next attempt."""
    return max(0.0, (clock.parse_moment(retry_at) - now).total_seconds())
