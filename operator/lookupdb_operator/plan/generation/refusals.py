"""A generation that a gate has refused. This module notes it, lets it through when the dataset's annotation says so,
and tells what to do about it.

It is whole in the store, and in no list that a rollout is chosen from: ``status.refused`` names the newest one, until a
newer generation is built or refused. The annotation names the one generation whose gates it overrides. Standing there
before that one was refused, it does nothing: it may come from a file that is applied again and again, and whoever wrote
it has not seen what it would let through.
"""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import checks, generations, history
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus, DatasetStatus, GenerationStatus, RefusedGeneration

MAX_REASON_CHARACTERS: Final = 256
"""Of why a generation was refused, in the list of generations."""
_MAX_MESSAGE_CHARACTERS: Final = 3000
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
    status = generations.add_generation(history.record_override(status, admitted, situation.now), admitted)
    failure = status.failure
    if failure is not None and failure.reason == reasons.GATE_CLOSED:
        failure = None
    status = replace(status, refused=None, failure=failure)
    return checks.answer_requests(status, refused.refresh, refused.slot, generations.last_reading(refused))


def _is_overridden(refused: RefusedGeneration, status: DatasetStatus, situation: Situation) -> bool:
    is_named = situation.dataset.override_gates == refused.generation and not refused.premature_override
    is_asked_for = refused.content == situation.desired.content_hash
    return is_named and is_asked_for and generations.is_up_to_date(refused, status)


def _admitted_generation(refused: RefusedGeneration) -> GenerationStatus:
    return generations.make_generation(GenerationStatus, refused, overridden=refused.message or reasons.GATE_CLOSED)


def with_advice(trouble: Trouble, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble``, with how to let the generation through if it is one of a closed gate, and its builder has not said
    so."""
    refused = status.refused
    if trouble.reason != reasons.GATE_CLOSED or refused is None or refused.content != situation.desired.content_hash:
        return trouble
    message = reasons.shorten(trouble.message, _MAX_MESSAGE_CHARACTERS)
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
