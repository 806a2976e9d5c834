"""Whether something is to be built, and the claim of its number."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import clock, failures, generations, outcomes, reasons, store, tickets
from lookupdb_operator.plan.rollouts import target_rollout
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import Build, Generation, Status


def decide_build(status: Status, situation: Situation) -> Status:
    """``status`` with the build that should be under way now: the one that is, another one, or none."""
    has_ended = status.build is None and situation.dataset.status.build is not None
    status = _without_unneeded_build(status, situation)
    if status.build is not None:
        return _with_turn(status, status.build, situation)
    is_needed_now = is_needed(status, situation.desired) and not waits_for_rollout(status, situation)
    if not is_needed_now or _must_wait(status, situation):
        return replace(status, build_ticket=None)
    # A build that has ended has had its turn: others come before the next one.
    if has_ended or not tickets.may_begin(situation.observed.turns.build, status.build_ticket, situation.now):
        waiting = tickets.wait(status.build_ticket, situation.desired.build_digest, situation.now)
        return replace(status, build_ticket=waiting)
    return _claimed(status, situation)


def is_needed(status: Status, desired: Desired) -> bool:
    """Whether the store lacks what is asked for. An annotation that was taken away asks for nothing; one that was
    answered with another spec's generation still asks for this one's, also when it is taken away."""
    newest = generations.deployable_generation(status, desired)
    return newest is None or desired.refresh not in ("", newest.refresh)


def waits_for_rollout(status: Status, situation: Situation) -> bool:
    """Whether a generation of the present spec is built already that has not had its turn: a candidate of the same
    spec is finished before it. A third would only push it out of the store, unserved."""
    waiting = generations.deployable_generation(status, situation.desired)
    target = target_rollout(status, situation)
    return waiting is not None and target is not None and target.generation != waiting.generation


def diagnose_damage(generation: Generation, status: Status, situation: Situation) -> Trouble | None:
    """Why servers cannot have ``generation`` from the store any more: a refresh builds it again then, though the source
    is the same."""
    reports = [pod.trouble for pod in situation.observed.pods if pod.generation == generation.generation]
    ticket = status.rollout_ticket
    if ticket is not None and ticket.given_up:  # it gave its turn up, and its pods are gone
        reports.append(Trouble(ticket.reason, ticket.message))
    return next((trouble for trouble in reports if trouble is not None and trouble.reason in reasons.OF_DAMAGE), None)


def _without_unneeded_build(status: Status, situation: Situation) -> Status:
    """``status`` without a build and a failure of what is not asked for any more.

    A build that answers an older refresh goes on: were it begun anew with each, none might ever end. So does one with
    an older deadline, gate, node selector or image, as long as it gets on: these hold from the next build on.
    """
    build, failure, desired = status.build, status.failure, situation.desired
    if build is not None and not (
        build.content == desired.content_hash
        and is_needed(status, desired)
        and (build.digest == desired.build_digest or outcomes.gets_on(build, situation.observed))
    ):
        build = None
    if failure is not None and not (failures.concerns(failure, desired) and is_needed(status, desired)):
        failure = None
    return replace(status, build=build, failure=failure)


def _with_turn(status: Status, build: Build, situation: Situation) -> Status:
    """``status`` with the build under way; without it when it gives its turn up."""
    trouble = outcomes.diagnose_stall(build, situation)
    is_given_up = situation.observed.turns.build.must_yield or outcomes.has_lost_job(build, situation)
    if trouble is None or not is_given_up:
        return replace(status, build_ticket=tickets.take(status.build_ticket))
    return replace(
        status, build=None, build_ticket=tickets.give_up(status.build_ticket, trouble, build.digest, situation.now)
    )


def _must_wait(status: Status, situation: Situation) -> bool:
    failure = status.failure
    if failure is None or store.may_help(failure.reason, status, situation):
        return False
    return retry_in(failure.retry_at, situation.now) > 0


def retry_in(retry_at: str, now: datetime) -> float:
    """Seconds until the next attempt."""
    return max(0.0, (clock.read(retry_at) - now).total_seconds())


def _claimed(status: Status, situation: Situation) -> Status:
    number, desired = status.last_generation + 1, situation.desired
    known = generations.newest_matching_generation(status, desired)
    comparable = known is not None and diagnose_damage(known, status, situation) is None
    build = Build(
        generation=names.generation_name(number),
        content=desired.content_hash,
        refresh=desired.refresh,
        digest=desired.build_digest,
        started_at=clock.written(situation.now),
        unless_fingerprint=known.fingerprint if known is not None and comparable else "",
        active=status.generation,
    )
    ticket = tickets.take(status.build_ticket)
    return replace(status, build=build, build_ticket=ticket, last_generation=number)
