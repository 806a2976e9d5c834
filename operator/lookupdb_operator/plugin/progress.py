"""Judge the progress of a change: done, failed, or what it waits for. No I/O. ``changes`` has the changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan import reasons
from lookupdb_operator.plugin.changes import Dataset, Members
from lookupdb_operator.plugin.views import format_seconds

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


def judge_withdrawal(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether the operator has seen that the annotation no longer promotes ``generation``."""
    is_done = not promotion.is_premature(generation, dataset.parse_status())
    return ChangeProgress(is_done, waits_for="the operator to see that the annotation was removed")


def judge_refresh(dataset: Dataset, value: str, earlier: Collection[str] = ()) -> ChangeProgress:
    """Judge the refresh with the annotation ``value``: answered, then rolled out. ``earlier`` are the generations
    before it; one of them answers it if the source has not changed."""
    failure = dataset.status.get("failure") or {}
    if dataset.status.get("refreshed") != value:
        if failure.get("refresh") == value and failure.get("reason") != reasons.WAITING_FOR_SOURCE:
            return ChangeProgress(False, failure=f"{failure.get('reason')}: {failure.get('message')}")
        if withdrawal := _find_withdrawal(dataset, value):
            return ChangeProgress(False, failure=withdrawal)
        is_taken_up = _is_refresh_taken_up(dataset, value)
        return ChangeProgress(False, waits_for=_describe(dataset, "Built"), is_taken_up=is_taken_up)
    stored = dataset.status.get("generations") or ()
    answers = {generation["generation"] for generation in stored if generation.get("refresh") == value}
    candidate = _candidate(dataset)
    if candidate and answers and candidate not in answers:
        return ChangeProgress(False, waits_for=f"{_join(answers, 'or')} to be the candidate in place of {candidate}")
    return _judge_rollout(dataset, answers, earlier)


def _find_withdrawal(dataset: Dataset, value: str) -> str:
    """Return why the refresh ``value`` will not be answered: its annotation was changed before a build began. Empty
    while it may be answered."""
    build: Members = dataset.status.get("build") or {}
    asked_for = str(dataset.annotations.get(names.REFRESH, ""))
    if asked_for == value or build.get("refresh") == value:
        return ""
    if not asked_for:
        return f"the refresh was withdrawn: the annotation {names.REFRESH} was removed"
    return _describe_later_refresh(dataset, asked_for)


def _describe_later_refresh(dataset: Dataset, later: str) -> str:
    so_far = "is answered" if dataset.status.get("refreshed") == later else "is not answered yet"
    status = f"kubectl lookupdb status -n {dataset.namespace} {dataset.name}"
    return f"another refresh, {later}, has replaced this one, and {so_far}: {status} shows its outcome"


def _is_refresh_taken_up(dataset: Dataset, value: str) -> bool:
    """Return whether the condition ``Built`` is about the refresh ``value``, or about what it waits for. An unanswered
    refresh makes it False, and ends the failure of an earlier one."""
    built, failure = dataset.condition("Built"), dataset.status.get("failure") or {}
    is_of_earlier = failure.get("refresh", value) != value and built.get("reason") == failure.get("reason")
    return built.get("status") == "False" and not is_of_earlier


def _judge_rollout(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> ChangeProgress:
    """Judge whether the requested generation serves or waits for promotion. ``answers`` are the generations of a
    refresh: one that does not serve because another one is pinned is a failure."""
    condition = dataset.condition("RolledOut")
    pinned = dataset.spec.get("generation")
    # The condition reports a waiting candidate only after anything that drains or starts. If the refresh's generation
    # was removed meanwhile, only the condition knows whether a candidate waits.
    waits = bool(pinned) if answers else condition.get("reason") == reasons.PINNED
    if waits and pinned not in answers:
        further = f"kubectl lookupdb unpin -n {dataset.namespace} {dataset.name} lets newer generations serve"
        return ChangeProgress(False, failure=f"{_describe_pin(dataset, answers)} {further}")
    if not dataset.is_observed:
        return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"), is_taken_up=False)
    if _candidate(dataset) or condition.get("status") == "True":
        return ChangeProgress(True, outcome=_describe_answer(dataset, answers, earlier))
    if condition.get("reason") in (reasons.ROLLED_BACK, reasons.REJECTED):
        return ChangeProgress(False, failure=_describe(dataset, "RolledOut"))
    return ChangeProgress(False, waits_for=_describe(dataset, "RolledOut"))


def _describe_pin(dataset: Dataset, answers: Collection[str]) -> str:
    if not answers or dataset.condition("RolledOut").get("reason") == reasons.PINNED:
        return _describe(dataset, "RolledOut")
    pinned = dataset.spec["generation"]
    return f"{reasons.PINNED}: spec.generation pins {pinned}; {_join(answers, 'and')} is built, and waits."


def _describe_answer(dataset: Dataset, answers: Collection[str], earlier: Collection[str]) -> str:
    """Return the result of a finished refresh."""
    candidate, serving = _candidate(dataset), str(dataset.status.get("generation") or "nothing")
    unchanged = "the source has not changed: " if answers and set(answers) <= set(earlier) else ""
    if candidate:
        return f"{unchanged}{candidate} is a candidate and waits for promotion, {serving} serves"
    if answers and serving not in answers:  # it was rolled back or rejected
        return f"{unchanged}{serving} serves on. {dataset.condition('RolledOut').get('message', '')}".strip()
    return f"{unchanged}{serving} serves on" if unchanged else f"{serving} serves"


def judge_rollback(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether every router answers from the pinned ``generation``."""
    pinned = dataset.spec.get("generation")
    if pinned != generation:
        now = f"{pinned} is pinned instead now" if pinned else "the pin was removed"
        return ChangeProgress(False, failure=f"{generation} is not pinned any more: {now}")
    return _judge_active_unless(dataset, generation, _find_loss(dataset, generation))


def judge_promotion(dataset: Dataset, generation: str, replaced: str = "") -> ChangeProgress:
    """Judge whether every router answers from the promoted ``generation`` instead of ``replaced``."""
    obstacle = _find_obstacle(dataset, generation, replaced) or _find_loss(dataset, generation)
    return _judge_active_unless(dataset, generation, obstacle)


def _judge_active_unless(dataset: Dataset, generation: str, obstacle: str) -> ChangeProgress:
    found = judge_active(dataset, generation)
    return ChangeProgress(False, failure=obstacle) if obstacle and not found.is_done else found


def _find_loss(dataset: Dataset, generation: str) -> str:
    """Return a sentence if the store no longer holds ``generation``; else empty."""
    kept = [stored["generation"] for stored in dataset.status.get("generations") or ()]
    building = (dataset.status.get("build") or {}).get("generation")
    if not dataset.is_observed or generation in (*kept, building):
        return ""
    return f"the store holds no {generation} any more: it holds {', '.join(kept) or 'none'}"


def _find_obstacle(dataset: Dataset, generation: str, replaced: str) -> str:
    """Return why the promoted ``generation`` will not serve; empty while it may."""
    pinned, candidate = dataset.spec.get("generation"), _candidate(dataset)
    if pinned not in (None, generation):
        return f"{reasons.PINNED}: spec.generation pins {pinned}, and {generation} waits"
    if generation in _serving(dataset):
        return ""
    status = dataset.parse_status()
    stored = status.find_generation(generation)
    if stored is not None and promotion.is_rejected(stored, status):
        return f"{reasons.REJECTED}: {generation} was rejected, and {status.generation or 'nothing'} serves"
    if candidate not in ("", generation):
        return f"{candidate} is the candidate now, in place of {generation}"
    if not candidate and _is_overtaken(dataset, generation, replaced):
        return f"{active_generation(dataset)} serves, which is newer than {generation}"
    return _find_revocation(dataset, generation)


def active_generation(dataset: Dataset) -> str:
    """Return the active generation of the routing table; empty if there is none."""
    return str((dataset.status.get("table") or {}).get("generation") or "")


def _is_overtaken(dataset: Dataset, generation: str, replaced: str) -> bool:
    """Return whether a newer generation serves instead of ``generation``. The generation ``replaced`` may be newer,
    too, if its spec was reverted: it counts only if the present spec requests it again."""
    active = active_generation(dataset)
    is_newer = bool(active) and names.read_number(active) > names.read_number(generation)
    is_asked_for = dataset.is_observed and dataset.condition("RolledOut").get("status") == "True"
    return is_newer and (active != replaced or is_asked_for)


def _find_revocation(dataset: Dataset, generation: str) -> str:
    """Return a sentence if the annotation no longer promotes ``generation``; else empty."""
    rollout: Members = dataset.spec.get("rollout") or {}
    promoted = str(dataset.annotations.get(names.PROMOTE, ""))
    is_needed = rollout.get("promotion") == promotion.MANUAL and dataset.spec.get("generation") != generation
    if promoted == generation or not is_needed:
        return ""
    now = f"{promoted} is promoted instead now" if promoted else f"the annotation {names.PROMOTE} was removed"
    return f"{generation} is not promoted any more: {now}"


def judge_active(dataset: Dataset, generation: str) -> ChangeProgress:
    """Judge whether every router answers from ``generation`` alone."""
    table: Members = dataset.status.get("table") or {}
    if _serving(dataset) == {generation} and table.get("confirmedAt"):
        return ChangeProgress(True)
    # While a promoted candidate's servers are not ready, or something else holds routers back, it stays the candidate,
    # and the condition says why.
    waits = dataset.condition("RolledOut").get("reason") == reasons.CANDIDATE_WAITING and not dataset.spec.get(
        "suspend"
    )
    waits_for_promotion = waits and _candidate(dataset) == generation
    return ChangeProgress(
        False,
        waits_for=_describe(dataset, "RolledOut"),
        is_taken_up=dataset.is_observed and not waits_for_promotion,
    )


def _serving(dataset: Dataset) -> set[str | None]:
    """Return the generations in the routing table; empty if there is no table yet."""
    table: Members = dataset.status.get("table") or {}
    return {table.get("generation"), *(part["generation"] for part in table.get("parts") or ())}


def describe_silence(seconds: float) -> str:
    """Return what it waits for if the operator has not reacted for ``seconds``."""
    return (
        f"the operator, which has not reacted for {format_seconds(seconds)}: check that its pod is ready, and read"
        f" its log ({_FIND_OPERATOR})"
    )


def _candidate(dataset: Dataset) -> str:
    return str((dataset.status.get("candidate") or {}).get("generation") or "")


def _describe(dataset: Dataset, kind: str) -> str:
    condition = dataset.condition(kind)
    return f"{condition.get('reason', 'the operator')}: {condition.get('message', 'it has not looked yet')}"


def _join(generations: Collection[str], conjunction: str) -> str:
    return f" {conjunction} ".join(sorted(generations, key=names.read_number))
