"""``spec.suspend``: nothing is built, rolled out or changed, and what serves goes on serving.

    what                                  while suspended
    a build under way                     ends: its Job is deleted, its number is past
    a candidate                           is abandoned: no routing table references it
    a table that routers take up          is confirmed; what served before drains and is retired
    a rollout that is kept                is retired when its time has passed
    objects of what serves, and routers,  are made again: servers if the pod template is as it was, the rest as the spec
    that are gone or were changed         says now
    edits of the spec                     wait, also of replicas and routers
    trimming                              waits
    the store's Secret, lost pods         as ever

No part of it is remembered: the step that decides, ``generations.target_generation`` and ``rollouts.target_rollout``
above all, asks for what serves.
"""

from __future__ import annotations

from collections.abc import Iterable

from lookupdb_operator.model import Manifest, Observed
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import generations
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.rollout import rollouts, shard_windows
from lookupdb_operator.plan.situation import Situation, render_permanent_objects
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, TableStatus


def end_build(status: DatasetStatus) -> DatasetStatus:
    """``status`` without a build, and without a turn or an attempt to wait for."""
    return replace(status, build=None, failure=None, build_ticket=None)


def without_edits(manifests_due: Iterable[Manifest], situation: Situation) -> tuple[Manifest, ...]:
    """``manifests_due`` without routers and network policies that are as an earlier spec had them."""
    permanent = {_object_name(manifest) for manifest in render_permanent_objects(situation.ingredients)}
    intact = {
        (existing.ref.kind, existing.ref.name)
        for existing in situation.observed.other_objects
        if not existing.changed and not existing.deleting
    }
    return tuple(manifest for manifest in manifests_due if _object_name(manifest) not in permanent & intact)


def without_permanent_objects(observed: Observed) -> Observed:
    """``observed`` without what is of no rollout and no generation: none of it is deleted."""
    numbered = (existing for existing in observed.other_objects if existing.rollout or existing.generation)
    return replace(observed, other_objects=tuple(numbered))


def _object_name(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def judge_serving(table: TableStatus | None, status: DatasetStatus, situation: Situation) -> Verdict:
    """RolledOut of a dataset that is suspended, of which nothing is being taken up or drains."""
    held = "Nothing is built or rolled out while spec.suspend is true"
    rollout = None if table is None else status.find_rollout(table.rollout)
    if table is None or rollout is None:
        is_lost = any(other.referenced_replicas for other in status.rollouts)
        serves = "what serves stays, and nobody knows what it is" if is_lost else "nothing serves"
        return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}.")
    progress = shard_windows.describe_progress(status).rstrip("; ")
    serves = progress or f"routers answer from {rollouts.describe_rollout(situation.dataset, rollout)}"
    if is_as_specified(table, status, situation):
        return Verdict("True", reasons.SUSPENDED, f"{held}; {serves}.")
    return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}, and what the spec asks for waits.")


def is_as_specified(table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether what ``table`` references is what would be asked for without the suspension."""
    target = generations.target_generation(status, replace(situation.desired, is_suspended=False))
    rollout = status.find_rollout(table.rollout)
    parsed = situation.dataset.parsed
    return (
        target is not None
        and rollout is not None
        and parsed is not None
        and target.generation == table.generation
        and not table.parts
        and parsed.replicas == table.replicas
        and rollouts.is_current(rollout, status, situation)
    )
