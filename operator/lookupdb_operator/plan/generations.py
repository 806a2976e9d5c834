"""The whole generations that the store holds: which one is asked for, which ones stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lookupdb_operator.plan.situation import Wish
from lookupdb_operator.status import Generation, Status


def wanted(status: Status, wish: Wish) -> Generation | None:
    """The newest generation of what is asked for."""
    return next((one for one in reversed(status.generations) if one.content == wish.content), None)


def added(status: Status, generation: Generation) -> Status:
    """``status`` with a new whole generation. Told twice of one, it is there once."""
    others = tuple(one for one in status.generations if one.generation != generation.generation)
    return replace(status, generations=_sorted((*others, generation)))


def trimmed(status: Status, wish: Wish) -> Status:
    """``status`` with the newest ``wish.keep`` generations, and those that are wanted, rolled out or active."""
    used = {status.generation, *(rollout.generation for rollout in status.rollouts)}
    used |= {one.generation for one in (status.table, wanted(status, wish)) if one is not None}
    newest = {one.generation for one in status.generations[-wish.keep :]}
    kept = tuple(one for one in status.generations if one.generation in newest | used)
    return replace(status, generations=kept)


def number(name: str) -> int:
    """12 for ``g12``, 34 for ``r34``; 0 for what is not such a name."""
    digits = name[1:]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _sorted(generations: Iterable[Generation]) -> tuple[Generation, ...]:
    return tuple(sorted(generations, key=lambda one: number(one.generation)))
