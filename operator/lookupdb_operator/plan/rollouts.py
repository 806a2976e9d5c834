"""Rollouts before a routing table references them: which one is asked for, its number, how many servers each keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Dataset, Observed, Trouble
from lookupdb_operator.plan import clock, reasons, refusals, tickets
from lookupdb_operator.plan.generations import deployable_generation
from lookupdb_operator.plan.readiness import has_exceeded_deadline, is_servable, is_stuck
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
    trouble = None if target is None else diagnose_stall(target, status, situation)
    if target is not None and trouble is not None and _must_yield(target, status, situation):
        ticket = tickets.give_up(status.rollout_ticket, trouble, target.template, situation.now)
        status, target = replace(status, rollout_ticket=ticket), None
    kept = tuple(rollout for rollout in status.rollouts if rollout.referenced_replicas or rollout == target)
    return replace(status, rollouts=kept)


def claim_rollout(status: Status, situation: Situation) -> Status:
    """``status`` with the rollout that is asked for, its number claimed. Without a generation of what is asked for,
    what serves stays as it is."""
    generation = deployable_generation(status, situation.desired)
    target = target_rollout(status, situation)
    if generation is None or target is not None:
        has_turn = target is not None and not target.referenced_replicas
        return replace(status, rollout_ticket=tickets.take(status.rollout_ticket) if has_turn else None)
    if len(status.rollouts) >= MOST_ROLLOUTS:  # it could not use a turn
        return replace(status, rollout_ticket=tickets.take(status.rollout_ticket))
    template = situation.template_of(generation)
    if not tickets.may_begin(situation.observed.turns.rollout, status.rollout_ticket, situation.now):
        return replace(status, rollout_ticket=tickets.wait(status.rollout_ticket, template, situation.now))
    number = status.last_rollout + 1
    claimed = Rollout(
        rollout=names.rollout_name(number),
        generation=generation.generation,
        template=template,
        started_at=clock.written(situation.now),
    )
    ticket = tickets.take(status.rollout_ticket)
    return replace(status, rollouts=(*status.rollouts, claimed), rollout_ticket=ticket, last_rollout=number)


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


def obstacle(rollout: Rollout, observed: Observed) -> Trouble | None:
    """What keeps servers of ``rollout`` from getting ready."""
    sets = (shard_set.trouble for shard_set in observed.sets if shard_set.rollout == rollout.rollout)
    pods = (pod.trouble for pod in observed.pods if pod.rollout == rollout.rollout and not pod.ready)
    prefix = f"{names.rollout(observed.dataset.name, rollout.rollout)}-"
    refused = refusals.list_refusals(observed, "StatefulSet", prefix)
    return next((trouble for trouble in (*sets, *pods, *refused) if trouble is not None), None)


def diagnose_stall(candidate: Rollout, status: Status, situation: Situation) -> Trouble | None:
    """What keeps ``candidate`` from getting on, if it is only that it takes longer than it should."""
    trouble = obstacle(candidate, situation.observed)
    if trouble is None and has_exceeded_deadline(candidate, status, situation):
        where = describe_rollout(situation.dataset, candidate)
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, f"{where} is not ready since {candidate.started_at}")
    return trouble


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


def _must_yield(rollout: Rollout, status: Status, situation: Situation) -> bool:
    """Whether ``rollout`` has a turn to give up: what a routing table references has none any more, and what one may
    reference by now gets on."""
    if rollout.referenced_replicas or not situation.observed.turns.rollout.must_yield:
        return False
    return not is_servable(rollout, situation.desired.replicas, status, situation)


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
