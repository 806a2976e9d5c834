"""Promotion: which generation may take effect, and which one is rejected. ``candidate`` has the rollout that waits.

With ``rollout.promotion: Manual`` a generation takes effect

    when                                        because
    the annotation ``promote`` names it         somebody has looked at it, before or after it was ready
    ``spec.generation`` pins it                 that names it, too
    it is in effect: another rollout of it      the data is the same: a new image or size needs nobody's eyes
    nothing was ever in effect                  there is nothing to compare with, and nothing to ask it beside

An annotation stays, so it names one generation and never the next one. One that names what does not wait does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator.plan import reasons, rollback
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolledBack

MANUAL: Final = "Manual"
_MAX_NAME_CHARACTERS: Final = 40
"""Of an annotation's value, in a message."""


def may_take_effect(generation: str, status: DatasetStatus, desired: Desired) -> bool:
    """Whether routers may answer from ``generation`` when nobody asks for one by name."""
    if desired.promotion != MANUAL or generation in (desired.promote, desired.pinned_generation):
        return True
    if status.table is not None:
        return generation == status.table.generation
    return not any(rollout.referenced_replicas for rollout in status.rollouts)


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


def note_rejection(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the generation that the annotation rejects, unless it is in effect or pinned: what serves is left
    by a rollback alone. While the dataset is suspended, the annotation waits."""
    desired = situation.desired
    generation = None if desired.is_suspended else status.find_generation(desired.reject)
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
