"""What exists and should not: by its labels, whoever left it there."""

from __future__ import annotations

from collections.abc import Iterable

from lookupdb_operator.model import Existing, Manifest, Observed, Ref
from lookupdb_operator.plan import outcomes
from lookupdb_operator.plan.applying import name_of
from lookupdb_operator.plan.generations import number
from lookupdb_operator.status import Status


def of(status: Status, observed: Observed, desired: Iterable[Manifest]) -> tuple[Ref, ...]:
    """What is to be deleted: builds and rollouts that ``status`` does not know, a Job that is to run again, and other
    objects of ours that nothing asks for any more. Never what has a number that ``status`` has not come to yet."""
    names = {name_of(manifest) for manifest in desired}
    return (
        *(job.ref for job in observed.jobs if not job.deleting and _is_past_build(job.generation, status)),
        *_lost(status, observed),
        *(one.ref for one in observed.sets if not one.deleting and _is_past_rollout(one.rollout, status)),
        *(one.ref for one in observed.others if not one.deleting and _is_past(one, status, names)),
    )


def _lost(status: Status, observed: Observed) -> Iterable[Ref]:
    if status.build is not None and outcomes.is_lost(status.build, observed):
        job = outcomes.job_of(observed, status.build)
        if job is not None and not job.deleting:
            yield job.ref


def _is_past(one: Existing, status: Status, desired: set[tuple[str, str]]) -> bool:
    if one.rollout:
        return _is_past_rollout(one.rollout, status)
    if one.generation:
        return _is_past_build(one.generation, status)
    # A routing table stays as long as the dataset: routers that start answer from it, whatever status remembers.
    # What has no digest was not written by us.
    return bool(one.digest) and not one.table_version and (one.ref.kind, one.ref.name) not in desired


def _is_past_build(generation: str, status: Status) -> bool:
    current = status.build is not None and status.build.generation == generation
    return not current and 0 < number(generation) <= status.last_generation


def _is_past_rollout(rollout: str, status: Status) -> bool:
    return status.rollout_called(rollout) is None and 0 < number(rollout) <= status.last_rollout
