"""Builds: when one begins, continues and ends, and the condition Built.

How a build ends:

    cause                      decided by                          then
    its pod ends with a        record_outcome, from                built, adopted, unchanged: the generation is
    result                     parse.parse_build_result            noted; waiting: the next attempt follows after
                                                                   300 s at most; failed: a failure; interrupted:
                                                                   Kubernetes says why
    its pod ends without one   record_outcome, from diagnosis      a failure; BuildFailed if neither Job nor pod
                                                                   says why
    the deadline: spec.build.  manifests.pods sets it on the       Kubernetes ends the pod; then a failure:
    deadlineSeconds            Job, cluster.workloads reads it     DeadlineExceeded
    it gives its slot up: in   turns.is_long_stall,                its Job is deleted; the next build is queued
    trouble for 180 s (the     TurnQueues                          after 60 s, doubling up to 30 min; trouble with the
    store's: 600 s) while                                          store does not double it (turns.give_turn_up)
    others wait or stall
    its Job is stuck: being    has_stuck_job                       the same, even if no other dataset waits; the
    deleted, in trouble 180 s                                      next build has a number and a Job of its own
    the spec changed, or no    _without_unneeded_build             its Job is deleted at once
    build is needed; or its
    Job would differ now and
    makes no progress
    spec.suspend is true       end_build                           its Job is deleted at once
    the status was wiped       lifecycle.recover_status            its number is used up, its Job is deleted

After a failure the next build begins after 30 s, doubling up to 30 min (``reasons.retry_delay``). A builder that hangs
while its pod runs is in no trouble; only the deadline ends it. If a Job succeeded but its pod is gone, the result is
lost: the Job runs again under its number (``has_lost_result``).

A Job stays while its build is under way, after a failure until the next attempt (for its log), while a finalizer keeps
it, or while the operator leaves the dataset alone (``planner``). ``objects.find_garbage`` lists all others.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import manifests, names
from lookupdb_operator.model import (
    BuildJob,
    BuildResult,
    Observed,
    Pod,
    Trouble,
    clamp_to_now,
    format_moment,
    parse_moment,
    remaining_seconds,
    seconds_until,
)
from lookupdb_operator.names import BUILDER, EXECUTOR
from lookupdb_operator.plan import generations, reasons, rollouts, turns
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.rollouts import PassTarget
from lookupdb_operator.plan.turns import Desired, Situation
from lookupdb_operator.status import (
    BuildFailure,
    BuildOutcome,
    BuildRecord,
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    RefusedGeneration,
    replace,
)

# The Job of a build and its pods: which ones exist, whether they make progress, and what stops them.


def find_job(observed: Observed, build: BuildStatus) -> BuildJob | None:
    """The Job of ``build``."""
    return next((job for job in observed.jobs if job.generation == build.generation), None)


def find_pods(observed: Observed, build: BuildStatus) -> tuple[Pod, ...]:
    """The pods of ``build``: usually one. Spark's executors do not count."""
    pods = (pod for pod in observed.pods if pod.component == BUILDER and pod.generation == build.generation)
    return tuple(pods)


def has_lost_result(build: BuildStatus, observed: Observed) -> bool:
    """Return whether the Job succeeded and no pod is left with its result: the build runs again under its number."""
    job = find_job(observed, build)
    return job is not None and job.state == "Succeeded" and not find_pods(observed, build)


def diagnose_obstacle(build: BuildStatus, observed: Observed) -> Trouble | None:
    """The obstacle of ``build``, according to its Job, its pods or a refused write."""
    job = find_job(observed, build)
    if job is not None and job.failure is not None:
        return job.failure
    if job is None:
        name = names.build(observed.dataset.name, build.generation)
        return next(reasons.list_refusals(observed, "Job", name), None)
    trouble = next((pod.trouble for pod in find_pods(observed, build) if pod.trouble is not None), None)
    executors = [pod for pod in observed.pods if pod.component == EXECUTOR and pod.generation == build.generation]
    if trouble is not None or any(pod.phase == "Running" for pod in executors):  # Spark replaces those that it loses
        return trouble
    return next((pod.trouble for pod in executors if pod.phase == "Pending" and pod.trouble is not None), None)


def diagnose_stall(build: BuildStatus, situation: Situation) -> Trouble | None:
    """Return why ``build`` makes no progress, also if its Job is suspended, or being deleted but kept by a
    finalizer."""
    observed = situation.observed
    trouble, job = diagnose_obstacle(build, observed), find_job(observed, build)
    if trouble is not None or job is None or any(is_running(pod) for pod in find_pods(observed, build)):
        return trouble
    if not job.deleting and job.state != "Running":
        return None
    if seconds_until(build.started_at, turns.PATIENCE, situation.now) > 0:
        return None
    why = "; it is being deleted, but something keeps it, for example a finalizer" if job.deleting else ""
    return Trouble(reasons.INTERRUPTED, f"Job {job.ref.name} has no pod that runs{why}")


def has_stuck_job(build: BuildStatus, situation: Situation) -> bool:
    """Return whether deleting the Job of ``build`` takes long. Until it is gone, no Job of its name can be made."""
    job, stall = find_job(situation.observed, build), build.stall
    return job is not None and job.deleting and stall is not None and turns.is_long_stall(stall, situation.now)


def is_running(pod: Pod) -> bool:
    """Return whether ``pod`` has not ended and is not being deleted."""
    return pod.phase not in ("Succeeded", "Failed") and not pod.deleting


# How a build ended, and when the next attempt is. The builder's own report overrides the state of its Job, because a
# published generation stays.


_NO_RESULT: Final = Trouble(reasons.BUILD_FAILED, "The builder ended without a result; its log may say why.")


def record_outcome(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the outcome of the build under way, if it has ended and the spec still asks for it."""
    build, desired = status.build, situation.desired
    if build is None or build.content != desired.content_hash:
        return status
    job, pods = find_job(situation.observed, build), find_pods(situation.observed, build)
    result = next((pod.result for pod in pods if pod.result is not None), None)
    admitted = None
    if result is not None and result.reason == reasons.GATE_CLOSED and result.generation != build.generation:
        # The source has not changed since a gate rejected its generation. If that gate was overridden since, nothing
        # failed.
        found = status.find_generation(result.generation)
        if found is not None and (found.content, found.fingerprint) == (build.content, result.fingerprint):
            admitted, result = found, replace(result, outcome="unchanged", reason="", message="")
    if result is not None and result.outcome != "failed":
        said = Trouble(result.reason or result.outcome.capitalize(), result.message)
        status = record_end(status, build, result.outcome, said, result, situation.now)
        if result.outcome == "waiting":
            waiting = Trouble(reasons.WAITING_FOR_SOURCE, result.message)
            return replace(status, build=None, failure=next_failure(build, waiting, status.failure, situation.now))
        if result.outcome == "unchanged":
            compared = build.content, build.unless_fingerprint
            same = (found for found in reversed(status.generations) if (found.content, found.fingerprint) == compared)
            verified = admitted or next(same, None)
            return _with_verified_generation(status, build, result, verified, desired)
        built = generations.describe_built(build, result, desired)
        status = generations.add_generation(status, generations.make_generation(GenerationStatus, built))
        status = replace(status, refused=None)
        if result.adopted_from:  # the source was not read, so no requested refresh or check is answered
            return replace(status, build=None, failure=None, lost=None)
        return _without_build(status, build)
    trouble = _diagnose_failure(job, pods, result)
    if trouble is None:
        return status
    outcome: BuildOutcome = "gateClosed" if trouble.reason == reasons.GATE_CLOSED else "failed"
    status = record_end(status, build, outcome, trouble, result, situation.now)
    if result is not None:
        status = note_refusal(status, build, result, situation)
        # Do not use a number that the store has in use.
        last_taken = names.recover_number(result.next_free) - 1
        status = replace(status, last_generation=max(status.last_generation, last_taken))
    return replace(status, build=None, failure=next_failure(build, trouble, status.failure, situation.now))


def _with_verified_generation(
    status: DatasetStatus,
    build: BuildStatus,
    result: BuildResult,
    generation: GenerationStatus | None,
    desired: Desired,
) -> DatasetStatus:
    """``status`` after ``build`` found that the source has not changed since ``generation``. This answers the
    refresh and the check, unless another generation is the newest meanwhile: then the next build answers them."""
    if generation is None:
        return replace(status, build=None, failure=None)
    verified = replace(
        generation,
        refresh=build.refresh,
        verified_by=names.read_number(build.generation),
        success_file=result.success_file,
        refreshed_at=generation.refreshed_at if desired.spec.source.pushed else build.started_at,
    )
    status = generations.add_generation(status, verified)
    if generations.newest_matching_generation(status, desired) != verified:
        return replace(status, build=None, failure=None)
    return _without_build(replace(status, refused=None), build)


def _without_build(status: DatasetStatus, build: BuildStatus) -> DatasetStatus:
    """Return ``status`` after ``build`` has succeeded. A build that was requested, not made to replace a loss,
    ends a series of losses."""
    lost = status.find_generation(status.lost.generation) if status.lost else None
    is_of_another_spec = lost is not None and lost.content != build.content
    is_requested = bool(build.slot) or build.refresh not in ("", status.refreshed) or is_of_another_spec
    status = replace(status, build=None, failure=None, lost=None if is_requested else status.lost)
    return turns.answer_requests(status, build.refresh, build.slot, names.read_number(build.generation))


def _diagnose_failure(job: BuildJob | None, pods: tuple[Pod, ...], result: BuildResult | None) -> Trouble | None:
    """Why the build failed; None while it may still succeed.

    An interrupted builder does not know whether the deadline or an eviction ended it. Kubernetes says so a little
    later. The end of a Job may be seen before that of its pod: each has a watch of its own.
    """
    if result is not None and result.reason != reasons.INTERRUPTED:
        return Trouble(
            result.reason if result.reason in reasons.BUILDER_REASONS else reasons.BUILD_FAILED,
            result.message or "The builder gave no message.",
        )
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


def next_failure(build: BuildStatus, trouble: Trouble, before: BuildFailure | None, now: datetime) -> BuildFailure:
    """Return the failure of ``build``. The count continues from the failure ``before`` if ``build`` retries that
    attempt."""
    is_repeated = before is not None and attempt_key(before) == attempt_key(build)
    count = before.count + 1 if before is not None and is_repeated else 1
    return BuildFailure(
        reason=trouble.reason,
        message=reasons.shorten(trouble.message, reasons.MAX_MESSAGE_CHARACTERS),
        generation=build.generation,
        content=build.content,
        refresh=build.refresh,
        count=count,
        retry_at=format_moment(now + timedelta(seconds=reasons.retry_delay(count, trouble.reason))),
        digest=build.digest,
    )


def attempt_key(attempt: BuildStatus | BuildFailure) -> tuple[str, str, str]:
    """The spec and refresh that an attempt answers, and the digest of its Job. A retry has the same key."""
    return attempt.content, attempt.refresh, attempt.digest


_MOST_PROTECTED: Final = 160
"""As in the CRD: a little more than the generations and rollouts that a status can hold."""


def decide_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the build that should be under way now: the present one, another one, or none."""
    if situation.desired.is_suspended:
        return end_build(status)
    has_ended = status.build is None and situation.dataset.status.build is not None
    status = _without_unneeded_build(status, situation)
    if status.build is not None:
        trouble = diagnose_stall(status.build, situation)
        is_given_up = situation.observed.turns.build.must_yield or has_stuck_job(status.build, situation)
        if trouble is None or not is_given_up:
            return replace(status, build_ticket=turns.take_turn(status.build_ticket))
        ticket = turns.give_turn_up(
            status.build_ticket, trouble, status.build.digest, situation.now, shares_store=situation.shares_store
        )
        return replace(status, build=None, build_ticket=ticket)
    is_needed = generations.is_build_needed(status, situation.desired)
    is_possible = diagnose_engine(situation) is None
    is_due = is_needed and is_possible and not waits_for_rollout(rollouts.find_target(status, situation))
    failure = status.failure
    # A build that failed because of the store may succeed with the new contents of its Secret.
    if failure is not None and failure.reason in reasons.STORE_REASONS and is_store_access_new(status, situation):
        failure = None
    is_early = failure is not None and remaining_seconds(failure.retry_at, situation.now) > 0
    if not is_due or is_early or generations.remaining_rebuild_wait(status, situation) > 0:
        return replace(status, build_ticket=None)
    # A build that has ended has had its slot: others come before the next one.
    if has_ended or not turns.may_take_turn(situation.observed.turns.build, status.build_ticket, situation.now):
        waiting = turns.wait_for_turn(status.build_ticket, situation.desired.build_digest, situation.now)
        return replace(status, build_ticket=waiting)
    return _with_claimed_build(status, situation)


def diagnose_engine(situation: Situation) -> Trouble | None:
    """Return why no build can begin: the engine is Spark, and no image with Spark is named."""
    if manifests.has_builder_image(situation.dataset, situation.config):
        return None
    return Trouble(reasons.SPARK_IMAGE_MISSING, "spec.build.engine is Spark, but no image with Spark is named")


def end_build(status: DatasetStatus) -> DatasetStatus:
    """``status`` without a build, and without a slot or a retry to wait for."""
    return replace(status, build=None, failure=None, build_ticket=None)


def waits_for_rollout(target: PassTarget) -> bool:
    """Return whether a built generation waits for the rollout of an earlier one of the same spec. A third generation
    would push the waiting one out of the store, unserved."""
    waiting, rollout = target.generation, target.rollout
    return waiting is not None and rollout is not None and rollout.generation != waiting.generation


def _without_unneeded_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without a build that the spec no longer asks for, and without the failure of such a build. A build
    for an older refresh continues: if each refresh restarted it, no build might ever end. A build with an older
    deadline, gate, node selector or image continues as long as it makes progress."""
    build, failure, desired = status.build, status.failure, situation.desired
    if build is not None:
        job, pods = find_job(situation.observed, build), find_pods(situation.observed, build)
        is_progressing = (
            job is not None
            and not job.deleting
            and (job.state == "Running" or bool(pods))
            and diagnose_obstacle(build, situation.observed) is None
        )
        if (
            build.content != desired.content_hash
            or not generations.is_build_needed(status, desired)
            or not (build.digest == desired.build_digest or is_progressing)
        ):
            build = None
    # A corrected spec does not wait for the broken one's retry.
    if failure is not None and not (
        (attempt_key(failure) == (desired.content_hash, desired.refresh, desired.build_digest))
        and generations.is_build_needed(status, desired)
    ):
        failure = None
    return replace(status, build=build, failure=failure)


def _with_claimed_build(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    status = turns.take_newest_slot(status, situation)
    number, desired = status.last_generation + 1, situation.desired
    known = generations.newest_matching_generation(status, desired)
    if known is not None and generations.diagnose_damage(known, status, situation) is not None:
        known = None
    active, refused = status.find_generation(status.generation), status.refused
    # The generations that the builder must not remove, besides newer ones. If the status cannot hold that many, it
    # lists none, and the builder removes nothing from the store.
    protected = sorted(status.protected_generations(desired.pinned_generation), key=names.read_number)
    is_refused = refused is not None and refused.content == desired.content_hash
    build = BuildStatus(
        generation=names.generation_name(number),
        content=desired.content_hash,
        refresh=desired.refresh,
        digest=desired.build_digest,
        started_at=format_moment(situation.now),
        slot="" if status.schedule is None else status.schedule.due,
        unless_fingerprint="" if known is None else known.fingerprint,
        unless_success_file="" if known is None else known.success_file,
        active=status.generation,
        active_records=0 if active is None else active.records,
        unless_refused=refused.generation if refused is not None and is_refused else "",
        adopt=desired.adopt if status.has_nothing_of_its_own else "",
        protect=() if situation.shares_store or len(protected) > _MOST_PROTECTED else tuple(protected),
    )
    ticket = turns.take_turn(status.build_ticket)
    return replace(status, build=build, build_ticket=ticket, last_generation=number)


def note_stall(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the reason why the build that has a slot makes no progress."""
    build = status.build
    if build is None:
        return status
    trouble = diagnose_stall(build, situation)
    stall = turns.note_stall(build.stall, trouble, situation.now, shares_store=situation.shares_store)
    return replace(status, build=replace(build, stall=stall))


def assess(status: DatasetStatus, target: PassTarget, situation: Situation) -> Assessment:
    """Judge Built, find the obstacle of the build, and say when the next attempt is."""
    next_attempt_in = None
    if status.build is None and status.failure is not None:  # once due, a free slot or the rollout's end starts a pass
        next_attempt_in = remaining_seconds(status.failure.retry_at, situation.now)
    next_rebuild_in = None if status.build else generations.remaining_rebuild_wait(status, situation)
    return Assessment(
        reasons.judge(BUILT_CHECKS, status, target, situation),
        (diagnose_build(status, situation),),
        (next_attempt_in, next_rebuild_in),
        outlook=describe_next_attempt(status, situation),
    )


def _check_trouble(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    trouble = diagnose_build(status, situation)
    if trouble is None:
        return None
    text = reasons.write_sentence(trouble.reason, trouble.message)
    return Verdict("False", trouble.reason, f"{text}{describe_next_attempt(status, situation)}")


def _check_queued(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if not turns.is_waiting(status.build_ticket):
        return None
    message = f"The build{turns.describe_wait(status.build_ticket, situation.observed.turns.build)}"
    return Verdict("False", reasons.WAITING_FOR_TURN, message)


def _check_under_way(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    build = status.build
    if build is None:
        return None
    return Verdict("False", reasons.BUILDING, f"The build of {build.generation} started at {build.started_at}.")


def _check_source_missing(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    failure = status.failure
    if failure is None or not is_waiting_for_source(status):
        return None
    message = reasons.write_sentence(reasons.WAITING_FOR_SOURCE, failure.message)
    return Verdict("False", reasons.WAITING_FOR_SOURCE, f"{message} The next check for it is at {failure.retry_at}.")


def _check_rollout_first(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    generation, rollout = target.generation, target.rollout
    if generation is None or rollout is None or not waits_for_rollout(target):
        return None
    message = (
        f"{generation.generation} holds {_describe_contents(generation)}; it is rolled out"
        f" when {rollouts.describe_rollout(situation.dataset, rollout)} is in effect."
    )
    if not generations.is_build_needed(status, situation.desired):
        return Verdict("True", reasons.GENERATION_BUILT, message)
    return Verdict("False", reasons.WAITING_FOR_ROLLOUT, f"{message} The refresh is built after that.")


def _check_suspended(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if not situation.desired.is_suspended or not generations.is_build_needed(status, situation.desired):
        return None
    return Verdict("False", reasons.SUSPENDED, "Nothing is built while spec.suspend is true.")


def _check_damaged(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    generation = generations.up_to_date_generation(status, situation.desired)
    damage = None if generation is None else generations.diagnose_damage(generation, status, situation)
    if generation is None or damage is None:
        return None
    message = f"{generation.generation} was built, but the store no longer has it whole: {damage.message}"
    text = reasons.write_sentence(damage.reason, message)
    if situation.desired.pinned_generation:
        text += " Nothing is built in its place while a generation is pinned: remove spec.generation."
    elif status.lost is not None and generations.remaining_rebuild_wait(status, situation):
        text += f" It is built again at {status.lost.retry_at}."
    return Verdict("False", damage.reason, text)


def _check_about_to_begin(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    if not generations.is_build_needed(status, situation.desired):
        return None
    return Verdict("False", reasons.BUILDING, "A build is about to begin.")


def _check_built(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict | None:
    generation = generations.up_to_date_generation(status, situation.desired)
    if generation is None:
        return None
    annotation, refused, useless = situation.dataset.override_gates, status.refused, ""
    if refused is not None and refused.generation == annotation:
        why = "which cannot be accepted: its spec has changed, or its source was read again since"
        useless = f" The annotation {names.OVERRIDE_GATES} names {annotation}, {why}."
    elif annotation and not generations.is_known(annotation, status):
        useless = f" The annotation {names.OVERRIDE_GATES} names {annotation}, which no gate has rejected."
    is_unchanged = generation.verified_by == status.last_generation
    found = "The source has not changed: " if is_unchanged else ""
    message = f"{found}{generation.generation} holds {_describe_contents(generation)}.{useless}"
    return Verdict("True", reasons.GENERATION_BUILT, message)


BUILT_CHECKS: Final = (
    _check_trouble,  # the build is stuck, gave its slot up, or failed
    _check_queued,  # it waits for a build slot
    _check_under_way,
    _check_source_missing,  # the success file is not there yet
    _check_rollout_first,  # an earlier generation is rolled out before the next build
    _check_suspended,
    _check_damaged,  # the store has lost what was built
    _check_about_to_begin,
    _check_built,
)
"""The checks of Built, in order: the first that applies gives the verdict."""


def _describe_contents(generation: GenerationStatus) -> str:
    contents = f"{format_count(generation.records, 'record')} in {format_count(generation.shards, 'shard')}"
    adopted = f", adopted from {generation.adopted_from}" if generation.adopted_from else ""
    overridden = f", though a gate failed and was overridden ({generation.overridden})" if generation.overridden else ""
    return f"{contents}{adopted}{overridden}"


def diagnose_build(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why the build under way makes no progress, or else how the last one failed."""
    build, failure = status.build, status.failure
    if build is not None:
        trouble = diagnose_stall(build, situation)
        if trouble is not None:
            return trouble
    given_up = turns.diagnose_ticket(status.build_ticket)
    if given_up is not None:
        return given_up
    if build is None and generations.is_build_needed(status, situation.desired) and not situation.desired.is_suspended:
        unable = diagnose_engine(situation)
        if unable is not None:
            return unable
    if failure is None or is_waiting_for_source(status):
        return None
    return with_refusal_advice(failure, status, situation)


def is_waiting_for_source(status: DatasetStatus) -> bool:
    """Return whether the last build found no success file. Nothing is wrong, and the next attempt looks again."""
    return status.failure is not None and status.failure.reason == reasons.WAITING_FOR_SOURCE


def describe_next_attempt(status: DatasetStatus, situation: Situation) -> str:
    """When the next attempt after a failure begins or began; empty if there was no failure."""
    build, failure, ticket = status.build, status.failure, status.build_ticket
    if turns.is_waiting(ticket):
        return f" The next attempt{turns.describe_wait(ticket, situation.observed.turns.build)}"
    if failure is None or is_waiting_for_source(status):
        return ""
    if build is not None:
        return f" Attempt {failure.count + 1} is {build.generation}, since {build.started_at}."
    changed = "the source or the spec" if situation.config.watches_sources else "the spec"
    return f" The next attempt is at {failure.retry_at}, or at once after a refresh or a change of {changed}."


def is_store_access_new(status: DatasetStatus, situation: Situation) -> bool:
    """Return whether the store's address or credentials differ from what the dataset's Secret holds."""
    access = situation.observed.store
    return situation.shares_store and access.problem is None and access.digest != status.store_digest


# A generation that a gate rejected is whole in the store, and no rollout serves it. ``status.refused`` names the newest
# one until a later build succeeds, or another one is rejected. An annotation names the one generation whose gates it
# overrides. An annotation that was there before the rejection does nothing: it may come from a file that is applied
# again and again, and its author has not seen the generation that it would admit.


MAX_REASON_CHARACTERS: Final = 1024
"""Maximum length of the reasons for a rejection, in the list of generations."""
_OVERRIDE: Final = names.OVERRIDE_GATES.partition("/")[2]
"""Text in every command that overrides gates: an annotation, a verb, an option."""
_MAX_REFUSAL_CHARACTERS: Final = 3000
"""Maximum length of a builder's message, which leaves room for the advice."""


def note_refusal(status: DatasetStatus, build: BuildStatus, result: BuildResult, situation: Situation) -> DatasetStatus:
    """``status`` with the generation of ``build`` if gates rejected it, as ``result`` says."""
    if result.reason != reasons.GATE_CLOSED or not result.file_bytes:
        return status
    refused, annotation = status.refused, situation.dataset.override_gates
    if result.generation == build.generation:
        # Without examples and advice, which the builder indents.
        why = "; ".join(line for line in result.message.splitlines() if line and not line[0].isspace())
        refused = generations.make_generation(
            RefusedGeneration,
            generations.describe_built(build, result, situation.desired),
            slot="" if result.adopted_from else build.slot,
            message=reasons.shorten(why, MAX_REASON_CHARACTERS),
            premature_override=annotation if annotation == build.generation else "",
        )
        return replace(status, refused=refused)
    if refused is None or refused.generation != result.generation or refused.content != build.content:
        return status
    # The source was read again, and has not changed.
    read_by = names.read_number(build.generation)
    refreshed_at = refused.refreshed_at if situation.desired.spec.source.pushed else build.started_at
    again = replace(refused, refresh=build.refresh, slot=build.slot, verified_by=read_by, refreshed_at=refreshed_at)
    return replace(status, refused=again)


def override_gates(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the rejected generation accepted, if the annotation names it. It is then like any other, and
    answers its refresh."""
    refused, annotation = status.refused, situation.dataset.override_gates
    if refused is None:
        return status
    if refused.premature_override not in ("", annotation):
        refused = replace(refused, premature_override="")
        status = replace(status, refused=refused)
    is_asked_for = refused.content == situation.desired.content_hash and generations.is_up_to_date(refused, status)
    if annotation != refused.generation or refused.premature_override or not is_asked_for:
        return status
    admitted = generations.make_generation(GenerationStatus, refused, overridden=refused.message or reasons.GATE_CLOSED)
    status = generations.add_generation(record_override(status, admitted, situation.now), admitted)
    failure = status.failure
    if failure is not None and failure.reason == reasons.GATE_CLOSED:
        failure = None
    status = replace(status, refused=None, failure=failure)
    return turns.answer_requests(status, refused.refresh, refused.slot, generations.last_reading(refused))


def with_refusal_advice(failure: BuildFailure, status: DatasetStatus, situation: Situation) -> Trouble:
    """Return the trouble of ``failure``. If a gate rejected the generation that its build found, add how to override
    it, unless the builder has said so. If there is an annotation without effect, say why it has none."""
    trouble, refused = Trouble(failure.reason, failure.message), status.refused
    if trouble.reason != reasons.GATE_CLOSED or refused is None or refused.content != situation.desired.content_hash:
        return trouble
    if generations.last_reading(refused) != names.read_number(failure.generation):
        return trouble
    name, annotation = refused.generation, situation.dataset.override_gates
    message = reasons.shorten(trouble.message, _MAX_REFUSAL_CHARACTERS)
    is_told = _OVERRIDE in message
    advice = "" if is_told else f"to accept {name} as it is, set the annotation {names.OVERRIDE_GATES} to {name}"
    if refused.premature_override:
        advice = (
            f"the annotation {names.OVERRIDE_GATES} named {name} before it was rejected, and has no effect:"
            f" inspect {name}, remove the annotation, and set it again to override the gate"
        )
    elif annotation and not generations.is_known(annotation, status):
        subject = f"the annotation {names.OVERRIDE_GATES}" if is_told else f"{advice}; it"
        advice = f"{subject} names {annotation}, which is not the rejected generation"
    return Trouble(trouble.reason, f"{message}\n{advice}" if advice else message)


# The last builds, in the status. Many checks find the source unchanged. So a record with the same outcome and message
# as the one before replaces it, and counts both. Otherwise, such checks would push out the builds that people look for.


MAX_RECORDS: Final = 10
MAX_RECORD_CHARACTERS: Final = 256
_LOOKED: Final = ("built", "adopted", "unchanged", "waiting")
"""Outcomes of builders that read or checked the source, unless they adopted an earlier dataset's generation."""


def record_end(
    status: DatasetStatus,
    build: BuildStatus,
    outcome: BuildOutcome,
    trouble: Trouble,
    result: BuildResult | None,
    now: datetime,
) -> DatasetStatus:
    """``status`` with the end of ``build``; ``trouble`` is why it failed, or what the builder says."""
    seconds = max(0.0, (now - parse_moment(build.started_at)).total_seconds())
    record = BuildRecord(
        generation=build.generation,
        outcome=outcome,
        reason=reasons.shorten(trouble.reason, MAX_RECORD_CHARACTERS),
        started_at=clamp_to_now(build.started_at, now),
        finished_at=format_moment(now),
        records=0 if result is None or result.outcome == "failed" else result.records,
        seconds=round(seconds if result is None else result.seconds),
        message=reasons.shorten(reasons.join_lines(trouble.message), MAX_RECORD_CHARACTERS),
    )
    after = _add(status, record)
    is_adopted = result is not None and bool(result.adopted_from)
    return replace(after, last_checked=status.last_checked) if is_adopted else after


def record_override(status: DatasetStatus, generation: GenerationStatus, now: datetime) -> DatasetStatus:
    """``status`` with the moment at which the gates of ``generation`` were overridden."""
    moment = format_moment(now)
    return _add(
        status,
        BuildRecord(
            generation=generation.generation,
            outcome="overridden",
            reason=reasons.GATE_CLOSED,
            started_at=moment,
            finished_at=moment,
            records=generation.records,
            message=reasons.shorten(reasons.join_lines(generation.overridden), MAX_RECORD_CHARACTERS),
        ),
    )


def _add(status: DatasetStatus, record: BuildRecord) -> DatasetStatus:
    records = status.builds
    last = records[-1] if records and record.outcome not in ("built", "adopted", "overridden") else None
    if last and (last.outcome, last.reason, last.message) == (record.outcome, record.reason, record.message):
        # Gates have rejected the generation of the first build; retries publish none.
        generation = last.generation if record.outcome == "gateClosed" else record.generation
        record = replace(record, generation=generation, count=last.count + 1)
        records = records[:-1]
    checked = record.finished_at if record.outcome in _LOOKED else status.last_checked
    return replace(status, builds=(*records, record)[-MAX_RECORDS:], last_checked=checked)


def clamp_records(status: DatasetStatus, now: datetime) -> DatasetStatus:
    """``status`` with no build's end later than ``now``, in case the clock was set back."""
    return replace(
        status,
        last_checked=clamp_to_now(status.last_checked, now),
        builds=tuple(
            replace(
                record,
                started_at=clamp_to_now(record.started_at, now),
                finished_at=clamp_to_now(record.finished_at, now),
            )
            for record in status.builds
        ),
    )
