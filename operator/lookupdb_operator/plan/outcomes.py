"""How the build under way ended, when it has: from its Job and its pod to status.

A builder's own word counts, whatever Kubernetes says about its Job: what is published is published.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, cast

from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, BuildResult, Observed, Pod, Trouble
from lookupdb_operator.names import BUILDER
from lookupdb_operator.plan import clock, failures, generations, reasons, refusals, turns
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import Build, Generation, Status

_NO_RESULT: Final = Trouble(reasons.BUILD_FAILED, "The builder ended without a word; its log may tell why.")


def record_outcome(status: Status, situation: Situation) -> Status:
    """``status`` with the outcome of the build under way, if it has ended and is still of interest."""
    build, desired = status.build, situation.desired
    if build is None or build.content != desired.content_hash:
        return status
    job, pods = job_of(situation.observed, build), pods_of(situation.observed, build)
    result = next((pod.result for pod in pods if pod.result is not None), None)
    if result is not None and result.outcome in ("built", "adopted"):
        return _refreshed(generations.add_generation(status, _generation(build, result, situation)), build)
    if result is not None and result.outcome == "unchanged":
        return _refreshed(_confirmed(status, build, desired), build)
    trouble = _failure(job, pods, result)
    if trouble is None:
        return status
    return replace(status, build=None, failure=failures.after(build, trouble, status.failure, situation.now))


def is_lost(build: Build, observed: Observed) -> bool:
    """Whether its Job says that it succeeded, and nobody is left to say what it built: it runs again under its
    number, and finds what it has published."""
    job = job_of(observed, build)
    return job is not None and job.state == "Succeeded" and not pods_of(observed, build)


def gets_on(build: Build, observed: Observed) -> bool:
    """Whether its Job is there and nothing keeps it from coming to an end by itself."""
    job, pods = job_of(observed, build), pods_of(observed, build)
    if job is None or job.deleting or (job.state != "Running" and not pods):
        return False
    return obstacle(build, observed) is None


def obstacle(build: Build, observed: Observed) -> Trouble | None:
    """What keeps ``build``, which has not ended, from getting on."""
    job = job_of(observed, build)
    if job is not None and job.failure is not None:
        return job.failure
    if job is None:
        name = names.build(observed.dataset.name, build.generation)
        return next(refusals.list_refusals(observed, "Job", name), None)
    return next((pod.trouble for pod in pods_of(observed, build) if pod.trouble is not None), None)


def diagnose_stall(build: Build, situation: Situation) -> Trouble | None:
    """What keeps ``build`` from getting on, if it is only that nothing runs for it: its Job is suspended, or is being
    deleted and held by a finalizer."""
    observed = situation.observed
    trouble, job = obstacle(build, observed), job_of(observed, build)
    if trouble is not None or job is None or any(_goes_on(pod) for pod in pods_of(observed, build)):
        return trouble
    if not job.deleting and job.state != "Running":
        return None
    if clock.seconds_until(build.started_at, turns.PATIENCE, situation.now) > 0:
        return None
    why = " and is being deleted, but something, a finalizer say, keeps it" if job.deleting else ""
    return Trouble(reasons.INTERRUPTED, f"Job {job.ref.name} has no pod that runs{why}")


def has_lost_job(build: Build, situation: Situation) -> bool:
    """Whether nothing will ever run for ``build`` again: its Job has been about to go for long, and cannot be made
    anew meanwhile."""
    job = job_of(situation.observed, build)
    return job is not None and job.deleting and build.stall is not None and turns.is_long(build.stall, situation.now)


def job_of(observed: Observed, build: Build) -> BuildJob | None:
    """The Job of ``build``."""
    return next((job for job in observed.jobs if job.generation == build.generation), None)


def pods_of(observed: Observed, build: Build) -> tuple[Pod, ...]:
    """The pods of ``build``: one, unless Kubernetes was in trouble."""
    return tuple(pod for pod in observed.pods if pod.component == BUILDER and pod.generation == build.generation)


def _generation(build: Build, result: BuildResult, situation: Situation) -> Generation:
    desired = situation.desired
    return Generation(
        generation=build.generation,
        content=build.content,
        fingerprint=result.fingerprint,
        records=result.records,
        bytes=result.file_bytes,
        largest_shard_bytes=result.largest_shard_bytes,
        shards=desired.shards,
        normalize=desired.normalize,
        value_format=cast(Literal["json", "raw"], desired.value_format),
        built_at=result.built_at,
        refresh=build.refresh,
    )


def _confirmed(status: Status, build: Build, desired: Desired) -> Status:
    """``status`` when the source is as it was for the generation that is there already."""
    known = generations.newest_matching_generation(status, desired)
    if known is None:
        return status
    verified = replace(known, refresh=build.refresh, verified_by=generations.number(build.generation))
    return generations.add_generation(status, verified)


def _refreshed(status: Status, build: Build) -> Status:
    status = replace(status, build=None, failure=None)
    if build.refresh in ("", status.refreshed):
        return status
    return replace(status, refreshed=build.refresh, refreshed_by=generations.number(build.generation))


def _failure(job: BuildJob | None, pods: tuple[Pod, ...], result: BuildResult | None) -> Trouble | None:
    """Why the build failed; None while it may still come to something.

    A builder that was interrupted does not know by whom: the deadline, an eviction. Kubernetes says, a little later.
    Of a Job that has ended the pod may be seen to end later: two watches tell of them.
    """
    if result is not None and result.reason != reasons.INTERRUPTED:
        return Trouble(_reason(result), result.message or "The builder gave no message.")
    if job is None or job.state == "Running" or job.deleting or any(_goes_on(pod) for pod in pods):
        return None
    if job.state == "Succeeded":
        return _NO_RESULT if pods else None
    if job.failure is not None:
        return job.failure
    told = next((pod.trouble for pod in pods if pod.trouble is not None), None)
    if told is not None:
        return told
    return _NO_RESULT if result is None else Trouble(reasons.INTERRUPTED, result.message)


def _goes_on(pod: Pod) -> bool:
    return pod.phase not in ("Succeeded", "Failed") and not pod.deleting


def _reason(result: BuildResult) -> str:
    return result.reason if result.reason in reasons.OF_BUILDERS else reasons.BUILD_FAILED
