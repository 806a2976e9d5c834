"""The Job of a build and its pods: which ones are there, whether they get on, and what keeps them from it. ``builds``
says what comes of that.
"""

from __future__ import annotations

from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, Observed, Pod, Trouble
from lookupdb_operator.names import BUILDER
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.plan.turn import turns
from lookupdb_operator.status import BuildStatus


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
