"""Which rollouts should exist: the one that is asked for, and those that a routing table names or may still name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Dataset
from lookupdb_operator.plan import clock, generations
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Generation, Rollout, Status

MOST: Final = 12
"""Rollouts at a time. So many there are only when routers confirm nothing for long while the spec keeps changing;
status has room for 16."""


def decided(status: Status, situation: Situation) -> Status:
    """``status`` without rollouts that never served and are not asked for any more, ready or not; with the one that is
    asked for, its number claimed. Without a generation of what is asked for, what serves stays as it is."""
    generation = generations.wanted(status, situation.wish)
    template = None if generation is None else situation.template_of(generation)
    kept = tuple(one for one in status.rollouts if one.named or _is(one, generation, template))
    status = replace(status, rollouts=kept)
    if generation is None or template is None or wanted(status, situation) is not None or len(kept) >= MOST:
        return status
    number = status.last_rollout + 1
    claimed = Rollout(names.rollout_name(number), generation.generation, template, clock.written(situation.now))
    return replace(status, rollouts=(*kept, claimed), last_rollout=number)


def wanted(status: Status, situation: Situation) -> Rollout | None:
    """The rollout that is asked for, once it is claimed."""
    generation = generations.wanted(status, situation.wish)
    if generation is None:
        return None
    template = situation.template_of(generation)
    return next((one for one in reversed(status.rollouts) if _is(one, generation, template)), None)


def is_current(rollout: Rollout, status: Status, situation: Situation) -> bool:
    """Whether ``rollout`` is made from what its generation's would be made from now. Of another one only the number of
    servers may change: what its pods are made from is not known any more, and never changes."""
    generation = status.generation_called(rollout.generation)
    return generation is not None and situation.template_of(generation) == rollout.template


def servers(rollout: Rollout, status: Status, situation: Situation) -> int:
    """How many servers each shard of ``rollout`` should have: as many as asked for, and never less than a routing table
    names that some router may answer from."""
    asked = {one.rollout for one in (status.table, wanted(status, situation)) if one is not None}
    return max(situation.wish.replicas, rollout.named) if rollout.rollout in asked else max(1, rollout.named)


def called(dataset: Dataset, rollout: Rollout) -> str:
    """For people: ``airports-r3 (generation g2)``."""
    return f"{names.rollout(dataset.name, rollout.rollout)} (generation {rollout.generation})"


def _is(rollout: Rollout, generation: Generation | None, template: str | None) -> bool:
    return generation is not None and (rollout.generation, rollout.template) == (generation.generation, template)
