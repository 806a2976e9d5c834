"""How a build ended. This module records it, and says when the next attempt is; ``builds`` lists all that ends one.

A builder's own word counts, whatever Kubernetes says about its Job: what is published is published.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, BuildResult, Pod, Trouble
from lookupdb_operator.plan import clock, reasons, retries
from lookupdb_operator.plan.build import build_job
from lookupdb_operator.plan.generation import checks, generations, history, refusals
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildFailure, BuildStatus, DatasetStatus, GenerationStatus

_NO_RESULT: Final = Trouble(reasons.BUILD_FAILED, "The builder ended without a word; its log may tell why.")


def record_outcome(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the outcome of the build under way, if it has ended and is still of interest."""
    build, desired = status.build, situation.desired
    if build is None or build.content != desired.content_hash:
        return status
    job, pods = build_job.find_job(situation.observed, build), build_job.find_pods(situation.observed, build)
    result = next((pod.result for pod in pods if pod.result is not None), None)
    admitted = None if result is None else refusals.find_admitted(status, build, result)
    if result is not None and admitted is not None:
        result = replace(result, outcome="unchanged", reason="", message="")
    if result is not None and result.outcome != "failed":
        status = history.record_success(status, build, result, situation.now)
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
    status = history.record_failure(status, build, trouble, result, situation.now)
    if result is not None:
        status = refusals.note_refusal(status, build, result, situation)
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
    return checks.answer_requests(status, build.refresh, build.slot, names.read_number(build.generation))


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
    if job is None or job.state == "Running" or job.deleting or any(build_job.is_running(pod) for pod in pods):
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
        message=reasons.shorten(trouble.message, retries.MAX_MESSAGE_CHARACTERS),
        generation=build.generation,
        content=build.content,
        refresh=build.refresh,
        count=count,
        retry_at=clock.format_moment(now + timedelta(seconds=retries.retry_delay(count, trouble.reason))),
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
    return retries.remaining_backoff(status.failure.retry_at, situation.now) or None
