"""The write of each command, and the progress of the change. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.console.dataset import Dataset, Members, NotPossible
from lookupdb_operator.console.facts import format_seconds
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import DatasetStatus

Change = Mapping[str, Any]
"""A merge patch of a LookupDataset."""


def annotate(name: str, value: str) -> Change:
    """Return the change that sets an annotation."""
    return {"metadata": {"annotations": {name: value}}}


def find_candidate(dataset: Dataset, generation: str | None) -> str:
    """Return the candidate, to promote or reject it. Raises NotPossible if it is not ``generation``, or absent."""
    candidate = dataset.candidate
    if not candidate:
        raise NotPossible(f"{dataset.key} has no candidate that waits for promotion")
    if generation not in (None, candidate):
        raise NotPossible(f"{candidate} is the candidate of {dataset.key}, not {generation}")
    return candidate


def find_promotable(dataset: Dataset, generation: str | None) -> str:
    """Return the candidate that the annotation can promote. Raises NotPossible."""
    candidate = find_candidate(dataset, generation)
    if promotion.is_premature(candidate, dataset.parse_status()):
        raise _make_premature(names.PROMOTE, candidate)
    return candidate


def _make_premature(annotation: str, generation: str) -> NotPossible:
    return NotPossible(
        f"the annotation {annotation} named {generation} before it was built, and has no effect",
        hint="remove it from the manifest, and from the dataset, then try again",
    )


def find_rejected(dataset: Dataset, generation: str | None) -> str:
    """Return the generation that a gate has rejected, to override the gates. Raises NotPossible if there is none, or
    it is not ``generation``."""
    status = dataset.parse_status()
    refused, found = status.refused, status.find_generation(generation or "")
    if found is not None and found.overridden:
        raise NotPossible(f"the gates of {generation} of {dataset.key} are overridden already")
    if refused is None:
        raise NotPossible(f"no gate has rejected {generation or 'the newest generation'} of {dataset.key}")
    if generation not in (None, refused.generation):
        raise NotPossible(f"the generation of {dataset.key} that a gate has rejected is {refused.generation}")
    if refused.premature_override:
        raise _make_premature(names.OVERRIDE_GATES, refused.generation)
    return refused.generation


def roll_back(dataset: Dataset, generation: str | None) -> Change:
    """Return the change that pins ``generation``, or the one that served before the active one. Raises NotPossible if
    the store lacks it, or if ``generation`` is None and one is pinned: a command given twice means one rollback. The
    write fails if the dataset has changed meanwhile, because the previous generation may be another one by then."""
    status = dataset.parse_status()
    kept = [stored.generation for stored in status.generations]
    if generation is None:
        generation = _choose_previous(dataset, status)
    elif generation not in kept:
        refused = status.refused
        if refused is None or refused.generation != generation:
            raise NotPossible(
                f"the store holds no {generation} of {dataset.key}: it holds {_join(kept)}",
                hint=f"name one of these; {dataset.command('history')} shows the builds of the others",
            )
        command = dataset.command("override-gates", generation)
        raise NotPossible(
            f"a gate has rejected {generation} of {dataset.key}: {refused.message}",
            hint=f"{command} overrides the gate; the store also holds {_join(kept)}",
        )
    return {"metadata": {"resourceVersion": dataset.resource_version}, "spec": {"generation": generation}}


def _choose_previous(dataset: Dataset, status: DatasetStatus) -> str:
    previous, pinned = promotion.previous_generation(status), dataset.spec.get("generation")
    if pinned is not None:
        back = "" if previous is None else dataset.command("pin", previous.generation)
        further = f", {back} goes back to the one before {pinned}" if back else ""
        raise NotPossible(
            f"{dataset.key} is pinned to {pinned} already, by a rollback or by hand",
            hint=f"{dataset.command('unpin')} removes the pin{further}",
        )
    if previous is None:
        active = status.generation or "nothing"
        others = [found.generation for found in status.generations if found.generation != active]
        if not others:
            raise NotPossible(f"there is nothing to go back to: {active} is active, and the store holds no other one")
        raise NotPossible(
            f"there is nothing to go back to: {active} is active; the others have not served, or were rolled back",
            hint=f"pin one of {_join(others)}: {dataset.command('pin', 'GENERATION')}",
        )
    return previous.generation


def _join(generations: Collection[str], separator: str = ", ") -> str:
    return separator.join(sorted(generations, key=names.read_number)) or "none"


# Progress of a change: done, failed, or what it waits for.


_FIND_OPERATOR: Final = "kubectl get pods -A -l app.kubernetes.io/part-of=lookupdb,app.kubernetes.io/component=operator"


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """The progress of a change."""

    is_done: bool
    failure: str = ""
    """Why waiting will not help; empty while it may."""
    waits_for: str = ""
    outcome: str = ""
    """The outcome, if there are several possible ones."""
    is_taken_up: bool = True
    """True once the operator has seen the change; until then the conditions are about the state before."""


def judge_refresh(dataset: Dataset, value: str, earlier: Collection[str] = (), last: int = 0) -> ChangeProgress:
    """Judge the refresh with the annotation ``value``: answered, then rolled out. ``earlier`` are the generations
    before it. If the source has not changed, one of these answers the refresh. Builds with numbers above ``last`` began
    after it was requested, so one that answers a later refresh answers this one too."""
    failure, refreshed = dataset.status.get("failure") or {}, dataset.status.get("refreshed")
    if refreshed != value and dataset.status.get("refreshedBy", 0) <= last:
        requested = (value, dataset.annotations.get(names.REFRESH) or value)
        if failure.get("refresh") in requested and failure.get("reason") != reasons.WAITING_FOR_SOURCE:
            return ChangeProgress(False, failure=f"{failure.get('reason')}: {failure.get('message')}")
        if withdrawal := _find_withdrawal(dataset, value):
            return ChangeProgress(False, failure=withdrawal)
        # An unanswered refresh makes Built False, with another reason than the failure of an earlier refresh.
        built = dataset.condition("Built")
        is_of_earlier = failure.get("refresh", value) not in requested and built.get("reason") == failure.get("reason")
        is_taken_up = built.get("status") == "False" and not is_of_earlier
        return ChangeProgress(False, waits_for=_describe(dataset, "Built"), is_taken_up=is_taken_up)
    stored = dataset.status.get("generations") or ()
    answers = {generation["generation"] for generation in stored if generation.get("refresh") == refreshed}
    candidate = dataset.candidate
    if candidate and answers and candidate not in answers:
        return ChangeProgress(False, waits_for=f"{_join(answers, ' or ')} to be the candidate in place of {candidate}")
    return _judge_rollout(dataset, answers, earlier)


def _find_withdrawal(dataset: Dataset, value: str) -> str:
    """Return why no build will answer the refresh ``value``: its annotation was removed, or set back to one that is
    answered. Empty while one may."""
    build: Members = dataset.status.get("build") or {}
    asked_for = str(dataset.annotations.get(names.REFRESH, ""))
    if asked_for not in ("", dataset.status.get("refreshed")) or build.get("refresh") == value:
        return ""
    change = f"changed to {asked_for}, which an earlier build has answered" if asked_for else "removed"
    return f"the refresh was withdrawn: the annotation {names.REFRESH} was {change}"


def _judge_rollout(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> ChangeProgress:
    """Judge whether the requested generation serves or waits for promotion. ``answers`` are the generations that a
    refresh has built. If they cannot serve because another one is pinned, the refresh has failed."""
    condition = dataset.condition("RolledOut")
    pinned = dataset.spec.get("generation")
    # The condition reports a pin only once nothing drains or starts any more. If the refresh's generation was removed
    # meanwhile, only the condition shows whether the pin held it back.
    waits = bool(pinned) if answers else condition.get("reason") == reasons.PINNED
    if waits and pinned not in answers:
        why = f"{reasons.PINNED}: spec.generation pins {pinned}; {_join(answers, ' and ')} is built, and waits."
        if not answers or condition.get("reason") == reasons.PINNED:
            why = _describe(dataset, "RolledOut")
        further = f"{dataset.command('unpin')} lets newer generations serve"
        return ChangeProgress(False, failure=f"{why} {further}")
    if not dataset.is_observed:
        return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"), is_taken_up=False)
    if dataset.candidate or condition.get("status") == "True":
        return ChangeProgress(True, outcome=_describe_answer(dataset, answers, earlier))
    if condition.get("reason") in (reasons.ROLLED_BACK, reasons.REJECTED):
        return ChangeProgress(False, failure=_describe(dataset, "RolledOut"))
    return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"))


def _describe_answer(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> str:
    """Return the result of a finished refresh."""
    candidate, serving = dataset.candidate, str(dataset.status.get("generation") or "nothing")
    unchanged = "the source has not changed; " if answers and set(answers) <= set(earlier) else ""
    if candidate:
        return f"{unchanged}{candidate} is a candidate and waits for promotion, {serving} serves"
    if answers and serving not in answers:  # it was rolled back or rejected
        return f"{unchanged}{serving} keeps serving. {dataset.condition('RolledOut').get('message', '')}".strip()
    return f"{unchanged}{serving} keeps serving" if unchanged else f"{serving} serves"


def judge_rollback(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether every router answers from the pinned ``generation``."""
    pinned = dataset.spec.get("generation")
    if pinned != generation:
        now = f"{pinned} is pinned instead" if pinned else "the pin was removed"
        return ChangeProgress(False, failure=f"{generation} is no longer pinned: {now}")
    obstacle = _find_loss(dataset, generation)
    if dataset.is_observed and dataset.condition("RolledOut").get("reason") in reasons.DAMAGE_REASONS:
        obstacle = _describe(dataset, "RolledOut")
    return judge_active(dataset, generation, obstacle)


def judge_unpin(dataset: Dataset) -> ChangeProgress:
    """Judge whether the generation that is desired without a pin serves, or waits for promotion. One that was rolled
    back or rejected is not desired: then the serving one is."""
    if pinned := dataset.spec.get("generation"):
        return ChangeProgress(False, failure=f"{pinned} is pinned again")
    if not dataset.is_observed:
        return ChangeProgress(False, is_taken_up=False)
    found = _judge_rollout(dataset, (), ())
    if not found.is_done and not found.failure:
        return found
    status, outcome = dataset.parse_status(), _describe_answer(dataset, (), ())
    if status.generations and promotion.is_held_back(newest := status.generations[-1], status):
        pin = dataset.command("pin", newest.generation)
        outcome += f"; {newest.generation} is held back until source or spec changes: {pin} serves it anyway"
    return ChangeProgress(True, outcome=outcome)


def judge_promotion(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether every router answers from the promoted ``generation``."""
    obstacle = _find_obstacle(dataset, generation) or _find_loss(dataset, generation)
    return judge_active(dataset, generation, obstacle)


def _find_loss(dataset: Dataset, generation: str) -> str:
    """Return a sentence if the store no longer holds ``generation``; else empty."""
    kept = [stored["generation"] for stored in dataset.status.get("generations") or ()]
    building = (dataset.status.get("build") or {}).get("generation")
    if not dataset.is_observed or generation in (*kept, building):
        return ""
    return f"the store holds no {generation} any more: it holds {_join(kept)}"


def _find_obstacle(dataset: Dataset, generation: str) -> str:
    """Return why the promoted ``generation`` will not serve; empty while it may."""
    pinned, candidate = dataset.spec.get("generation"), dataset.candidate
    if pinned not in (None, generation):
        return f"{reasons.PINNED}: spec.generation pins {pinned}, and {generation} waits"
    if generation in dataset.serving:
        return ""
    status = dataset.parse_status()
    stored = status.find_generation(generation)
    if stored is not None and promotion.is_rejected(stored, status):
        return f"{reasons.REJECTED}: {generation} was rejected, and {status.generation or 'nothing'} serves"
    if candidate not in ("", generation):
        return f"{candidate} is the candidate now, in place of {generation}"
    rollout: Members = dataset.spec.get("rollout") or {}
    promoted = str(dataset.annotations.get(names.PROMOTE, ""))
    if promoted == generation or pinned == generation or rollout.get("promotion") != promotion.MANUAL:
        return ""
    now = f"{promoted} is promoted instead now" if promoted else f"the annotation {names.PROMOTE} was removed"
    return f"{generation} is not promoted any more: {now}"


def judge_active(dataset: Dataset, generation: str, obstacle: str = "") -> ChangeProgress:
    """Judge whether every router answers from ``generation`` alone. If not, ``obstacle`` says why they never will."""
    if dataset.serving == {generation} and dataset.table.get("confirmedAt"):
        return ChangeProgress(True)
    if obstacle:
        return ChangeProgress(False, failure=obstacle)
    # While a promoted candidate's servers are not ready, or something else holds routers back, it stays the candidate,
    # and the condition says why.
    is_waiting = dataset.condition("RolledOut").get("reason") == reasons.CANDIDATE_WAITING
    waits_for_promotion = is_waiting and not dataset.spec.get("suspend") and dataset.candidate == generation
    return ChangeProgress(
        False, waits_for=_describe(dataset, "RolledOut"), is_taken_up=dataset.is_observed and not waits_for_promotion
    )


def describe_silence(dataset: Dataset, seconds: float) -> str:
    """Return what a command waits for if the operator has not reacted for ``seconds``."""
    silence = f"the operator, which has not reacted for {format_seconds(seconds)}"
    if dataset.local_options is not None:
        return f"{silence}: read what its `lookupdb up` prints"
    return f"{silence}: check that its pod is ready, and read its log ({_FIND_OPERATOR})"


def _describe(dataset: Dataset, kind: str) -> str:
    condition = dataset.condition(kind)
    return f"{condition.get('reason', 'the operator')}: {condition.get('message', 'nothing is reconciled yet')}"
