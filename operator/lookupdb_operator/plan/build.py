"""Whether something is to be built, and the claim of its number."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lookupdb_operator import names
from lookupdb_operator.plan import clock, failures, generations, reasons, store
from lookupdb_operator.plan.situation import Situation, Wish
from lookupdb_operator.status import Build, Generation, Status


def decided(status: Status, situation: Situation) -> Status:
    """``status`` with the build that should be under way now: the one that is, another one, or none."""
    status = _of_this_wish(status, situation.wish)
    if status.build is not None or not is_needed(status, situation.wish):
        return status
    if status.failure is not None and _must_wait(status, situation):
        return status
    return _claimed(status, situation)


def is_needed(status: Status, wish: Wish) -> bool:
    """Whether the store lacks what is asked for. An annotation that was taken away asks for nothing; one that was
    answered with another spec's generation still asks for this one's."""
    wanted = generations.wanted(status, wish)
    return wanted is None or wish.refresh not in ("", wanted.refresh)


def _is_damaged(generation: Generation, situation: Situation) -> bool:
    """Whether servers cannot have it from the store any more: then it is built again, though the source is the same."""
    reports = (pod.trouble for pod in situation.observed.pods if pod.generation == generation.generation)
    return any(trouble is not None and trouble.reason in reasons.OF_DAMAGE for trouble in reports)


def _of_this_wish(status: Status, wish: Wish) -> Status:
    """``status`` without a build and a failure of what is not asked for any more.

    A build that answers an older refresh goes on: were it begun anew with each, none might ever end.
    """
    build, failure = status.build, status.failure
    if build is not None and (
        (build.content, build.digest) != (wish.content, wish.digest) or not is_needed(status, wish)
    ):
        build = None
    if failure is not None and not (failures.concerns(failure, wish) and is_needed(status, wish)):
        failure = None
    return replace(status, build=build, failure=failure)


def _must_wait(status: Status, situation: Situation) -> bool:
    failure = status.failure
    if failure is None or store.may_help(failure.reason, status, situation):
        return False
    return retry_in(failure.retry_at, situation.now) > 0


def retry_in(retry_at: str, now: datetime) -> float:
    """Seconds until the next attempt."""
    return max(0.0, (clock.read(retry_at) - now).total_seconds())


def _claimed(status: Status, situation: Situation) -> Status:
    number, wish = status.last_generation + 1, situation.wish
    known = generations.wanted(status, wish)
    comparable = known is not None and not _is_damaged(known, situation)
    build = Build(
        generation=names.generation_name(number),
        content=wish.content,
        refresh=wish.refresh,
        digest=wish.digest,
        started_at=clock.written(situation.now),
        unless_fingerprint=known.fingerprint if known is not None and comparable else "",
        active=status.generation,
    )
    return replace(status, build=build, last_generation=number)
