"""A build. This module decides whether one begins and whether it goes on, claims its number, and judges Built.
``build_job`` reads from its Job and pods what keeps it from getting on; ``build_outcome`` records how it ended, and
says when the next attempt is.

What ends a build:

    what                       where                               then
    its pod ends with a        build_outcome.record_outcome,       built, adopted, unchanged: the generation is
    result                     by parse.build_result               noted; waiting: it is begun again, after 300 s
                                                                   at most; failed: a failure; interrupted:
                                                                   Kubernetes says why. Unchanged, and a newer one
                                                                   was let through: the next one begins
    its pod ends without one   build_outcome.record_outcome,       a failure; BuildFailed when neither Job nor pod
                               by parse.causes                     tells why
    the deadline: spec.build.  manifests.builder sets it on the    Kubernetes ends the pod; then a failure:
    deadlineSeconds            Job, parse.workloads reads it       DeadlineExceeded
    its turn is given up: in   turns.is_long_stall,                its Job is deleted; the next build waits for a
    trouble for 180 s (the     turn_queues._must_yield             turn after 60 s, doubling up to 30 min, but not
    store's: 600 s), and                                           for the store's (turns.give_turn_up)
    others wait or stall, too
    its Job is stuck: being    build_job.has_stuck_job             the same, though nobody waits; the next build
    deleted, in trouble 180 s                                      has a number and a Job of its own
    the spec changed, or no    _without_unneeded_build             its Job is deleted at once
    build is needed; or its
    Job would differ now, and
    it does not get on
    spec.suspend is true       suspension.end_build                its Job is deleted at once
    status was wiped           recovery.recover_status             its number is past, its Job is deleted

After a failure the next build begins after 30 s, doubling up to 30 min (``retries.retry_delay``). A builder that
hangs while its pod runs is in no trouble: the deadline alone ends it. A Job that succeeded and whose pod is gone ends
no build: it runs again under its number (``build_job.has_lost_result``).

Why does its Job stay? It is under way; or it failed, and stays until the next attempt, for its log; or a finalizer
keeps it; or ``standstill`` holds. ``objects.find_garbage`` lists every other one, and
``loop.reconcile.Reconciler._delete`` deletes what is listed.
"""

from __future__ import annotations

from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import clock, reasons, retries, store
from lookupdb_operator.plan.build import build_job, build_outcome
from lookupdb_operator.plan.generation import checks, generations, losses, refusals
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.rollout import rollouts, suspension
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.plan.turn import turns
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus, DatasetStatus, GenerationStatus

_MOST_PROTECTED: Final = 160
"""As in the CRD: a little more than there can be generations and rollouts in a status."""


def decide_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the build that should be under way now: the one that is, another one, or none."""
    if situation.desired.is_suspended:
        return suspension.end_build(status)
    has_ended = status.build is None and situation.dataset.status.build is not None
    status = _without_unneeded_build(status, situation)
    if status.build is not None:
        return _with_build_under_way(status, status.build, situation)
    is_needed_now = generations.is_build_needed(status, situation.desired) and not waits_for_rollout(status, situation)
    if not is_needed_now or _must_wait_for_retry(status, situation):
        return replace(status, build_ticket=None)
    # A build that has ended has had its turn: others come before the next one.
    if has_ended or not turns.may_take_turn(situation.observed.turns.build, status.build_ticket, situation.now):
        waiting = turns.wait_for_turn(status.build_ticket, situation.desired.build_digest, situation.now)
        return replace(status, build_ticket=waiting)
    return _with_claimed_build(status, situation)


def waits_for_rollout(status: DatasetStatus, situation: Situation) -> bool:
    """Whether a generation of the present spec is built already that has not had its turn: a candidate of the same
    spec is finished before it. A third would only push it out of the store, unserved."""
    waiting = rollouts.target_generation(status, situation)
    target = rollouts.target_rollout(status, situation)
    return waiting is not None and target is not None and target.generation != waiting.generation


def _without_unneeded_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without a build and a failure of what is not asked for any more.

    A build that answers an older refresh goes on: were it begun anew with each, none might ever end. So does one with
    an older deadline, gate, node selector or image, as long as it gets on: these hold from the next build on.
    """
    build, failure, desired = status.build, status.failure, situation.desired
    if build is not None and not (
        build.content == desired.content_hash
        and generations.is_build_needed(status, desired)
        and (build.digest == desired.build_digest or build_job.is_progressing(build, situation.observed))
    ):
        build = None
    if failure is not None and not (
        build_outcome.is_current_failure(failure, desired) and generations.is_build_needed(status, desired)
    ):
        failure = None
    return replace(status, build=build, failure=failure)


def _with_build_under_way(status: DatasetStatus, build: BuildStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the build under way; without it when it gives its turn up."""
    trouble = build_job.diagnose_stall(build, situation)
    is_given_up = situation.observed.turns.build.must_yield or build_job.has_stuck_job(build, situation)
    if trouble is None or not is_given_up:
        return replace(status, build_ticket=turns.take_turn(status.build_ticket))
    ticket = turns.give_turn_up(
        status.build_ticket, trouble, build.digest, situation.now, shares_store=situation.shares_store
    )
    return replace(status, build=None, build_ticket=ticket)


def _must_wait_for_retry(status: DatasetStatus, situation: Situation) -> bool:
    if losses.must_wait(status, situation):
        return True
    failure = status.failure
    if failure is None or store.may_end_failure(failure.reason, status, situation):
        return False
    return retries.remaining_backoff(failure.retry_at, situation.now) > 0


def _with_claimed_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    status = checks.take_newest_slot(status, situation)
    number, desired = status.last_generation + 1, situation.desired
    known = generations.newest_matching_generation(status, desired)
    is_comparable = known is not None and generations.diagnose_damage(known, status, situation) is None
    build = BuildStatus(
        generation=names.generation_name(number),
        content=desired.content_hash,
        refresh=desired.refresh,
        digest=desired.build_digest,
        started_at=clock.format_moment(situation.now),
        slot="" if status.schedule is None else status.schedule.due,
        unless_fingerprint=known.fingerprint if known is not None and is_comparable else "",
        unless_success_file=known.success_file if known is not None and is_comparable else "",
        active=status.generation,
        active_records=_count_records(status),
        unless_refused=_refused_name(status, desired),
        adopt=desired.adopt if status.has_nothing_of_its_own else "",
        protect=() if situation.shares_store else _protected_names(status, desired),
    )
    ticket = turns.take_turn(status.build_ticket)
    return replace(status, build=build, build_ticket=ticket, last_generation=number)


def _protected_names(status: DatasetStatus, desired: Desired) -> tuple[str, ...]:
    """What a builder must not remove of the store, as the sweep is told it: whatever is asked for later on is among
    these, or newer than all of them. None, and nothing is removed, where there are more than status can hold."""
    protected = sorted(status.protected_generations(desired.pinned_generation), key=names.read_number)
    return tuple(protected) if len(protected) <= _MOST_PROTECTED else ()


def _count_records(status: DatasetStatus) -> int:
    active = status.find_generation(status.generation)
    return 0 if active is None else active.records


def _refused_name(status: DatasetStatus, desired: Desired) -> str:
    refused = status.refused
    return refused.generation if refused is not None and refused.content == desired.content_hash else ""


def note_stall(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with what keeps the build that has its turn from getting on."""
    build = status.build
    if build is None:
        return status
    trouble = build_job.diagnose_stall(build, situation)
    stall = turns.note_stall(build.stall, trouble, situation.now, shares_store=situation.shares_store)
    return replace(status, build=replace(build, stall=stall))


def assess(status: DatasetStatus, situation: Situation) -> Assessment:
    """Built, what keeps the build from getting on, and when it is tried again."""
    return reasons.assess(
        judge_built(status, situation),
        (diagnose_build(status, situation),),
        (build_outcome.next_attempt_in(status, situation), losses.next_replacement_in(status, situation)),
        outlook=describe_next_attempt(status, situation),
    )


def judge_built(status: DatasetStatus, situation: Situation) -> Verdict:
    """Whether the store holds what is asked for."""
    build = status.build
    trouble = diagnose_build(status, situation)
    if trouble is not None:
        text = reasons.write_sentence(trouble.reason, trouble.message)
        return Verdict("False", trouble.reason, f"{text}{describe_next_attempt(status, situation)}")
    if turns.is_waiting(status.build_ticket):
        message = f"The build{turns.describe_wait(status.build_ticket, situation.observed.turns.build)}"
        return Verdict("False", reasons.WAITING_FOR_TURN, message)
    if build is not None:
        message = f"{build.generation} is being built since {build.started_at}."
        return Verdict("False", reasons.BUILDING, message)
    if is_waiting_for_source(status):
        assert status.failure is not None
        message = reasons.write_sentence(reasons.WAITING_FOR_SOURCE, status.failure.message)
        return Verdict("False", reasons.WAITING_FOR_SOURCE, f"{message} It is looked for at {status.failure.retry_at}.")
    if waits_for_rollout(status, situation):
        return _judge_waiting_for_rollout(status, situation)
    generation = generations.up_to_date_generation(status, situation.desired)
    is_missing = generation is None or generations.is_build_needed(status, situation.desired)
    if is_missing and situation.desired.is_suspended:
        return Verdict("False", reasons.SUSPENDED, "Nothing is built while spec.suspend is true.")
    damage = None if generation is None else generations.diagnose_damage(generation, status, situation)
    if generation is None or (is_missing and damage is None):
        return Verdict("False", reasons.BUILDING, "A build is about to begin.")
    if damage is not None:
        message = f"{generation.generation} was built, and the store cannot give it any more: {damage.message}"
        text = reasons.write_sentence(damage.reason, message)
        return Verdict("False", damage.reason, f"{text}{losses.describe_replacement(status, situation)}")
    useless = refusals.describe_useless_override(status, situation)
    message = f"{generation.generation} holds {_describe_contents(generation)}.{useless}"
    return Verdict("True", reasons.GENERATION_BUILT, message)


def _judge_waiting_for_rollout(status: DatasetStatus, situation: Situation) -> Verdict:
    """The newest generation is built, and waits for the rollout of the one before it."""
    generation = rollouts.target_generation(status, situation)
    target = rollouts.target_rollout(status, situation)
    assert generation is not None
    assert target is not None
    message = (
        f"{generation.generation} holds {_describe_contents(generation)}; it is rolled out"
        f" when {rollouts.describe_rollout(situation.dataset, target)} is in effect."
    )
    if not generations.is_build_needed(status, situation.desired):
        return Verdict("True", reasons.GENERATION_BUILT, message)
    return Verdict("False", reasons.WAITING_FOR_ROLLOUT, f"{message} The refresh is built after that.")


def _describe_contents(generation: GenerationStatus) -> str:
    contents = f"{format_count(generation.records, 'record')} in {format_count(generation.shards, 'shard')}"
    adopted = f", adopted from {generation.adopted_from}" if generation.adopted_from else ""
    overridden = f", though a gate was closed and overridden ({generation.overridden})" if generation.overridden else ""
    return f"{contents}{adopted}{overridden}"


def diagnose_build(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the build under way from getting on, else how the last one failed."""
    build, failure = status.build, status.failure
    if build is not None:
        trouble = build_job.diagnose_stall(build, situation)
        if trouble is not None:
            return trouble
    given_up = turns.diagnose_ticket(status.build_ticket)
    if given_up is not None:
        return given_up
    if failure is None or is_waiting_for_source(status):
        return None
    return refusals.with_advice(Trouble(failure.reason, failure.message), status, situation)


def is_waiting_for_source(status: DatasetStatus) -> bool:
    """Whether the last build found no success file: nothing is wrong, and it is looked for again."""
    return status.failure is not None and status.failure.reason == reasons.WAITING_FOR_SOURCE


def describe_next_attempt(status: DatasetStatus, situation: Situation) -> str:
    """After a failure, when the next attempt is or was begun; empty without one."""
    build, failure, ticket = status.build, status.failure, status.build_ticket
    if turns.is_waiting(ticket):
        return f" The next attempt{turns.describe_wait(ticket, situation.observed.turns.build)}"
    if failure is None or is_waiting_for_source(status):
        return ""
    if build is not None:
        return f" Attempt {failure.count + 1} is {build.generation}, since {build.started_at}."
    return f" The next attempt is at {failure.retry_at}, or as soon as the spec changes."
