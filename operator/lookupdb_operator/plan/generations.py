"""Generations: which one should serve, whether another one is needed, and which ones the store keeps."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any, Final, TypeVar

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble, format_moment, parse_moment, remaining_seconds
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.turns import Desired, Situation
from lookupdb_operator.status import (
    BuildStatus,
    BuiltGeneration,
    DatasetStatus,
    GenerationStatus,
    LostGeneration,
    RolledBack,
    RolloutStatus,
    replace,
)

# A rollback sends routers from a generation to an older one, which ``spec.generation`` pins. The generation that was
# left is marked (``status.rolledBack``).
#
# A mark holds back its generation, and any other one of the same source and spec, also after the pin is removed. It
# ends when
#
#     event                                       where
#     the source or the spec changes              holds_back: another fingerprint or content
#     its generation, or one with the same data,  with_marks, when routers are sent there
#     is pinned and serves
#     there are more than MOST_MARKS              drop_oldest: never the one that holds back the newest generation
#     the whole status is lost                    with everything else. A status that was lost in part or set back keeps
#                                                 its marks, even if it does not know what serves


MOST_MARKS: Final = 16
"""As many as the CRD allows."""


def holds_back(mark: RolledBack, generation: GenerationStatus) -> bool:
    """Return whether ``mark`` is of ``generation``, or of the same source and spec."""
    is_same_data = (mark.fingerprint, mark.content) == (generation.fingerprint, generation.content)
    return mark.generation == generation.generation or is_same_data


def with_marks(status: DatasetStatus, pinned: GenerationStatus) -> tuple[RolledBack, ...]:
    """Return the marks after routers go back to ``pinned``: none for ``pinned``, and one for each newer generation that
    they leave. These may be several during a cutover or a shard-by-shard rollout."""
    marks = tuple(mark for mark in status.rolled_back if not holds_back(mark, pinned))
    if status.table is None:
        return marks
    parts = (part.generation for part in status.table.parts)
    left = map(status.find_generation, dict.fromkeys((status.generation, *parts, status.table.generation)))
    oldest = names.read_number(pinned.generation)
    newer = [found for found in left if found is not None and names.read_number(found.generation) > oldest]
    others = (mark for mark in marks if all(mark.generation != found.generation for found in newer))
    new = (RolledBack(found.generation, found.fingerprint, found.content) for found in newer)
    return drop_oldest((*others, *new), status)


def drop_oldest(marks: tuple[RolledBack, ...], status: DatasetStatus) -> tuple[RolledBack, ...]:
    """Keep the MOST_MARKS of ``marks`` that hold back the newest generations, ordered by number."""

    def newest_held_back(mark: RolledBack) -> int:
        held = (generation.generation for generation in status.generations if holds_back(mark, generation))
        return max(map(names.read_number, (mark.generation, *held)))

    kept = sorted(marks, key=newest_held_back)[-MOST_MARKS:]
    return tuple(sorted(kept, key=lambda mark: names.read_number(mark.generation)))


def previous_generation(status: DatasetStatus) -> GenerationStatus | None:
    """Return the generation to go back to: the last to serve before the active one, or before the one whose
    shard-by-shard rollout is under way. It was neither rolled back from nor rejected. None if there is none or
    nothing is active."""
    if not status.generation:
        return None
    table = status.table
    left = table.generation if table is not None and table.is_mixed else status.generation
    served = (
        generation
        for generation in status.generations
        if generation.served_by and generation.generation != left and not is_held_back(generation, status)
    )
    return max(served, key=lambda generation: generation.served_by, default=None)


# Promotion: which generation may take effect, and which one is rejected. ``status.candidate`` has the rollout that
# waits.
#
# With ``rollout.promotion: Manual`` a generation takes effect if
#
#     condition                                   because
#     the annotation ``promote`` names it, and    somebody has inspected it, before or after it was ready
#     did not do so before it was built
#     ``spec.generation`` pins it                 a pin names it, too
#     it is in effect, from another rollout       the data is the same: a new image or size needs no approval
#     nothing was ever in effect                  there is nothing to compare with
#
# An annotation stays, so it names one generation and never the next one. If that generation does not wait, the
# annotation does nothing. It also does nothing if it was there before the generation was built, because its author has
# not seen the data: it may come from a file that is applied again and again, or from an earlier dataset of this name.
# It has an effect once it is removed and set again. Overridden gates follow the same rule (``builds``).


G = TypeVar("G", bound=BuiltGeneration)
MANUAL: Final = "Manual"
_MAX_NAME_CHARACTERS: Final = 40
"""Maximum length of an annotation's value in a message."""


def may_take_effect(generation: str, status: DatasetStatus, desired: Desired) -> bool:
    """Return whether routers may answer from ``generation`` by default, without a request that names it."""
    if desired.promotion != MANUAL or generation == desired.pinned_generation:
        return True
    if generation == desired.promote and not is_premature(generation, status):
        return True
    if status.table is not None:
        return generation == status.table.generation
    return not any(rollout.referenced_replicas for rollout in status.rollouts)


def is_premature(generation: str, status: DatasetStatus) -> bool:
    """Return whether the annotation named ``generation`` already before it was built."""
    found = status.find_generation(generation)
    return found is not None and bool(found.premature_promotion)


def promoted_candidate(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The promoted candidate, if it may take effect now, even before a newer generation; None if there is none."""
    generation = waiting_generation(status, desired)
    return generation if generation is not None and may_take_effect(generation.generation, status, desired) else None


def waiting_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The generation of ``status.candidate``, if it is of the current spec and not rejected."""
    generation = None if status.candidate is None else status.find_generation(status.candidate.generation)
    if generation is None or generation.content != desired.content_hash or is_rejected(generation, status):
        return None
    return generation


def read_annotations(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with what the promote and reject annotations say. A premature promotion is forgotten once its
    annotation is removed or changed; the same annotation, set again, then promotes. While the dataset is suspended, a
    rejection waits.
    """
    desired = situation.desired

    def forget(generation: G) -> G:
        is_over = generation.premature_promotion not in ("", desired.promote)
        return replace(generation, premature_promotion="") if is_over else generation

    refused = None if status.refused is None else forget(status.refused)
    status = replace(status, generations=tuple(map(forget, status.generations)), refused=refused)
    return status if desired.is_suspended else note_rejection(status, situation)


def note_rejection(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the generation that the annotation rejects, unless it is in effect or pinned."""
    desired = situation.desired
    generation = status.find_generation(desired.reject)
    if generation is None or _is_in_effect(generation.generation, status) or is_rejected(generation, status):
        return status
    if generation.generation == desired.pinned_generation:
        return status
    mark = RolledBack(generation.generation, generation.fingerprint, generation.content)
    return replace(status, rejected=drop_oldest((*status.rejected, mark), status))


def is_rejected(generation: GenerationStatus, status: DatasetStatus) -> bool:
    """Return whether ``generation``, or another one of the same source and spec, was rejected."""
    return any(holds_back(mark, generation) for mark in status.rejected)


def is_known(name: str, status: DatasetStatus) -> bool:
    """Return whether a generation ``name`` was ever begun. An annotation that names such a generation may stay."""
    return name.startswith("g") and 0 < names.read_number(name) <= status.last_generation


def describe_idle_annotations(status: DatasetStatus, desired: Desired) -> str:
    """A sentence about an annotation that has no effect because of the generation that it names; empty if there is
    none."""
    promoted, rejected = (reasons.shorten(name, _MAX_NAME_CHARACTERS) for name in (desired.promote, desired.reject))
    if desired.promotion == MANUAL and is_premature(desired.promote, status):
        return (
            f" The annotation promote named {promoted} before it was built, and has no effect: inspect {promoted},"
            " remove the annotation, and set it again."
        )
    waiting = {rollout.generation for rollout in status.rollouts if rollout.is_candidate}
    if status.candidate is not None:
        waiting.add(status.candidate.generation)
    served = (names.read_number(found.generation) for found in status.generations if found.served_by)
    is_past = 0 < names.read_number(desired.promote) <= max(served, default=0)
    is_idle = desired.promote not in ("", *waiting) and not is_past and not _is_in_effect(desired.promote, status)
    if desired.promotion == MANUAL and is_idle:
        return f" The annotation promote names {promoted}, which does not wait for promotion."
    if desired.reject and _is_in_effect(desired.reject, status):
        return f" The annotation reject names {rejected}, which serves: to go back, set spec.generation."
    if desired.reject and not is_known(desired.reject, status):
        return f" The annotation reject names {rejected}, which does not exist."
    return ""


def _is_in_effect(generation: str, status: DatasetStatus) -> bool:
    return generation == status.generation or (status.table is not None and generation == status.table.generation)


_MAX_NAMES: Final = 10
"""Maximum number of generations named in one message."""


def newest_matching_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """The newest generation that was built to the current spec."""
    return next(
        (generation for generation in reversed(status.generations) if generation.content == desired.content_hash), None
    )


def target_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """Return the desired generation; None while none could serve. The first of these that applies: the active one
    while suspended; the pinned one (the active one if the pinned one is missing); the promoted candidate; the newest
    of the spec (the active one while the newest is held back)."""
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
    """Return whether ``generation``, or another one with the same data, was rolled back from or rejected. It is then
    rolled out only if it is pinned."""
    return any(holds_back(mark, generation) for mark in (*status.rolled_back, *status.rejected))


def served_generation(status: DatasetStatus) -> GenerationStatus | None:
    """The generation that the newest routing table references."""
    return None if status.table is None else status.find_generation(status.table.generation)


def is_of_other_spec(status: DatasetStatus, desired: Desired) -> bool:
    """Return whether unpinned data of another spec serves because the newest of the current spec is held back."""
    newest, served = up_to_date_generation(status, desired), served_generation(status)
    if desired.pinned_generation or newest is None or served is None or not is_held_back(newest, status):
        return False
    return served.content != desired.content_hash


def is_pin_missing(status: DatasetStatus, desired: Desired) -> bool:
    """Return whether the pinned generation is missing: trimmed, never built, or without whole files."""
    return bool(desired.pinned_generation) and status.find_generation(desired.pinned_generation) is None


def diagnose_pin(status: DatasetStatus, desired: Desired) -> Trouble | None:
    """Report that the pinned generation is missing, and which ones exist."""
    pinned, build = desired.pinned_generation, status.build
    if not is_pin_missing(status, desired):
        return None
    if build is not None and build.generation == pinned:
        return None
    if status.refused is not None and status.refused.generation == pinned:
        why = f"a gate has rejected it: set the annotation {names.OVERRIDE_GATES} to {pinned} to override the gate"
        return Trouble(
            reasons.PINNED_GENERATION_MISSING,
            f"spec.generation is {pinned}, and {why}, name another one, or remove spec.generation",
        )
    others = [generation.generation for generation in status.generations[-_MAX_NAMES:]]
    kept = f": the store keeps {', '.join(others)}. Name one of these, or" if others else ", nor any other:"
    return Trouble(
        reasons.PINNED_GENERATION_MISSING,
        f"spec.generation is {pinned}, and there is no such generation{kept} remove spec.generation",
    )


def explain_target(status: DatasetStatus, desired: Desired) -> tuple[str, str]:
    """Return the reason of RolledOut while the target serves, and what keeps a newer generation from serving; empty if
    nothing does."""
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
    which = f"{name} is newer, but" if is_newer else f"That is not of this spec: the newest of this spec is {name}, but"
    if is_newer and is_of_other_spec(status, desired):
        which = f"That is of an earlier spec: {which}"
    return (
        reason,
        f" {which} its data were {'rejected' if was_rejected else 'rolled back'}: it waits until"
        f" source or spec changes; to serve it anyway, set spec.generation to {name}.",
    )


def up_to_date_generation(status: DatasetStatus, desired: Desired) -> GenerationStatus | None:
    """Return the newest generation of the current spec. None if a refresh was answered after its source was last read:
    then the active generation has newer data, though of another spec.
    """
    generation = newest_matching_generation(status, desired)
    return generation if generation is not None and is_up_to_date(generation, status) else None


def is_up_to_date(generation: BuiltGeneration, status: DatasetStatus) -> bool:
    """Return whether the build for the last answered refresh, or a later one, found the source as in ``generation``."""
    return last_reading(generation) >= status.refreshed_by


def last_reading(generation: BuiltGeneration) -> int:
    """The number of the last build that read the source and found it as in ``generation``."""
    return max(names.read_number(generation.generation), generation.verified_by)


def is_build_needed(status: DatasetStatus, desired: Desired) -> bool:
    """Return whether a build is needed: a user or the schedule asks for one, or the store has lost a generation."""
    newest = up_to_date_generation(status, desired)
    return is_build_requested(status, desired) or (newest is not None and is_lost(newest, status, desired))


def is_build_requested(status: DatasetStatus, desired: Desired) -> bool:
    """Return whether a build is due: no generation is of the current spec, or a refresh or a check is requested.
    Removing the refresh annotation requests nothing. If a generation of another spec has answered the refresh, one of
    this spec is still requested."""
    newest = up_to_date_generation(status, desired)
    return (
        newest is None
        or desired.refresh not in ("", newest.refresh)
        or (status.schedule is not None and bool(status.schedule.due))
    )


def is_lost(generation: GenerationStatus, status: DatasetStatus, desired: Desired) -> bool:
    """Return whether ``generation`` must be built again because the store lost it. False while a generation is
    pinned. False if ``generation`` is held back, because the same source would give the same data."""
    lost = status.lost
    is_noted = lost is not None and bool(lost.retry_at) and lost.generation == generation.generation
    return is_noted and not desired.pinned_generation and not is_held_back(generation, status)


def diagnose_damage(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Return why servers cannot fetch ``generation`` from the store, or could not before. The next build then writes a
    new generation, even from the same source."""
    reported = find_reported_damage(generation, status, situation)
    if reported is not None or status.lost is None or not is_lost(generation, status, situation.desired):
        return reported
    return Trouble(status.lost.reason, status.lost.message)


def find_reported_damage(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Return why servers cannot fetch ``generation``, as they report now or when their rollout gave its slot up."""
    troubles = [pod.trouble for pod in situation.observed.pods if pod.generation == generation.generation]
    ticket = status.rollout_ticket
    # The rollout gave its slot up, and its pods are gone. The ticket of another generation does not count.
    if ticket is not None and ticket.given_up and ticket.digest == situation.template_for(generation):
        troubles.append(Trouble(ticket.reason, ticket.message))
    return next(
        (trouble for trouble in troubles if trouble is not None and trouble.reason in reasons.DAMAGE_REASONS), None
    )


def count_shards(status: DatasetStatus, rollout: RolloutStatus) -> int:
    """Number of shards of ``rollout``."""
    generation = status.find_generation(rollout.generation)
    return 0 if generation is None else generation.shards


def describe_built(build: BuildStatus, result: BuildResult, desired: Desired) -> BuiltGeneration:
    """Return the complete generation that ``build`` put into the store. An adopted one answers no refresh and keeps its
    age."""
    spec = desired.spec
    return BuiltGeneration(
        generation=build.generation,
        content=build.content,
        fingerprint=result.fingerprint,
        records=result.records,
        bytes=result.file_bytes,
        largest_shard_bytes=result.largest_shard_bytes,
        shards=spec.shards,
        normalize=spec.key.normalize,
        key_columns=spec.key.columns,
        separator=spec.key.separator,
        value_format=spec.value.format,
        built_at=result.built_at or build.started_at,
        source_modified_at=result.source_modified_at,
        refresh="" if result.adopted_from else build.refresh,
        success_file=result.success_file,
        refreshed_at=((result.adopted_from or spec.source.pushed) and result.built_at) or build.started_at,
        adopted_from=result.adopted_from,
        premature_promotion=desired.promote if desired.promote == build.generation else "",
    )


def make_generation(kind: type[G], built: BuiltGeneration, **members: Any) -> G:
    """``built`` as a generation of ``kind``, with the ``members`` that only that kind has."""
    common: dict[str, Any] = {member.name: getattr(built, member.name) for member in fields(BuiltGeneration)}
    return kind(**common, **members)


def add_generation(status: DatasetStatus, generation: GenerationStatus) -> DatasetStatus:
    """Return ``status`` with a new whole generation. It replaces one of the same name."""
    others = tuple(existing for existing in status.generations if existing.generation != generation.generation)
    ordered = sorted((*others, generation), key=lambda item: names.read_number(item.generation))
    return replace(status, generations=tuple(ordered))


def trim_generations(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the newest ``keepGenerations`` generations, those in use, and, if more than one is kept, the one
    to go back to. While the dataset is suspended, all stay."""
    desired = situation.desired
    if desired.is_suspended:
        return status
    used = {status.generation, desired.pinned_generation, *(rollout.generation for rollout in status.rollouts)}
    newest_match, keep = newest_matching_generation(status, desired), desired.spec.keep_generations
    previous = previous_generation(status) if keep > 1 else None
    used |= {reference.generation for reference in (status.table, newest_match, previous) if reference is not None}
    newest = {generation.generation for generation in status.generations[-keep:]}
    kept = tuple(generation for generation in status.generations if generation.generation in newest | used)
    return replace(status, generations=kept)


# Losses: generations that the store has lost, and builds that replace them.
#
# A server that starts fetches its shard, and reports if the generation is not in the store or a file does not match its
# checksum. If that is the newest generation of the current spec, the status notes the loss (``note_loss``), which
# requests a build as a refresh does (``is_build_needed``) until a new generation exists. So each loss causes one build,
# even if an operator ends in between.
#
# The active generation stays: its servers have their files. It is replaced when the new generation's servers are ready.
#
# With promotion Manual, the active generation is rolled out from a new pod template before another one waits for
# promotion. If the store has lost the active generation, that is impossible, and RolledOut says to promote the other.
#
# The build waits 30 s after the first loss, and twice as long after each further one in a row, up to 30 min. Otherwise
# a store that loses everything would be filled all the time. The loss of a generation older than ``LASTING_SECONDS``
# restarts the count. A build with another reason does not wait. If all servers of the generation get ready before a
# build has begun, the loss is forgotten.


LASTING_SECONDS: Final = 3600.0
"""Seconds. If a generation was older than this when it was lost, losses are counted from 1 again."""
_MOST_LOSSES: Final = 999_999_999
"""The CRD's maximum."""


def note_loss(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` with the loss of the newest generation of the current spec, while servers report one."""
    desired = situation.desired
    newest = up_to_date_generation(status, desired)
    if newest is None or desired.is_suspended or desired.pinned_generation or is_held_back(newest, status):
        return status
    damage, before = find_reported_damage(newest, status, situation), status.lost
    if before is None or not is_lost(newest, status, desired):
        if damage is None:
            return status
        age = (situation.now - parse_moment(newest.built_at)).total_seconds()
        is_in_a_row = before is not None and age <= LASTING_SECONDS
        count = min(before.count + 1, _MOST_LOSSES) if before is not None and is_in_a_row else 1
        lost = LostGeneration(
            generation=newest.generation,
            reason=damage.reason,
            message=reasons.shorten(damage.message, reasons.MAX_MESSAGE_CHARACTERS),
            count=count,
            retry_at=format_moment(situation.now + timedelta(seconds=reasons.retry_delay(count))),
        )
        return replace(status, lost=lost)
    if damage is not None or status.build is not None or status.failure is not None:
        return status
    # The store has the generation after all if there are servers, and all of them have its files.
    sets = [item for item in situation.observed.shard_sets if item.generation == newest.generation]
    pods = (pod for pod in situation.observed.pods if pod.generation == newest.generation)
    if not sets or not all(0 < item.replicas <= item.ready for item in sets) or not all(pod.ready for pod in pods):
        return status
    count = before.count - 1
    return replace(status, lost=replace(before, count=count, retry_at="") if count > 0 else None)


def remaining_rebuild_wait(status: DatasetStatus, situation: Situation) -> float:
    """Seconds until a lost generation is built again. 0 if its backoff has passed, or if a build is requested
    anyway."""
    lost, newest = status.lost, up_to_date_generation(status, situation.desired)
    if lost is None or newest is None or not is_lost(newest, status, situation.desired):
        return 0.0
    if is_build_requested(status, situation.desired):
        return 0.0
    return remaining_seconds(lost.retry_at, situation.now)


# Advice about a generation that the store has lost, for the conditions of servers that cannot fetch it.
#
#     the generation                      is it built again?
#     the newest of the current spec      yes
#     pinned                              no: a new one would not serve. Restore it in the store, or change the pin
#     serves while the newest is held     no: its source is gone, and the current source may be the one that was rolled
#     back                                back from or rejected. The user refreshes when the source is right
#     any other                           no: a newer one replaces it


_MAX_LOSS_CHARACTERS: Final = 1000
"""Maximum length of what servers report, which leaves room for the advice."""


def with_loss_advice(trouble: Trouble, generation: str, status: DatasetStatus, situation: Situation) -> Trouble:
    """Return ``trouble``, which servers of ``generation`` report. If the store has lost the generation, add what
    happens next and what to do."""
    if trouble.reason not in reasons.DAMAGE_REASONS:
        return trouble
    message = reasons.shorten(trouble.message, _MAX_LOSS_CHARACTERS).rstrip(".")
    return Trouble(trouble.reason, f"{message}\n{_advise_on_loss(generation, status, situation)}")


def _advise_on_loss(generation: str, status: DatasetStatus, situation: Situation) -> str:
    desired = situation.desired
    if desired.is_suspended:
        return "nothing is built while spec.suspend is true"
    if desired.pinned_generation == generation:
        return (
            f"spec.generation pins {generation}, so no build can replace it: restore it in"
            " the store, name another generation, or remove spec.generation"
        )
    if is_pin_missing(status, desired):
        return "no other generation is built while one is pinned: remove spec.generation"
    if desired.pinned_generation:
        return f"{desired.pinned_generation}, which spec.generation pins, replaces it"
    newest = up_to_date_generation(status, desired)
    if newest is None:
        return "a generation of the current spec is built, and replaces it"
    if is_held_back(newest, status):
        verdict = "rejected" if is_rejected(newest, status) else "rolled back from"
        return (
            f"nothing is built in its place automatically, because {newest.generation}, the newest of this spec, was"
            f" {verdict}: when the source is correct, set the annotation {names.REFRESH} to another value; or set"
            f" spec.generation to {newest.generation}"
        )
    if newest.generation != generation:
        may_serve = may_take_effect(newest.generation, status, desired)
        return f"{newest.generation}, which is built, replaces it{'' if may_serve else ' when it is promoted'}"
    when = (
        f" at {status.lost.retry_at}" if status.lost is not None and remaining_rebuild_wait(status, situation) else ""
    )
    return f"it is built again automatically{when}; to build now, set the annotation {names.REFRESH} to another value"
