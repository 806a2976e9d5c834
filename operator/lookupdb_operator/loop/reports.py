"""The Kubernetes Events about a dataset whose conditions change, from data to data; and how often they are posted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from lookupdb_operator import status
from lookupdb_operator.model import ObservedDataset, Plan
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import Condition, DatasetStatus

Key = tuple[str, str]

_PROGRESS_EVERY: Final = 5.0
"""Seconds between two writes of a status in which only progress has changed."""
_EVENTS_AT_ONCE: Final = 10
_EVENT_EVERY: Final = 30.0
"""Seconds until a dataset that has had all of its events of one reason may have another one of it."""


@dataclass(frozen=True, slots=True)
class EventReport:
    """One Event to be."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def list_event_reports(old: DatasetStatus, new: DatasetStatus) -> tuple[EventReport, ...]:
    """One report for each reason that a condition changed to. What tells of a failure is a warning.

    A failure shows in several conditions, at once or one after the other (an image that cannot be pulled: of a router,
    then of a builder); people are told of it once.
    """
    known = {condition.reason for condition in old.conditions} - reasons.HEALTHY_REASONS
    reports: dict[str, EventReport] = {}
    for before, after in _list_changes(old, new):
        if after.reason in known and not _has_stopped_serving(before, after):
            continue
        warns = _has_stopped_serving(before, after) or (
            after.reason not in reasons.HEALTHY_REASONS and not _is_only_starting(after, new)
        )
        report = EventReport("Warning" if warns else "Normal", after.reason, after.message)
        if after.reason not in reports or after.type == status.DEGRADED:
            reports[after.reason] = report
    return (*reports.values(), *_list_skipped_checks(old, new), *_list_renewed_tables(old, new))


def _list_renewed_tables(old: DatasetStatus, new: DatasetStatus) -> Iterator[EventReport]:
    before, after = old.table, new.table
    if before is None or after is None or after.version <= before.version:
        return
    if replace(before, version=after.version, written_at=after.written_at, confirmed_at=after.confirmed_at) == after:
        message = (
            f"Routing table {before.version} is written again, as {after.version}: there was other content under its"
            " version, which a router may have read, or a router has a newer one."
        )
        yield EventReport("Warning", reasons.TABLE_RENEWED, message)


def _list_skipped_checks(old: DatasetStatus, new: DatasetStatus) -> Iterator[EventReport]:
    slot = _skipped_slot(new)
    if slot not in ("", _skipped_slot(old)):
        message = (
            f"The check of {slot} was missed by more than refresh.startingDeadlineSeconds, and is skipped. The next one"
            f" is at {new.next_check}."
        )
        yield EventReport("Warning", reasons.CHECK_SKIPPED, message)


def _skipped_slot(now: DatasetStatus) -> str:
    return "" if now.schedule is None else now.schedule.skipped


def _list_changes(old: DatasetStatus, new: DatasetStatus) -> Iterator[tuple[Condition | None, Condition]]:
    for after in new.conditions:
        before = old.condition(after.type)
        if before is not None and (before.status, before.reason) == (after.status, after.reason):
            continue
        if before is None and after.type == status.DEGRADED and after.status == "False":
            continue  # that nothing is wrong with a new dataset is no news
        yield before, after


def _is_only_starting(after: Condition, new: DatasetStatus) -> bool:
    """Whether something is only not ready yet: nothing is wrong with it."""
    degraded = new.condition(status.DEGRADED)
    return after.type == status.READY and degraded is not None and degraded.status == "False"


def _has_stopped_serving(before: Condition | None, after: Condition) -> bool:
    return after.type == status.READY and after.status != "True" and before is not None and before.status == "True"


class ProgressWrites:
    """When a status in which only progress has changed was last written: the servers of a rollout get ready one by
    one, and a write for each would be one for each shard."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[Key, float] = {}

    def remaining_pause(self, dataset: ObservedDataset, plan: Plan) -> float:
        """Seconds for which nothing needs to be written or done; 0 when ``plan`` is to be carried out now."""
        if plan.apply or plan.delete or plan.status == dataset.status:
            return 0.0
        if _without_progress(plan.status) != _without_progress(dataset.status):
            return 0.0
        wait = self._written.get(dataset.key, float("-inf")) + _PROGRESS_EVERY - self._clock()
        return max(0.0, wait if plan.next_look_in is None else min(wait, plan.next_look_in))

    def note_write(self, key: Key) -> None:
        """A status of the dataset was written."""
        self._written[key] = self._clock()

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._written.pop(key, None)


class EventBudget:
    """How many events of one reason each dataset may have: some at once, and then one every half minute. What goes to
    and fro for ever must not fill the cluster's store of events, and must not keep another fault from being told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[Key, dict[str, tuple[float, float]]] = {}
        """By reason, of which there are some fifty: events that count, at a moment."""

    def allows(self, key: Key, reason: str) -> bool:
        """Whether there may be another event of ``reason``, which then counts."""
        now = self._clock()
        reasons_spent = self._spent.setdefault(key, {})
        spent, moment = reasons_spent.get(reason, (0.0, now))
        spent = max(0.0, spent - (now - moment) / _EVENT_EVERY)
        if spent + 1 > _EVENTS_AT_ONCE:
            return False
        reasons_spent[reason] = spent + 1, now
        return True

    def forget(self, key: Key) -> None:
        """The dataset is gone."""
        self._spent.pop(key, None)


def _without_progress(now: DatasetStatus) -> DatasetStatus:
    """``now`` without what changes from server to server: counts for people, and the words of conditions."""
    conditions = tuple(replace(condition, message="") for condition in now.conditions)
    return replace(now, shards="", conditions=conditions)
