"""What exists and should not: by its labels, whoever left it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lookupdb_operator.model import Existing, Manifest, Observed, Ref
from lookupdb_operator.plan import lifecycle, outcomes
from lookupdb_operator.plan.applying import name_of
from lookupdb_operator.plan.lifecycle import GenerationPhase, RolloutPhase
from lookupdb_operator.status import Status


def find_garbage(status: Status, observed: Observed, desired_objects: Iterable[Manifest]) -> tuple[Ref, ...]:
    """What is to be deleted: builds that are not under way, rollouts that are gone, a Job that is to run again, and
    other objects of ours that nothing asks for any more. Never what has a number that ``status`` has not come to."""
    names = {name_of(manifest) for manifest in desired_objects}
    return (
        *(job.ref for job in observed.jobs if not job.deleting and _is_past_build(job.generation, status)),
        *_lost_jobs(status, observed),
        *(stateful.ref for stateful in observed.sets if not stateful.deleting and _is_gone(stateful.rollout, status)),
        *(other.ref for other in observed.others if not other.deleting and _is_garbage(other, status, names)),
    )


def _lost_jobs(status: Status, observed: Observed) -> Iterator[Ref]:
    if status.build is not None and outcomes.is_lost(status.build, observed):
        job = outcomes.job_of(observed, status.build)
        if job is not None and not job.deleting:
            yield job.ref


def _is_garbage(existing: Existing, status: Status, desired_names: set[tuple[str, str]]) -> bool:
    if existing.rollout:
        return _is_gone(existing.rollout, status)
    if existing.generation:
        return _is_past_build(existing.generation, status)
    # A routing table stays as long as the dataset: routers that start answer from it, whatever status remembers.
    # What has no digest was not written by us.
    is_ours = bool(existing.digest) and not existing.table_version
    return is_ours and (existing.ref.kind, existing.ref.name) not in desired_names


def _is_past_build(generation: str, status: Status) -> bool:
    """A Job builds one generation, and nothing else: it is of no use once that is built. One that failed stays until
    the next attempt, for whoever reads its log."""
    failure = status.failure
    if failure is not None and failure.generation == generation and status.build is None:
        return False
    phase = lifecycle.generation_phase(generation, status)
    return phase not in (GenerationPhase.UNCLAIMED, GenerationPhase.BUILDING)


def _is_gone(rollout: str, status: Status) -> bool:
    return lifecycle.rollout_phase(rollout, status) is RolloutPhase.GONE
