"""A build that failed: what stays of it in status, whether it concerns what is asked for now, when to try again."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.situation import Desired
from lookupdb_operator.status import Build, Failure

FIRST_DELAY: Final = 30.0
"""Seconds. A source that is being uploaded is there the next time."""
LONGEST_DELAY: Final = 1800.0
"""Seconds. A source that has been broken for days is not read every minute; corrected, it is built at once."""
MESSAGE_AT_MOST: Final = 4000
"""Characters: a little less than the CRD allows."""


def delay(count: int) -> float:
    """Seconds between the ``count``-th failure in a row and the next attempt."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(count - 1, 16)))


def after(build: Build, trouble: Trouble, before: Failure | None, now: datetime) -> Failure:
    """The failure that ``build`` ended with, after the failure ``before`` it."""
    repeated = before is not None and made_from(before) == made_from(build)
    count = before.count + 1 if before is not None and repeated else 1
    return Failure(
        reason=trouble.reason,
        message=shortened(trouble.message, MESSAGE_AT_MOST),
        generation=build.generation,
        content=build.content,
        refresh=build.refresh,
        count=count,
        retry_at=clock.written(now + timedelta(seconds=delay(count))),
        digest=build.digest,
    )


def made_from(one: Build | Failure) -> tuple[str, str, str]:
    """What an attempt answers and was made from: while this stays, a retry is a repetition."""
    return one.content, one.refresh, one.digest


def concerns(failure: Failure, desired: Desired) -> bool:
    """Whether what failed is what is asked for now. A corrected spec owes nothing to the broken one."""
    return made_from(failure) == (desired.content_hash, desired.refresh, desired.build_digest)


def shortened(text: str, at_most: int) -> str:
    """``text``, cut so that the CRD accepts it."""
    return text if len(text) <= at_most else text[: at_most - 1] + "…"
