"""Generations: which one of the store's is asked for, whether another one is needed, which ones the store keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final, Literal, TypeVar, cast

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import promotion, rollback
from lookupdb_operator.plan.situation import Desired, Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus, BuiltGeneration, DatasetStatus, GenerationStatus, RolloutStatus

G = TypeVar("G", bound=BuiltGeneration)

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
    promoted = promotion.promoted_candidate(status, desired)
    if promoted is not None:
        return promoted
    newest = up_to_date_generation(status, desired)
    return served_generation(status) if newest is not None and is_held_back(newest, status) else newest


def is_held_back(generation: GenerationStatus, status: DatasetStatus) -> bool:
    """Whether ``generation`` is not rolled out, though it is the newest of the present spec and nothing is pinned."""
    return rollback.find_mark(generation, status) is not None or promotion.is_rejected(generation, status)


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
    name, is_rejected = newest.generation, promotion.is_rejected(newest, status)
    reason = reasons.REJECTED if is_rejected else reasons.ROLLED_BACK
    served = served_generation(status)
    is_newer = served is None or names.read_number(served.generation) < names.read_number(name)
    which = f"{name} is newer and" if is_newer else f"That is not of this spec: {name}, the newest that is, is"
    if is_newer and is_of_other_spec(status, desired):
        which = f"That is of an earlier spec: {which}"
    return (
        reason,
        f" {which} of a source that was {'rejected' if is_rejected else 'rolled back from'}: it waits until"
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
