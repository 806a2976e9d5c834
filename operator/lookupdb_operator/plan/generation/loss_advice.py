"""What becomes of a generation that the store has lost, and what to do about it: for the conditions that tell of
servers which cannot have it.

    the generation                               is built again
    the newest of the present spec               by itself (``losses``)
    pinned                                       no: nothing but itself would serve. It is brought back into the store,
                                                 or spec.generation is changed
    what serves, while the newest is held back   no: the source that it was built from is not there any more, and the
                                                 present one may be the one that was rolled back from, or rejected.
                                                 Whoever did that says when the source is as it should be
    any other                                    no: something newer replaces it
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import generations, losses, promotion
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import DatasetStatus, GenerationStatus

_MAX_MESSAGE_CHARACTERS: Final = 1000
"""Of what servers say, so that there is room for what to do."""


def with_advice(trouble: Trouble, generation: str, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble`` of servers of ``generation``; if the store has lost that, with what becomes of it and what to do."""
    if trouble.reason not in reasons.DAMAGE_REASONS:
        return trouble
    message = reasons.shorten(trouble.message, _MAX_MESSAGE_CHARACTERS).rstrip(".")
    return Trouble(trouble.reason, f"{message}\n{_advise(generation, status, situation)}")


def _advise(generation: str, status: DatasetStatus, situation: Situation) -> str:
    desired = situation.desired
    if desired.is_suspended:
        return "nothing is built while spec.suspend is true"
    if desired.pinned_generation == generation:
        return (
            f"spec.generation pins {generation}, and nothing that is built would serve in its place: bring it back into"
            " the store, name another generation, or take spec.generation away"
        )
    if generations.is_pin_missing(status, desired):
        return "nothing is built in its place while a generation is pinned: take spec.generation away"
    if desired.pinned_generation:
        return f"{desired.pinned_generation}, which spec.generation pins, replaces it"
    newest = generations.up_to_date_generation(status, desired)
    if newest is None:
        return "what the spec asks for now is built, and replaces it"
    if generations.is_held_back(newest, status):
        return _advise_held_back(newest, status)
    if newest.generation != generation:
        may_serve = promotion.may_take_effect(newest.generation, status, desired)
        return f"{newest.generation}, which is built, replaces it{'' if may_serve else ' when it is promoted'}"
    when = f" at {status.lost.retry_at}" if status.lost is not None and losses.must_wait(status, situation) else ""
    return f"it is built again by itself{when}; at once, when the annotation {names.REFRESH} gets another value"


def _advise_held_back(newest: GenerationStatus, status: DatasetStatus) -> str:
    verdict = "rejected" if promotion.is_rejected(newest, status) else "rolled back from"
    return (
        f"nothing is built in its place by itself, because {newest.generation}, the newest of this spec, was {verdict}:"
        f" when the source is as it should be, give the annotation {names.REFRESH} another value; or set"
        f" spec.generation to {newest.generation}"
    )
