"""Which write a verb asks for: pure. ``progress`` judges what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.plan.generation import promotion, rollback
from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.status import DatasetStatus

Change = Mapping[str, Any]
"""A merge patch of a LookupDataset."""


class NotPossible(LookupdbError):
    """The dataset has nothing to which it could be done."""


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
        raise _missing_error(dataset, status, generation)
    return {"metadata": {"resourceVersion": dataset.resource_version}, "spec": {"generation": generation}}


def _missing_error(dataset: Dataset, status: DatasetStatus, generation: str) -> NotPossible:
    kept, refused = [stored.generation for stored in status.generations], status.refused
    if refused is None or refused.generation != generation:
        return NotPossible(f"the store holds no {generation} of {dataset.key}: it holds {_join(kept)}")
    annotate = f"kubectl annotate lds -n {dataset.namespace} {dataset.name}"
    withdraw = f"{annotate} {names.OVERRIDE_GATES}- && " if refused.premature_override else ""
    return NotPossible(
        f"a gate has refused {generation} of {dataset.key}: {refused.message}",
        hint=f"{withdraw}{annotate} --overwrite {names.OVERRIDE_GATES}={generation} lets it through as it is;"
        f" to go back to, the store holds {_join(kept)}",
    )


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


def _annotate(name: str, value: str) -> Change:
    return {"metadata": {"annotations": {name: value}}}


def _candidate(dataset: Dataset, generation: str | None) -> str:
    candidate = str((dataset.status.get("candidate") or {}).get("generation") or "")
    if not candidate:
        raise NotPossible(f"{dataset.key} has no candidate that waits for promotion")
    if generation not in (None, candidate):
        raise NotPossible(f"{candidate} is the candidate of {dataset.key}, not {generation}")
    return candidate


def _join(generations: list[str]) -> str:
    return ", ".join(generations) or "none"
