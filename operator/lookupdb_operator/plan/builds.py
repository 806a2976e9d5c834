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

from datetime import datetime, timedelta
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, BuildResult, Observed, Pod, Trouble
from lookupdb_operator.names import BUILDER
from lookupdb_operator.plan import clock, generations, losses, reasons, refreshes, rollouts, secrets, turns
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildFailure, BuildStatus, DatasetStatus, GenerationStatus

# The Job of a build and its pods: which ones are there, whether they get on, and what keeps them from it. ``builds``
# says what comes of that.


def find_job(observed: Observed, build: BuildStatus) -> BuildJob | None:
    """The Job of ``build``."""
    return next((job for job in observed.jobs if job.generation == build.generation), None)


def find_pods(observed: Observed, build: BuildStatus) -> tuple[Pod, ...]:
    """The pods of ``build``: one, unless Kubernetes was in trouble."""
    return tuple(pod for pod in observed.pods if pod.component == BUILDER and pod.generation == build.generation)


def has_lost_result(build: BuildStatus, observed: Observed) -> bool:
    """Whether the Job of ``build`` succeeded, and no pod is left to say what it built: it runs again under its number,
    and finds what it has published."""
    job = find_job(observed, build)
    return job is not None and job.state == "Succeeded" and not find_pods(observed, build)


def is_progressing(build: BuildStatus, observed: Observed) -> bool:
    """Whether the Job of ``build`` is there and nothing keeps it from coming to an end by itself."""
    job, pods = find_job(observed, build), find_pods(observed, build)
    if job is None or job.deleting or (job.state != "Running" and not pods):
        return False
    return diagnose_obstacle(build, observed) is None


def diagnose_obstacle(build: BuildStatus, observed: Observed) -> Trouble | None:
    """What keeps ``build`` from getting on, as far as its Job, its pods or a refused write tell."""
    job = find_job(observed, build)
    if job is not None and job.failure is not None:
        return job.failure
    if job is None:
        name = names.build(observed.dataset.name, build.generation)
        return next(reasons.list_refusals(observed, "Job", name), None)
    return next((pod.trouble for pod in find_pods(observed, build) if pod.trouble is not None), None)


def diagnose_stall(build: BuildStatus, situation: Situation) -> Trouble | None:
    """What keeps ``build`` from getting on. That nothing runs for it is such a thing, too: its Job is suspended, or is
    being deleted and a finalizer keeps it."""
    observed = situation.observed
    trouble, job = diagnose_obstacle(build, observed), find_job(observed, build)
    if trouble is not None or job is None or any(is_running(pod) for pod in find_pods(observed, build)):
        return trouble
    if not job.deleting and job.state != "Running":
        return None
    if clock.seconds_until(build.started_at, turns.PATIENCE, situation.now) > 0:
        return None
    why = " and is being deleted, but something, a finalizer say, keeps it" if job.deleting else ""
    return Trouble(reasons.INTERRUPTED, f"Job {job.ref.name} has no pod that runs{why}")


def has_stuck_job(build: BuildStatus, situation: Situation) -> bool:
    """Whether nothing will run for ``build`` any more: its Job has been deleted for long and is still there, so that no
    other Job of its name can be made."""
    job, stall = find_job(situation.observed, build), build.stall
    return job is not None and job.deleting and stall is not None and turns.is_long_stall(stall, situation.now)


def is_running(pod: Pod) -> bool:
    """Whether ``pod`` may still do something."""
    return pod.phase not in ("Succeeded", "Failed") and not pod.deleting


# How a build ended. This module records it, and says when the next attempt is; ``builds`` lists all that ends one.
#
# A builder's own word counts, whatever Kubernetes says about its Job: what is published is published.


_NO_RESULT: Final = Trouble(reasons.BUILD_FAILED, "The builder ended without a word; its log may tell why.")


def record_outcome(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the outcome of the build under way, if it has ended and is still of interest."""
    build, desired = status.build, situation.desired
    if build is None or build.content != desired.content_hash:
        return status
    job, pods = find_job(situation.observed, build), find_pods(situation.observed, build)
    result = next((pod.result for pod in pods if pod.result is not None), None)
    admitted = None if result is None else losses.find_admitted(status, build, result)
    if result is not None and admitted is not None:
        result = replace(result, outcome="unchanged", reason="", message="")
    if result is not None and result.outcome != "failed":
        status = refreshes.record_success(status, build, result, situation.now)
        if result.outcome == "waiting":
            waiting = Trouble(reasons.WAITING_FOR_SOURCE, result.message)
            return replace(status, build=None, failure=next_failure(build, waiting, status.failure, situation.now))
        if result.outcome == "unchanged":
            verified = admitted or generations.find_compared_generation(status, build)
            return _with_verified_generation(status, build, result, verified, desired)
        built = generations.describe_built(build, result, desired)
        status = generations.add_generation(status, generations.make_generation(GenerationStatus, built))
        status = replace(status, refused=None)
        return _with_adoption_ended(status) if result.adopted_from else _without_build(status, build)
    trouble = _diagnose_failure(job, pods, result)
    if trouble is None:
        return status
    status = refreshes.record_failure(status, build, trouble, result, situation.now)
    if result is not None:
        status = losses.note_refusal(status, build, result, situation)
        status = _without_taken_numbers(status, result)
    return replace(status, build=None, failure=next_failure(build, trouble, status.failure, situation.now))


def _with_verified_generation(
    status: DatasetStatus,
    build: BuildStatus,
    result: BuildResult,
    generation: GenerationStatus | None,
    desired: Desired,
) -> DatasetStatus:
    """``status`` when the source is as it was for ``generation``, the generation that ``build`` compared it with. The
    refresh and the check are answered by that one alone: if a newer one was let through meanwhile, or it is not known
    any more, they are still asked for, and the next build compares with what is there now."""
    if generation is None:
        return replace(status, build=None, failure=None)
    verified = replace(
        generation,
        refresh=build.refresh,
        verified_by=names.read_number(build.generation),
        success_file=result.success_file,
        refreshed_at=build.started_at,
    )
    status = generations.add_generation(status, verified)
    if generations.newest_matching_generation(status, desired) != verified:
        return replace(status, build=None, failure=None)
    return _without_build(status, build)


def _without_build(status: DatasetStatus, build: BuildStatus) -> DatasetStatus:
    """``status`` when ``build`` has ended well: the refresh and the check that it was begun for are answered. Losses
    are in a row only while nothing else asks for builds."""
    lost = status.find_generation(status.lost.generation) if status.lost else None
    is_of_another_spec = lost is not None and lost.content != build.content
    is_requested = bool(build.slot) or build.refresh not in ("", status.refreshed) or is_of_another_spec
    status = replace(status, build=None, failure=None, lost=None if is_requested else status.lost)
    return refreshes.answer_requests(status, build.refresh, build.slot, names.read_number(build.generation))


def _with_adoption_ended(status: DatasetStatus) -> DatasetStatus:
    """``status`` when the build has adopted what an earlier dataset left: the source was not looked at, so the refresh
    and the check that are asked for are not answered."""
    return replace(status, build=None, failure=None, lost=None)


def _without_taken_numbers(status: DatasetStatus, result: BuildResult) -> DatasetStatus:
    """``status`` that gives out no number which the store has in use: it forgot of them, or never knew."""
    last_taken = names.recover_number(result.next_free) - 1
    return replace(status, last_generation=max(status.last_generation, last_taken))


def _diagnose_failure(job: BuildJob | None, pods: tuple[Pod, ...], result: BuildResult | None) -> Trouble | None:
    """Why the build failed; None while it may still succeed.

    An interrupted builder does not know whether the deadline or an eviction ended it. Kubernetes says so a little
    later. The end of a Job may be seen before that of its pod: each has a watch of its own.
    """
    if result is not None and result.reason != reasons.INTERRUPTED:
        return Trouble(_failure_reason(result), result.message or "The builder gave no message.")
    if job is None or job.state == "Running" or job.deleting or any(is_running(pod) for pod in pods):
        return None
    if job.state == "Succeeded":
        return _NO_RESULT if pods else None
    if job.failure is not None:
        return job.failure
    pod_trouble = next((pod.trouble for pod in pods if pod.trouble is not None), None)
    if pod_trouble is not None:
        return pod_trouble
    return _NO_RESULT if result is None else Trouble(reasons.INTERRUPTED, result.message)


def _failure_reason(result: BuildResult) -> str:
    return result.reason if result.reason in reasons.BUILDER_REASONS else reasons.BUILD_FAILED


def next_failure(build: BuildStatus, trouble: Trouble, before: BuildFailure | None, now: datetime) -> BuildFailure:
    """The failure that ``build`` ended with, after the failure ``before`` it."""
    is_repeated = before is not None and attempt_key(before) == attempt_key(build)
    count = before.count + 1 if before is not None and is_repeated else 1
    return BuildFailure(
        reason=trouble.reason,
        message=reasons.shorten(trouble.message, clock.MAX_MESSAGE_CHARACTERS),
        generation=build.generation,
        content=build.content,
        refresh=build.refresh,
        count=count,
        retry_at=clock.format_moment(now + timedelta(seconds=clock.retry_delay(count, trouble.reason))),
        digest=build.digest,
    )


def attempt_key(attempt: BuildStatus | BuildFailure) -> tuple[str, str, str]:
    """What an attempt answers and was made from: a retry with the same key is a repetition."""
    return attempt.content, attempt.refresh, attempt.digest


def is_current_failure(failure: BuildFailure, desired: Desired) -> bool:
    """Whether ``failure`` is one of what is asked for now. A corrected spec owes nothing to the broken one."""
    return attempt_key(failure) == (desired.content_hash, desired.refresh, desired.build_digest)


def next_attempt_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until a build that failed may be tried again. None when it may be already: what it waits for then, its
    turn or the rollout before it, wakes the dataset."""
    if status.build is not None or status.failure is None:
        return None
    return clock.remaining_backoff(status.failure.retry_at, situation.now) or None


_MOST_PROTECTED: Final = 160
"""As in the CRD: a little more than there can be generations and rollouts in a status."""


def decide_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the build that should be under way now: the one that is, another one, or none."""
    if situation.desired.is_suspended:
        return rollouts.end_build(status)
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
        and (build.digest == desired.build_digest or is_progressing(build, situation.observed))
    ):
        build = None
    if failure is not None and not (
        is_current_failure(failure, desired) and generations.is_build_needed(status, desired)
    ):
        failure = None
    return replace(status, build=build, failure=failure)


def _with_build_under_way(status: DatasetStatus, build: BuildStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the build under way; without it when it gives its turn up."""
    trouble = diagnose_stall(build, situation)
    is_given_up = situation.observed.turns.build.must_yield or has_stuck_job(build, situation)
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
    if failure is None or secrets.may_end_failure(failure.reason, status, situation):
        return False
    return clock.remaining_backoff(failure.retry_at, situation.now) > 0


def _with_claimed_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    status = refreshes.take_newest_slot(status, situation)
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
    trouble = diagnose_stall(build, situation)
    stall = turns.note_stall(build.stall, trouble, situation.now, shares_store=situation.shares_store)
    return replace(status, build=replace(build, stall=stall))


def assess(status: DatasetStatus, situation: Situation) -> Assessment:
    """Built, what keeps the build from getting on, and when it is tried again."""
    return reasons.assess(
        judge_built(status, situation),
        (diagnose_build(status, situation),),
        (next_attempt_in(status, situation), losses.next_replacement_in(status, situation)),
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
    useless = losses.describe_useless_override(status, situation)
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
        trouble = diagnose_stall(build, situation)
        if trouble is not None:
            return trouble
    given_up = turns.diagnose_ticket(status.build_ticket)
    if given_up is not None:
        return given_up
    if failure is None or is_waiting_for_source(status):
        return None
    return losses.with_refusal_advice(Trouble(failure.reason, failure.message), status, situation)


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
