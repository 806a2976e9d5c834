"""The whole generations that the store holds: which one is asked for, which ones stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.status import Generation, Status


def newest_matching_generation(status: Status, desired: Desired) -> Generation | None:
    """The newest generation that was built to the present spec."""
    return next(
        (generation for generation in reversed(status.generations) if generation.content == desired.content_hash), None
    )


def deployable_generation(status: Status, desired: Desired) -> Generation | None:
    """The newest generation of the present spec, unless a refresh was answered since its source was last read: then
    what serves is newer, though it may be of another spec."""
    generation = newest_matching_generation(status, desired)
    return generation if generation is not None and is_up_to_date(generation, status) else None


def is_up_to_date(generation: Generation, status: Status) -> bool:
    """Whether the source of ``generation`` was read for the last refresh that was answered, or later. Builds run one
    after the other: a higher number has read later."""
    return max(number(generation.generation), generation.verified_by) >= status.refreshed_by


def add_generation(status: Status, generation: Generation) -> Status:
    """``status`` with a new whole generation. Added twice, it is there once."""
    others = tuple(known for known in status.generations if known.generation != generation.generation)
    return replace(status, generations=_sorted((*others, generation)))


def trim_generations(status: Status, situation: Situation) -> Status:
    """``status`` with the newest ``keepGenerations`` generations, and those that are asked for, rolled out or
    active."""
    desired = situation.desired
    used = {status.generation, *(rollout.generation for rollout in status.rollouts)}
    used |= {
        user.generation for user in (status.table, newest_matching_generation(status, desired)) if user is not None
    }
    newest = {generation.generation for generation in status.generations[-desired.keep_generations :]}
    kept = tuple(generation for generation in status.generations if generation.generation in newest | used)
    return replace(status, generations=kept)


def number(name: str) -> int:
    """12 for ``g12``, 34 for ``r34``; 0 for what is not such a name."""
    digits = name[1:]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _sorted(generations: Iterable[Generation]) -> tuple[Generation, ...]:
    return tuple(sorted(generations, key=lambda generation: number(generation.generation)))
