"""Generations: which one of the store's is asked for, whether another one is needed, which ones the store keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final, Literal, TypeVar, cast

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import (
    BuildStatus,
    BuiltGeneration,
    DatasetStatus,
    GenerationStatus,
    RolledBack,
    RolloutStatus,
)

# A rollback: routers are sent from a generation to an older one, which ``spec.generation`` pins. This module marks
# what was rolled back from (``status.rolledBack``), says what a mark holds back, and which generation to go back to.
#
# A mark holds back its generation, and any other one of the same source and the same spec, after the pin is taken away
# too. It ends
#
#     what                                        where
#     the source or the spec changes: what is     find_mark: another fingerprint or content
#     built then is not what was rolled back
#     its generation, or one of the same, is      with_marks, when routers are sent there
#     pinned and served
#     more than MOST_MARKS are there              drop_oldest: never one that holds back the newest generation
#     the whole status is lost                    it is forgotten with all else. A part that was lost or set back takes
#                                                 no mark away, though nothing may then be known to serve: routers stay
#                                                 with what they have


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


# Promotion: which generation may take effect, and which one is rejected. ``candidate`` has the rollout that waits.
#
# With ``rollout.promotion: Manual`` a generation takes effect
#
#     when                                        because
#     the annotation ``promote`` names it, and    somebody has looked at it, before or after it was ready
#     did not do so before it was built
#     ``spec.generation`` pins it                 that names it, too
#     it is in effect: another rollout of it      the data is the same: a new image or size needs nobody's eyes
#     nothing was ever in effect                  there is nothing to compare with, and nothing to ask it beside
#
# An annotation stays, so it names one generation and never the next one. One that names what does not wait does
# nothing. Neither does one that stood there before its generation was built, as with overridden gates (``refusals``):
# it may come from a file that is applied again and again, or be of an earlier dataset of this name, and nobody has seen
# what it would let through. It counts again once it was taken away.


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
    return replace(status, rejected=drop_oldest((*status.rejected, mark), status))


def is_rejected(generation: GenerationStatus, status: DatasetStatus) -> bool:
    """Whether ``generation``, or another one of the same source and spec, was rejected."""
    return any(holds_back(mark, generation) for mark in status.rejected)


def without_rejection(status: DatasetStatus, pinned: GenerationStatus) -> DatasetStatus:
    """``status`` in which ``pinned``, which routers are sent to, is not rejected any more."""
    return replace(status, rejected=tuple(mark for mark in status.rejected if not holds_back(mark, pinned)))


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


_MAX_NAMES: Final = 10
"""Of generations in one message."""


def newest_matching_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The newest generation that was built to the present spec."""
    return next(
        (generation for generation in reversed(status.generations) if generation.content == desired.content_hash), None
    )


def find_compared_generation(status: DatasetStatus, build: BuildStatus) -> GenerationStatus | None:
    """The generation with whose source ``build`` compares what it reads: the newest of its spec with that fingerprint.
    None when ``build`` compares with none, or that one is not known any more."""
    return next(
        (
            generation
            for generation in reversed(status.generations)
            if (generation.content, generation.fingerprint) == (build.content, build.unless_fingerprint)
        ),
        None,
    )


def target_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The generation that is asked for: what serves, while the dataset is suspended; else the pinned one; else the one
    that waited and was promoted; else the newest of the present spec; else what serves, while that one is held back or
    the pinned one is not there. None while nothing is there that could serve."""
    if desired.is_suspended:
        return served_generation(status)
    if desired.pinned_generation:
        return status.find_generation(desired.pinned_generation) or served_generation(status)
    promoted = promoted_candidate(status, desired)
    if promoted is not None:
        return promoted
    newest = up_to_date_generation(status, desired)
    return served_generation(status) if newest is not None and is_held_back(newest, status) else newest


def is_held_back(generation: GenerationStatus, status: DatasetStatus) -> bool:
    """Whether ``generation`` is not rolled out, though it is the newest of the present spec and nothing is pinned."""
    return find_mark(generation, status) is not None or is_rejected(generation, status)


def has_fixed_target(status: DatasetStatus, desired: Desired) -> bool:
    """Whether something else than the newest generation is asked for. Then no candidate comes before it."""
    newest = up_to_date_generation(status, desired)
    return (
        desired.is_suspended or bool(desired.pinned_generation) or (newest is not None and is_held_back(newest, status))
    )


def served_generation(status: DatasetStatus) -> GenerationStatus | None:
    """The generation that the newest routing table references."""
    return None if status.table is None else status.find_generation(status.table.generation)


def is_of_other_spec(status: DatasetStatus, desired: Desired) -> bool:
    """Whether data of another spec serves, and nobody has asked for it by name: what is of the present one is held
    back."""
    newest, served = up_to_date_generation(status, desired), served_generation(status)
    if desired.pinned_generation or newest is None or served is None or not is_held_back(newest, status):
        return False
    return served.content != desired.content_hash


def is_pin_missing(status: DatasetStatus, desired: Desired) -> bool:
    """Whether a generation is pinned that is not there: it was trimmed, never built, or has no whole files."""
    return bool(desired.pinned_generation) and status.find_generation(desired.pinned_generation) is None


def diagnose_pin(status: DatasetStatus, desired: Desired) -> Trouble | None:
    """That the pinned generation is not there, and which ones are."""
    pinned, build = desired.pinned_generation, status.build
    if not is_pin_missing(status, desired):
        return None
    if build is not None and build.generation == pinned:
        return None
    if status.refused is not None and status.refused.generation == pinned:
        why = f"a gate has refused it: set the annotation {names.OVERRIDE_GATES} to {pinned} to let it through"
        return Trouble(
            reasons.PINNED_GENERATION_MISSING,
            f"spec.generation is {pinned}, and {why}, name another one, or take spec.generation away",
        )
    others = [generation.generation for generation in status.generations[-_MAX_NAMES:]]
    kept = f"the store keeps {', '.join(others)}" if others else "the store keeps none that is known"
    return Trouble(
        reasons.PINNED_GENERATION_MISSING,
        f"spec.generation is {pinned}, and there is no such generation: {kept}. Name one of these, or take"
        " spec.generation away",
    )


def explain_target(status: DatasetStatus, desired: Desired) -> tuple[str, str]:
    """The reason that RolledOut gives when what is asked for serves, and why that is not the newest generation: empty
    when it is."""
    newest = up_to_date_generation(status, desired)
    if desired.pinned_generation:
        waits = newest is not None and newest.generation != desired.pinned_generation
        waiting = f"; {newest.generation} is built, and waits" if newest is not None and waits else ""
        return reasons.PINNED, f" spec.generation pins {desired.pinned_generation}{waiting}."
    if newest is None or not is_held_back(newest, status):
        return reasons.UP_TO_DATE, ""
    name, was_rejected = newest.generation, is_rejected(newest, status)
    reason = reasons.REJECTED if was_rejected else reasons.ROLLED_BACK
    served = served_generation(status)
    is_newer = served is None or names.read_number(served.generation) < names.read_number(name)
    which = f"{name} is newer and" if is_newer else f"That is not of this spec: {name}, the newest that is, is"
    if is_newer and is_of_other_spec(status, desired):
        which = f"That is of an earlier spec: {which}"
    return (
        reason,
        f" {which} of a source that was {'rejected' if was_rejected else 'rolled back from'}: it waits until"
        f" the source changes, or until spec.generation is {name}.",
    )


def up_to_date_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The newest generation of the present spec, unless a refresh was answered since its source was last read: then
    what serves is newer, though it may be of another spec."""
    generation = newest_matching_generation(status, desired)
    return generation if generation is not None and is_up_to_date(generation, status) else None


def is_up_to_date(generation: BuiltGeneration, status: DatasetStatus) -> bool:
    """Whether the source of ``generation`` was read for the last refresh that was answered, or later. Builds run one
    after the other: a higher number has read later."""
    return last_reading(generation) >= status.refreshed_by


def last_reading(generation: BuiltGeneration) -> int:
    """The number of the last build that read the source of ``generation`` as it is in it."""
    return max(names.read_number(generation.generation), generation.verified_by)


def is_build_needed(status: DatasetStatus, desired: Desired) -> bool:
    """Whether the store lacks what is asked for: what a user or the schedule asks for, or what it has lost."""
    newest = up_to_date_generation(status, desired)
    return is_build_requested(status, desired) or (newest is not None and is_lost(newest, status, desired))


def is_build_requested(status: DatasetStatus, desired: Desired) -> bool:
    """Whether the store lacks what a user or the schedule asks for: a generation of the present spec, the answer to a
    refresh, or that to a check of the schedule. A refresh annotation that was removed asks for nothing. A refresh that
    a generation of another spec has answered asks for one of this spec, too, even after its annotation is removed."""
    newest = up_to_date_generation(status, desired)
    return newest is None or desired.refresh not in ("", newest.refresh) or _is_check_due(status)


def is_lost(generation: GenerationStatus, status: DatasetStatus, desired: Desired) -> bool:
    """Whether ``generation`` is to be built again because the store has lost it. Nothing is while a generation is
    pinned, because another one would not serve; nor what is held back, because the same source would come to the
    same."""
    lost = status.lost
    is_noted = lost is not None and bool(lost.retry_at) and lost.generation == generation.generation
    return is_noted and not desired.pinned_generation and not is_held_back(generation, status)


def _is_check_due(status: DatasetStatus) -> bool:
    return status.schedule is not None and bool(status.schedule.due)


def diagnose_damage(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why servers cannot fetch ``generation`` from the store any more, as they say or have said. Whatever is built then
    is built anew, even from the same source."""
    reported = find_reported_damage(generation, status, situation)
    if reported is not None or status.lost is None or not is_lost(generation, status, situation.desired):
        return reported
    return Trouble(status.lost.reason, status.lost.message)


def find_reported_damage(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why servers cannot fetch ``generation`` from the store, as they say now, or said when they gave their turn up."""
    troubles = [pod.trouble for pod in situation.observed.pods if pod.generation == generation.generation]
    ticket = status.rollout_ticket
    # It gave its turn up, and its pods are gone. The ticket of another generation says nothing of this one.
    if ticket is not None and ticket.given_up and ticket.digest == situation.template_for(generation):
        troubles.append(Trouble(ticket.reason, ticket.message))
    return next(
        (trouble for trouble in troubles if trouble is not None and trouble.reason in reasons.DAMAGE_REASONS), None
    )


def count_shards(status: DatasetStatus, rollout: RolloutStatus) -> int:
    """How many shards ``rollout`` has."""
    generation = status.find_generation(rollout.generation)
    return 0 if generation is None else generation.shards


def describe_built(build: BuildStatus, result: BuildResult, desired: Desired) -> BuiltGeneration:
    """What ``build`` has left whole in the store, as its builder reported it. For what was adopted the source was not
    read: it answers no refresh, and is as old as it was."""
    return BuiltGeneration(
        generation=build.generation,
        content=build.content,
        fingerprint=result.fingerprint,
        records=result.records,
        bytes=result.file_bytes,
        largest_shard_bytes=result.largest_shard_bytes,
        shards=desired.shards,
        normalize=desired.normalize,
        value_format=cast(Literal["json", "raw"], desired.value_format),
        built_at=result.built_at or build.started_at,
        refresh="" if result.adopted_from else build.refresh,
        success_file=result.success_file,
        refreshed_at=(result.adopted_from and result.built_at) or build.started_at,
        adopted_from=result.adopted_from,
        premature_promotion=desired.promote if desired.promote == build.generation else "",
    )


def make_generation(kind: type[G], built: BuiltGeneration, **members: Any) -> G:
    """``built`` as a generation of ``kind``, with the ``members`` that only that kind has."""
    common: dict[str, Any] = {member.name: getattr(built, member.name) for member in fields(BuiltGeneration)}
    return kind(**common, **members)


def add_generation(status: DatasetStatus, generation: GenerationStatus) -> DatasetStatus:
    """``status`` with a new whole generation. Added twice, it is there once."""
    others = tuple(existing for existing in status.generations if existing.generation != generation.generation)
    return replace(status, generations=_sorted((*others, generation)))


def trim_generations(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the newest ``keepGenerations`` generations, and those that are asked for, pinned, rolled out or
    active; while it is suspended with all."""
    desired = situation.desired
    if desired.is_suspended:
        return status
    used = {status.generation, desired.pinned_generation, *(rollout.generation for rollout in status.rollouts)}
    newest_match = newest_matching_generation(status, desired)
    used |= {reference.generation for reference in (status.table, newest_match) if reference is not None}
    newest = {generation.generation for generation in status.generations[-desired.keep_generations :]}
    kept = tuple(generation for generation in status.generations if generation.generation in newest | used)
    return replace(status, generations=kept)


def _sorted(generations: Iterable[GenerationStatus]) -> tuple[GenerationStatus, ...]:
    return tuple(sorted(generations, key=lambda generation: names.read_number(generation.generation)))
