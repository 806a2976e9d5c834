"""What people are told when a dataset's conditions change: Kubernetes Events, from data to data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lookupdb_operator import status
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import Condition, Status


@dataclass(frozen=True, slots=True)
class Report:
    """One Event to be."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def transitions(old: Status, new: Status) -> tuple[Report, ...]:
    """One report for each reason that a condition changed to. What tells of a failure is a warning.

    A failure shows in several conditions, at once or one after the other (an image that cannot be pulled: of a router,
    then of a builder); people are told of it once.
    """
    known = {condition.reason for condition in old.conditions} - reasons.WELL
    told: dict[str, Report] = {}
    for before, after in _changed(old, new):
        if after.reason in known and not _went_down(before, after):
            continue
        warns = _went_down(before, after) or (after.reason not in reasons.WELL and not _begins(after, new))
        report = Report("Warning" if warns else "Normal", after.reason, after.message)
        if after.reason not in told or after.type == status.DEGRADED:
            told[after.reason] = report
    return tuple(told.values())


def _changed(old: Status, new: Status) -> Iterator[tuple[Condition | None, Condition]]:
    for after in new.conditions:
        before = old.condition(after.type)
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            continue
        if before is None and after.type == status.DEGRADED and after.status == "False":
            continue  # that nothing is wrong with a new dataset is no news
        yield before, after


def _begins(after: Condition, new: Status) -> bool:
    """Whether something is only not ready yet: nothing is wrong with it."""
    degraded = new.condition(status.DEGRADED)
    return after.type == status.READY and degraded is not None and degraded.status == "False"


def _went_down(before: Condition | None, after: Condition) -> bool:
    return after.type == status.READY and after.status != "True" and before is not None and before.status == "True"
