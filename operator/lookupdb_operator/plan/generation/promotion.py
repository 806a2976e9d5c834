"""Promotion: which generation may take effect, and which one is rejected. ``candidate`` has the rollout that waits.

With ``rollout.promotion: Manual`` a generation takes effect

    when                                        because
    the annotation ``promote`` names it, and    somebody has looked at it, before or after it was ready
    did not do so before it was built
    ``spec.generation`` pins it                 that names it, too
    it is in effect: another rollout of it      the data is the same: a new image or size needs nobody's eyes
    nothing was ever in effect                  there is nothing to compare with, and nothing to ask it beside

An annotation stays, so it names one generation and never the next one. One that names what does not wait does nothing.
Neither does one that stood there before its generation was built, as with overridden gates (``refusals``): it may come
from a file that is applied again and again, or be of an earlier dataset of this name, and nobody has seen what it would
let through. It counts again once it was taken away.
"""

from __future__ import annotations

from typing import Final, TypeVar

from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import rollback
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuiltGeneration, DatasetStatus, GenerationStatus, RolledBack

G = TypeVar("G", bound=BuiltGeneration)

MANUAL: Final = "Manual"
_MAX_NAME_CHARACTERS: Final = 40
"""Of an annotation's value, in a message."""


def may_take_effect(generation: str, status: DatasetStatus, desired: Desired) -> bool:
    """Whether routers may answer from ``generation`` when nobody asks for one by name."""
    if desired.promotion != MANUAL or generation == desired.pinned_generation:
        return True
    if generation == desired.promote and not is_premature(generation, status):
        return True
    if status.table is not None:
        return generation == status.table.generation
    return not any(rollout.referenced_replicas for rollout in status.rollouts)


def is_premature(generation: str, status: DatasetStatus) -> bool:
    """Whether the annotation promoted ``generation`` before it was built, and has stood there since."""
    found = status.find_generation(generation)
    return found is not None and bool(found.premature_promotion)


def promoted_candidate(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The generation that waited and may take effect now: it comes before a newer one. None while none may."""
    generation = waiting_generation(status, desired)
    return generation if generation is not None and may_take_effect(generation.generation, status, desired) else None


def waiting_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The generation of ``status.candidate``, as long as it is of the present spec and is not rejected."""
    generation = None if status.candidate is None else status.find_generation(status.candidate.generation)
    if generation is None or generation.content != desired.content_hash or is_rejected(generation, status):
        return None
    return generation


def read_annotations(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with what the annotations say that promote and reject. While the dataset is suspended, a rejection
    waits."""
    status = _forget_premature(status, situation.desired)
    return status if situation.desired.is_suspended else note_rejection(status, situation)


def _forget_premature(status: DatasetStatus, desired: Desired) -> DatasetStatus:
    """``status`` in which an annotation that was taken away may promote from now on."""

    def forget(generation: G) -> G:
        is_over = generation.premature_promotion not in ("", desired.promote)
        return replace(generation, premature_promotion="") if is_over else generation

    refused = None if status.refused is None else forget(status.refused)
    return replace(status, generations=tuple(map(forget, status.generations)), refused=refused)


def note_rejection(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the generation that the annotation rejects, unless it is in effect or pinned: what serves is left
    by a rollback alone."""
    desired = situation.desired
    generation = status.find_generation(desired.reject)
    if generation is None or _is_in_effect(generation.generation, status) or is_rejected(generation, status):
        return status
    if generation.generation == desired.pinned_generation:
        return status
    mark = RolledBack(generation.generation, generation.fingerprint, generation.content)
    return replace(status, rejected=rollback.drop_oldest((*status.rejected, mark), status))


def is_rejected(generation: GenerationStatus, status: DatasetStatus) -> bool:
    """Whether ``generation``, or another one of the same source and spec, was rejected."""
    return any(rollback.holds_back(mark, generation) for mark in status.rejected)


def without_rejection(status: DatasetStatus, pinned: GenerationStatus) -> DatasetStatus:
    """``status`` in which ``pinned``, which routers are sent to, is not rejected any more."""
    return replace(status, rejected=tuple(mark for mark in status.rejected if not rollback.holds_back(mark, pinned)))


def describe_idle_annotations(status: DatasetStatus, desired: Desired) -> str:
    """A sentence about an annotation that does nothing because of what it names; empty when there is none."""
    if desired.promotion == MANUAL and is_premature(desired.promote, status):
        name = _shorten(desired.promote)
        return (
            f" The annotation promote named {name} before it was built, and does nothing: look at {name}, remove the"
            " annotation, and set it again."
        )
    if desired.promotion == MANUAL and desired.promote and not _is_about(desired.promote, status):
        return f" The annotation promote names {_shorten(desired.promote)}, which does not wait for promotion."
    if desired.reject and _is_in_effect(desired.reject, status):
        return (
            f" The annotation reject names {_shorten(desired.reject)}, which serves: to go back, set spec.generation."
        )
    if desired.reject and status.find_generation(desired.reject) is None:
        return f" The annotation reject names {_shorten(desired.reject)}, which is not there."
    return ""


def _is_about(generation: str, status: DatasetStatus) -> bool:
    """Whether ``generation`` is in effect, waits, or is being rolled out."""
    waits = status.candidate is not None and status.candidate.generation == generation
    is_starting = any(rollout.generation == generation and rollout.is_candidate for rollout in status.rollouts)
    return waits or is_starting or _is_in_effect(generation, status)


def _is_in_effect(generation: str, status: DatasetStatus) -> bool:
    return generation == status.generation or (status.table is not None and generation == status.table.generation)


def _shorten(value: str) -> str:
    return reasons.shorten(value, _MAX_NAME_CHARACTERS)
