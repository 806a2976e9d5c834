"""Which write a verb asks for, and whether what it asked for is done: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.generation import promotion, rollback
from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.status import DatasetStatus

Change = Mapping[str, Any]
"""A merge patch of a LookupDataset."""


class NotPossible(LookupdbError):
    """The dataset has nothing to which it could be done."""


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """How far something that was asked for is."""

    is_done: bool
    failure: str = ""
    """Why it will not come by waiting; empty while it may."""
    waits_for: str = ""


def refresh(value: str) -> Change:
    """Ask for a build from the source as it is now."""
    return _annotate(names.REFRESH, value)


def promote(dataset: Dataset, generation: str | None) -> Change:
    """Let the candidate take effect. Raises NotPossible when there is none, or another one."""
    return _annotate(names.PROMOTE, _candidate(dataset, generation))


def is_premature(dataset: Dataset, generation: str) -> bool:
    """Whether the annotation promotes ``generation`` since before it was built: it has to be taken away first."""
    return promotion.is_premature(generation, dataset.parse_status())


def withdraw_promotion() -> Change:
    """Take the annotation away that promotes."""
    return {"metadata": {"annotations": {names.PROMOTE: None}}}


def judge_withdrawal(dataset: Dataset, generation: str) -> ChangeProgress:
    """Whether the operator has seen that the annotation does not promote ``generation`` any more."""
    is_done = not is_premature(dataset, generation)
    return ChangeProgress(is_done, waits_for="the operator to see that the annotation was taken away")


def reject(dataset: Dataset, generation: str | None) -> Change:
    """Give the candidate up. Raises NotPossible when there is none, or another one."""
    return _annotate(names.REJECT, _candidate(dataset, generation))


def roll_back(dataset: Dataset, generation: str | None) -> Change:
    """Pin ``generation``, or the one that served before the active one. Raises NotPossible when it is not in the store,
    and when none is named while one is pinned: whoever asks twice means one rollback. The write fails when the dataset
    has changed since: what is the previous one then may be another."""
    status = dataset.parse_status()
    kept = [generation.generation for generation in status.generations]
    if generation is None:
        generation = _choose_previous(dataset, status)
    elif generation not in kept:
        raise NotPossible(f"the store holds no {generation} of {dataset.key}: it holds {_join(kept)}")
    return {"metadata": {"resourceVersion": dataset.resource_version}, "spec": {"generation": generation}}


def _choose_previous(dataset: Dataset, status: DatasetStatus) -> str:
    previous, pinned = rollback.previous_generation(status), dataset.spec.get("generation")
    if pinned is not None:
        further = "" if previous is None else f", --to {previous.generation} goes back to what served before {pinned}"
        raise NotPossible(
            f"{dataset.key} is pinned to {pinned} already, by a rollback or by hand",
            hint=f"kubectl lookupdb unpin -n {dataset.namespace} {dataset.name} goes forward again{further}",
        )
    if previous is None:
        active = status.generation or "nothing"
        kept = [generation.generation for generation in status.generations]
        raise NotPossible(
            f"there is nothing to go back to: {active} is active, and nothing else that the store holds is known to"
            f" have served and was not rolled back from; it holds {_join(kept)}",
            hint="--to names one of them all the same",
        )
    return previous.generation


def unpin() -> Change:
    """Let the newest generation be asked for again."""
    return {"spec": {"generation": None}}


def pinned_generation(change: Change) -> str:
    """The generation that ``change`` pins."""
    return str(change["spec"]["generation"])


def judge_refresh(dataset: Dataset, value: str) -> ChangeProgress:
    """How far the refresh of the annotation ``value`` is: answered, rolled out."""
    failure = dataset.status.get("failure") or {}
    if dataset.status.get("refreshed") != value:
        if failure.get("refresh") == value and failure.get("reason") != reasons.WAITING_FOR_SOURCE:
            return ChangeProgress(False, failure=f"{failure.get('reason')}: {failure.get('message')}")
        return ChangeProgress(False, waits_for=_describe(dataset, "Built"))
    stored = dataset.status.get("generations") or ()
    answers = {generation["generation"] for generation in stored if generation.get("refresh") == value}
    candidate = str((dataset.status.get("candidate") or {}).get("generation") or "")
    if candidate and answers and candidate not in answers:
        return ChangeProgress(
            False, waits_for=f"{' or '.join(sorted(answers))} to be the candidate in place of {candidate}"
        )
    return _judge_rollout(dataset, answers)


def _judge_rollout(dataset: Dataset, answers: Collection[str]) -> ChangeProgress:
    """Whether what is asked for serves, or waits for somebody who promotes it. ``answers`` are the generations that a
    refresh came to: one that does not serve because another one is pinned comes by nobody's waiting."""
    condition = dataset.condition("RolledOut")
    pinned = dataset.spec.get("generation")
    # The condition says last that something waits: first what drains, or starts. Without a generation that answers, one
    # that was trimmed since, it alone knows whether anything does.
    waits = bool(pinned) if answers else condition.get("reason") == reasons.PINNED
    if waits and pinned not in answers:
        further = f"kubectl lookupdb unpin -n {dataset.namespace} {dataset.name} lets newer data serve"
        return ChangeProgress(False, failure=f"{_describe_pin(dataset, answers)} {further}")
    if dataset.status.get("candidate") or condition.get("status") == "True":
        return ChangeProgress(True)
    if condition.get("reason") in (reasons.ROLLED_BACK, reasons.REJECTED):
        return ChangeProgress(False, failure=_describe(dataset, "RolledOut"))
    return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"))


def judge_active(dataset: Dataset, generation: str) -> ChangeProgress:
    """Whether every router answers from ``generation``, and none of its shards from another one."""
    table = dataset.status.get("table") or {}
    serving = {table.get("generation"), *(part["generation"] for part in table.get("parts") or ())}
    if serving == {generation} and table.get("confirmedAt"):
        return ChangeProgress(True)
    return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"))


def _annotate(name: str, value: str) -> Change:
    return {"metadata": {"annotations": {name: value}}}


def _candidate(dataset: Dataset, generation: str | None) -> str:
    candidate = str((dataset.status.get("candidate") or {}).get("generation") or "")
    if not candidate:
        raise NotPossible(f"{dataset.key} has no candidate that waits for promotion")
    if generation not in (None, candidate):
        raise NotPossible(f"{candidate} is the candidate of {dataset.key}, not {generation}")
    return candidate


def _describe(dataset: Dataset, kind: str) -> str:
    condition = dataset.condition(kind)
    return f"{condition.get('reason', 'the operator')}: {condition.get('message', 'it has not looked yet')}"


def _describe_pin(dataset: Dataset, answers: Collection[str]) -> str:
    if not answers or dataset.condition("RolledOut").get("reason") == reasons.PINNED:
        return _describe(dataset, "RolledOut")
    built = " and ".join(sorted(answers, key=names.read_number))
    return f"{reasons.PINNED}: spec.generation pins {dataset.spec['generation']}; {built} is built, and waits."


def _join(generations: list[str]) -> str:
    return ", ".join(generations) or "none"
