"""A rollback: routers are sent from a generation to an older one, which ``spec.generation`` pins. This module marks
what was rolled back from (``status.rolledBack``), says what a mark holds back, and which generation to go back to.

A mark holds back its generation, and any other one of the same source and the same spec, after the pin is taken away
too. It ends

    what                                        where
    the source or the spec changes: what is     find_mark: another fingerprint or content
    built then is not what was rolled back
    its generation, or one of the same, is      with_marks, when routers are sent there
    pinned and served
    more than MOST_MARKS are there              drop_oldest: never one that holds back the newest generation
    the whole status is lost                    it is forgotten with all else. A part that was lost or set back takes
                                                no mark away, though nothing may then be known to serve: routers stay
                                                with what they have
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolledBack

MOST_MARKS: Final = 16
"""As many as the CRD allows."""


def find_mark(generation: GenerationStatus, status: DatasetStatus) -> RolledBack | None:
    """The mark that holds ``generation`` back; None when nothing does."""
    return next((mark for mark in reversed(status.rolled_back) if holds_back(mark, generation)), None)


def holds_back(mark: RolledBack, generation: GenerationStatus) -> bool:
    """Whether ``mark`` is of ``generation``, or of the same source and spec."""
    is_same_data = (mark.fingerprint, mark.content) == (generation.fingerprint, generation.content)
    return mark.generation == generation.generation or is_same_data


def with_marks(status: DatasetStatus, pinned: GenerationStatus) -> tuple[RolledBack, ...]:
    """The marks when routers are sent to ``pinned`` from what ``status.table`` references: none of ``pinned``, and one
    of each newer generation that they leave. There are two while some still answer from what was active before, and
    more when rollouts shard by shard have overtaken one another."""
    marks = tuple(mark for mark in status.rolled_back if not holds_back(mark, pinned))
    if status.table is None:
        return marks
    parts = (part.generation for part in status.table.parts)
    left = map(status.find_generation, dict.fromkeys((status.generation, *parts, status.table.generation)))
    newer = [found for found in left if found is not None and _number(found.generation) > _number(pinned.generation)]
    others = (mark for mark in marks if all(mark.generation != found.generation for found in newer))
    new = (RolledBack(found.generation, found.fingerprint, found.content) for found in newer)
    return drop_oldest((*others, *new), status)


def drop_oldest(marks: tuple[RolledBack, ...], status: DatasetStatus) -> tuple[RolledBack, ...]:
    """At most MOST_MARKS of ``marks``, by number: those that hold back what is newest."""

    def newest_held_back(mark: RolledBack) -> int:
        held = (generation.generation for generation in status.generations if holds_back(mark, generation))
        return max(map(_number, (mark.generation, *held)))

    kept = sorted(marks, key=newest_held_back)[-MOST_MARKS:]
    return tuple(sorted(kept, key=lambda mark: _number(mark.generation)))


def previous_generation(status: DatasetStatus) -> GenerationStatus | None:
    """The generation to go back to: of those that have served, the one that did so last before the active one (before
    the one that replaces it shard by shard), and that neither was rolled back from nor rejected itself. One that nobody
    was ever answered from is none: a candidate that something newer has superseded, say. None when there is none, or
    nothing is active."""
    if not status.generation:
        return None
    table, marks = status.table, (*status.rolled_back, *status.rejected)
    left = table.generation if table is not None and table.is_mixed else status.generation
    served = (
        generation
        for generation in status.generations
        if generation.served_by
        and generation.generation != left
        and not any(holds_back(mark, generation) for mark in marks)
    )
    return max(served, key=lambda generation: generation.served_by, default=None)


def _number(generation: str) -> int:
    return names.read_number(generation)
