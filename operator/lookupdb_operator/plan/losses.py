"""A generation that a gate has refused. This module notes it, lets it through when the dataset's annotation says so,
and tells what to do about it.

It is whole in the store, and in no list that a rollout is chosen from: ``status.refused`` names the newest one, until a
newer generation is built or refused. The annotation names the one generation whose gates it overrides. Standing there
before that one was refused, it does nothing: it may come from a file that is applied again and again, and whoever wrote
it has not seen what it would let through.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import clock, generations, reasons, refreshes
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import (
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    LostGeneration,
    RefusedGeneration,
    RolloutStatus,
)

# What the store has lost, and what is built again because of it.
#
# A server that starts fetches its shard, and says when the generation is not in the store any more, or when a file of
# it is not what its checksum says. Of the newest generation of the present spec that is noted in status
# (``note_loss``), and it asks for a build as a refresh does (``generations.is_build_needed``), which answers it by
# being another generation. So there is one build for each loss, whenever an operator ends.
#
# What serves is not touched: its servers have their files. It is replaced when the new generation's servers are ready.
#
# With promotion Manual, what serves is rolled out anew from a new pod template before anything else waits for
# promotion. Lost, it cannot be, and what waits would never be offered. So its rollout notes that template
# (``RolloutStatus.lost_template``), and keeps the servers that it has; another pod template has it tried again.
#
# What is lost and not built again: ``loss_advice`` says why, and what to do.
#
# The build waits: 30 s after the first loss, and twice as long after each further one in a row, up to 30 min. A store
# that loses whatever it is given would else be given it all the time. What was there for longer than that was not lost
# in a row. A build that something else asks for waits for nothing. Until a build has begun, the loss is forgotten when
# all servers of the generation are ready: that none reports it means no more than that none looks just now.


LASTING_SECONDS: Final = 3600.0
"""A generation as old as that was not lost as soon as it was built."""
_MOST_IN_STATUS: Final = 999_999_999
"""As the CRD has it."""


def note_loss(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the loss of the newest generation of the present spec, if servers report one; without the one
    that none reports any more; and with that of what serves, if something else waits for promotion beside it."""
    desired = situation.desired
    newest = generations.up_to_date_generation(status, desired)
    if newest is None or desired.is_suspended or desired.pinned_generation or generations.is_held_back(newest, status):
        return status
    status = _with_lost_template(status, newest, situation)
    damage = generations.find_reported_damage(newest, status, situation)
    is_noted = generations.is_lost(newest, status, desired)
    if damage is not None and not is_noted:
        return replace(status, lost=_describe_loss(newest, damage, status.lost, situation))
    if damage is None and is_noted and status.build is None and status.failure is None:
        return _with_found_generation(status) if _is_served(newest, situation) else status
    return status


def _with_lost_template(status: DatasetStatus, newest: GenerationStatus, situation: Situation) -> DatasetStatus:
    """``status`` in which what serves is not rolled out anew from the present pod template, if the store has lost it
    and ``newest`` waits for promotion."""
    served = None if status.table is None else status.find_rollout(status.table.rollout)
    generation = None if served is None else status.find_generation(served.generation)
    if (
        served is None
        or generation is None
        or generations.may_take_effect(newest.generation, status, situation.desired)
    ):
        return status
    template = situation.template_for(generation)
    if template in (served.template, served.lost_template):
        return status
    if generations.find_reported_damage(generation, status, situation) is None:
        return status
    noted = replace(served, lost_template=template)
    return replace(status, rollouts=tuple(noted if rollout is served else rollout for rollout in status.rollouts))


def is_renewal_lost(served: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``served`` cannot be replaced by a rollout of its generation from the present pod template, because the
    store has lost that generation."""
    generation = status.find_generation(served.generation)
    if generation is None or served.lost_template in ("", served.template):
        return False
    return served.lost_template == situation.template_for(generation)


def _describe_loss(
    generation: GenerationStatus, damage: Trouble, before: LostGeneration | None, situation: Situation
) -> LostGeneration:
    is_in_a_row = before is not None and not _has_lasted(generation, situation)
    count = min(before.count + 1, _MOST_IN_STATUS) if before and is_in_a_row else 1
    return LostGeneration(
        generation=generation.generation,
        reason=damage.reason,
        message=reasons.shorten(damage.message, clock.MAX_MESSAGE_CHARACTERS),
        count=count,
        retry_at=clock.format_moment(situation.now + timedelta(seconds=clock.retry_delay(count))),
    )


def _has_lasted(generation: GenerationStatus, situation: Situation) -> bool:
    return (situation.now - clock.parse_moment(generation.built_at)).total_seconds() > LASTING_SECONDS


def _is_served(generation: GenerationStatus, situation: Situation) -> bool:
    """Whether there are servers of ``generation``, and all of them have its files."""
    observed, name = situation.observed, generation.generation
    sets = [shard_set for shard_set in observed.shard_sets if shard_set.generation == name]
    are_ready = all(0 < shard_set.replicas <= shard_set.ready for shard_set in sets)
    return bool(sets) and are_ready and all(pod.ready for pod in observed.pods if pod.generation == name)


def _with_found_generation(status: DatasetStatus) -> DatasetStatus:
    """``status`` when the store has what it seemed to have lost."""
    assert status.lost is not None
    count = max(status.lost.count - 1, 0)
    return replace(status, lost=replace(status.lost, count=count, retry_at="") if count else None)


def must_wait(status: DatasetStatus, situation: Situation) -> bool:
    """Whether nothing but a loss asks for a build, and its time has not come."""
    return remaining_wait(status, situation) > 0 and not generations.is_build_requested(status, situation.desired)


def remaining_wait(status: DatasetStatus, situation: Situation) -> float:
    """Seconds until what was lost is built again; 0 when nothing was, or its time has come."""
    lost, newest = status.lost, generations.up_to_date_generation(status, situation.desired)
    if lost is None or newest is None or not generations.is_lost(newest, status, situation.desired):
        return 0.0
    return clock.remaining_backoff(lost.retry_at, situation.now)


def next_replacement_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until what was lost is built again; None when nothing waits for that alone."""
    return remaining_wait(status, situation) if status.build is None and must_wait(status, situation) else None


def describe_replacement(status: DatasetStatus, situation: Situation) -> str:
    """What becomes of a damaged generation of the present spec: a sentence to add."""
    if situation.desired.pinned_generation:
        return " Nothing is built in its place while a generation is pinned: take spec.generation away."
    if status.lost is None or not must_wait(status, situation):
        return ""
    return f" It is built again at {status.lost.retry_at}."


# What becomes of a generation that the store has lost, and what to do about it: for the conditions that tell of
# servers which cannot have it.
#
# the generation                               is built again the newest of the present spec               by itself
# (``losses``) pinned                                       no: nothing but itself would serve. It is brought back into
# the store, or spec.generation is changed what serves, while the newest is held back   no: the source that it was built
# from is not there any more, and the present one may be the one that was rolled back from, or rejected. Whoever did
# that says when the source is as it should be any other                                    no: something newer replaces
# it


_MAX_LOSS_CHARACTERS: Final = 1000
"""Of what servers say, so that there is room for what to do."""


def with_loss_advice(trouble: Trouble, generation: str, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble`` of servers of ``generation``; if the store has lost that, with what becomes of it and what to do."""
    if trouble.reason not in reasons.DAMAGE_REASONS:
        return trouble
    message = reasons.shorten(trouble.message, _MAX_LOSS_CHARACTERS).rstrip(".")
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
        may_serve = generations.may_take_effect(newest.generation, status, desired)
        return f"{newest.generation}, which is built, replaces it{'' if may_serve else ' when it is promoted'}"
    when = f" at {status.lost.retry_at}" if status.lost is not None and must_wait(status, situation) else ""
    return f"it is built again by itself{when}; at once, when the annotation {names.REFRESH} gets another value"


def _advise_held_back(newest: GenerationStatus, status: DatasetStatus) -> str:
    verdict = "rejected" if generations.is_rejected(newest, status) else "rolled back from"
    return (
        f"nothing is built in its place by itself, because {newest.generation}, the newest of this spec, was {verdict}:"
        f" when the source is as it should be, give the annotation {names.REFRESH} another value; or set"
        f" spec.generation to {newest.generation}"
    )


MAX_REASON_CHARACTERS: Final = 256
"""Of why a generation was refused, in the list of generations."""
_MAX_REFUSAL_CHARACTERS: Final = 3000
"""Of a builder's message, so that there is room for what to do."""


def note_refusal(status: DatasetStatus, build: BuildStatus, result: BuildResult, situation: Situation) -> DatasetStatus:
    """``status`` when ``build`` has ended with ``result``: with the generation that its gates refused, if there is
    one."""
    if result.reason != reasons.GATE_CLOSED or not result.file_bytes:
        return status
    if result.generation == build.generation:
        return replace(status, refused=_refused_generation(build, result, situation))
    refused = status.refused
    if refused is None or refused.generation != result.generation or refused.content != build.content:
        return status
    # The source was read again, and is as it was.
    read_by = names.read_number(build.generation)
    again = replace(refused, refresh=build.refresh, slot=build.slot, verified_by=read_by, refreshed_at=build.started_at)
    return replace(status, refused=again)


def find_admitted(status: DatasetStatus, build: BuildStatus, result: BuildResult) -> GenerationStatus | None:
    """The generation of which ``build`` says that a gate has refused it, and that was let through since: the source is
    as it was for that one, and nobody asks whether the gate is closed. None for any other ``result``."""
    if result.reason != reasons.GATE_CLOSED or result.generation == build.generation:
        return None
    found = status.find_generation(result.generation)
    if found is None or (found.content, found.fingerprint) != (build.content, result.fingerprint):
        return None
    return found


def _refused_generation(build: BuildStatus, result: BuildResult, situation: Situation) -> RefusedGeneration:
    annotation = situation.dataset.override_gates
    return generations.make_generation(
        RefusedGeneration,
        generations.describe_built(build, result, situation.desired),
        slot="" if result.adopted_from else build.slot,
        message=reasons.shorten(_first_line(result.message), MAX_REASON_CHARACTERS),
        premature_override=annotation if annotation == build.generation else "",
    )


def _first_line(message: str) -> str:
    return message.partition("\n")[0]


def override_gates(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` when the annotation names the generation that was refused: it is one like any other now, and the
    refresh that it was built for is answered."""
    refused = status.refused
    if refused is None:
        return status
    if refused.premature_override not in ("", situation.dataset.override_gates):
        refused = replace(refused, premature_override="")
        status = replace(status, refused=refused)
    if not _is_overridden(refused, status, situation):
        return status
    admitted = _admitted_generation(refused)
    status = generations.add_generation(refreshes.record_override(status, admitted, situation.now), admitted)
    failure = status.failure
    if failure is not None and failure.reason == reasons.GATE_CLOSED:
        failure = None
    status = replace(status, refused=None, failure=failure)
    return refreshes.answer_requests(status, refused.refresh, refused.slot, generations.last_reading(refused))


def _is_overridden(refused: RefusedGeneration, status: DatasetStatus, situation: Situation) -> bool:
    is_named = situation.dataset.override_gates == refused.generation and not refused.premature_override
    is_asked_for = refused.content == situation.desired.content_hash
    return is_named and is_asked_for and generations.is_up_to_date(refused, status)


def _admitted_generation(refused: RefusedGeneration) -> GenerationStatus:
    return generations.make_generation(GenerationStatus, refused, overridden=refused.message or reasons.GATE_CLOSED)


def with_refusal_advice(trouble: Trouble, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble``, with how to let the generation through if it is one of a closed gate, and its builder has not said
    so."""
    refused = status.refused
    if trouble.reason != reasons.GATE_CLOSED or refused is None or refused.content != situation.desired.content_hash:
        return trouble
    message = reasons.shorten(trouble.message, _MAX_REFUSAL_CHARACTERS)
    is_told = f"{names.OVERRIDE_GATES}={refused.generation} " in message
    advice = _describe_override(refused, situation, is_told=is_told)
    return Trouble(trouble.reason, f"{message}\n{advice}" if advice else message)


def _describe_override(refused: RefusedGeneration, situation: Situation, *, is_told: bool) -> str:
    """How ``refused`` is let through, unless that ``is_told``; and why the annotation that is there does not."""
    name, annotation = refused.generation, situation.dataset.override_gates
    if refused.premature_override:
        return (
            f"the annotation {names.OVERRIDE_GATES} named {name} before it was refused, and does nothing: look at"
            f" {name}, remove the annotation, and set it again to let {name} through"
        )
    advice = "" if is_told else f"to let {name} through as it is, set the annotation {names.OVERRIDE_GATES} to {name}"
    if not annotation:
        return advice
    subject = f"the annotation {names.OVERRIDE_GATES}" if is_told else f"{advice}; it"
    return f"{subject} names {annotation}, which is not what was refused"


def describe_useless_override(status: DatasetStatus, situation: Situation) -> str:
    """A sentence for the end of a message, if the annotation does nothing and never did; else empty."""
    annotation, refused = situation.dataset.override_gates, status.refused
    if refused is not None and refused.generation == annotation:
        why = "which is of another spec, or of a source that was read again since, and is not let through"
        return f" The annotation {names.OVERRIDE_GATES} names {annotation}, {why}."
    if not annotation or 0 < names.read_number(annotation) <= status.last_generation:
        return ""
    return f" The annotation {names.OVERRIDE_GATES} names {annotation}, which no gate has refused."
