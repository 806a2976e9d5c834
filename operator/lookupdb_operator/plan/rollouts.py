"""Rollouts before a routing table references them: which one is asked for, its number, how many servers each keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Dataset
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.generations import deployable_generation
from lookupdb_operator.plan.readiness import is_stuck
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Generation, Rollout, Status

MOST_ROLLOUTS: Final = 12
"""At a time. So many exist only when routers confirm nothing for long while the spec keeps changing; status has room
for 16."""


def target_rollout(status: Status, situation: Situation) -> Rollout | None:
    """The rollout that is asked for, once it is claimed. A candidate of the present spec is finished before a newer
    generation of the same spec has its turn, unless it is stuck: refreshed faster than rolled out, data would else
    never be served."""
    generation = deployable_generation(status, situation.desired)
    if generation is None:
        return None
    candidate = unfinished_candidate(status, situation)
    if candidate is None or candidate.generation == generation.generation:
        return _rollout_of(generation, status, situation)
    return _rollout_of(generation, status, situation) if is_stuck(candidate, status, situation) else candidate


def unfinished_candidate(status: Status, situation: Situation) -> Rollout | None:
    """The newest rollout of the present spec and pod template that is not in effect yet: no routing table references
    it, or routers are taking up the one that does."""
    return next(
        (
            rollout
            for rollout in reversed(status.rollouts)
            if _is_unfinished(rollout, status) and _is_of_present_spec(rollout, status, situation)
        ),
        None,
    )


def abandon_rollouts(status: Status, situation: Situation) -> Status:
    """``status`` without rollouts that no routing table ever referenced and that are not asked for any more, ready or
    not: what corrects a mistake never waits for the mistake."""
    target = target_rollout(status, situation)
    kept = tuple(rollout for rollout in status.rollouts if rollout.referenced_replicas or rollout == target)
    return replace(status, rollouts=kept)


def claim_rollout(status: Status, situation: Situation) -> Status:
    """``status`` with the rollout that is asked for, its number claimed. Without a generation of what is asked for,
    what serves stays as it is."""
    generation = deployable_generation(status, situation.desired)
    if generation is None or target_rollout(status, situation) is not None or len(status.rollouts) >= MOST_ROLLOUTS:
        return status
    number = status.last_rollout + 1
    claimed = Rollout(
        rollout=names.rollout_name(number),
        generation=generation.generation,
        template=situation.template_of(generation),
        started_at=clock.written(situation.now),
    )
    return replace(status, rollouts=(*status.rollouts, claimed), last_rollout=number)


def is_current(rollout: Rollout, status: Status, situation: Situation) -> bool:
    """Whether ``rollout`` is made from what its generation's would be made from now. Of another one only the number of
    servers may change: what its pods are made from is not known any more, and never changes."""
    generation = status.generation_called(rollout.generation)
    return generation is not None and situation.template_of(generation) == rollout.template


def desired_replicas(rollout: Rollout, status: Status, situation: Situation) -> int:
    """How many servers each shard of ``rollout`` should have: as many as asked for, and never fewer than a routing
    table references that some router may answer from."""
    target, table = target_rollout(status, situation), status.table
    is_asked_for = rollout == target or (table is not None and table.rollout == rollout.rollout)
    return max(situation.desired.replicas if is_asked_for else 1, rollout.referenced_replicas)


def describe_rollout(dataset: Dataset, rollout: Rollout) -> str:
    """For people: ``airports-r3 (generation g2)``."""
    return f"{names.rollout(dataset.name, rollout.rollout)} (generation {rollout.generation})"


def _is_unfinished(rollout: Rollout, status: Status) -> bool:
    table = status.table
    if table is not None and table.rollout == rollout.rollout:
        return not table.confirmed_at
    return not rollout.referenced_replicas


def _is_of_present_spec(rollout: Rollout, status: Status, situation: Situation) -> bool:
    generation = status.generation_called(rollout.generation)
    is_asked_for = generation is not None and generation.content == situation.desired.content_hash
    return is_asked_for and is_current(rollout, status, situation)


def _rollout_of(generation: Generation, status: Status, situation: Situation) -> Rollout | None:
    """The newest rollout of ``generation`` that is made from what it would be made from now."""
    template = situation.template_of(generation)
    return next(
        (
            rollout
            for rollout in reversed(status.rollouts)
            if (rollout.generation, rollout.template) == (generation.generation, template)
        ),
        None,
    )
