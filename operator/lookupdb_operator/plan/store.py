"""When the Secret with the store's address and credentials is written into the dataset's namespace.

It is never read there, so that the operator needs no right to read Secrets: what was written is remembered in status,
and written again when somebody seems to lack it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Status

AGAIN_AFTER: Final = 30.0
"""Seconds between two writes on account of pods in trouble."""


def may_help(reason: str, status: Status, situation: Situation) -> bool:
    """Whether what failed for ``reason`` may succeed with what the store's Secret is about to become."""
    return reason in reasons.ABOUT_THE_STORE and _is_new(status, situation)


def is_due(status: Status, situation: Situation) -> bool:
    """Whether the Secret is to be written now: at first, when it is to hold something else, when a build or a rollout
    begins, and now and then while pods lack it."""
    if situation.observed.store.problem is not None:
        return False
    if not status.store_written_at or _is_new(status, situation) or _begins(situation.dataset.status, status):
        return True
    return _is_missed(situation) and _wait(status, situation) == 0


def note_secret(status: Status, situation: Situation) -> Status:
    """``status`` when the Secret is written now."""
    digest = situation.observed.store.digest
    return replace(status, store_digest=digest, store_written_at=clock.written(situation.now))


def again_in(status: Status, situation: Situation) -> float | None:
    """Seconds until the Secret is written again, if nothing changes; None for never."""
    if situation.observed.store.problem is not None or not _is_missed(situation):
        return None
    return _wait(status, situation)


def _is_new(status: Status, situation: Situation) -> bool:
    access = situation.observed.store
    return access.problem is None and access.digest != status.store_digest


def _begins(before: Status, after: Status) -> bool:
    return (before.last_generation, before.last_rollout) != (after.last_generation, after.last_rollout)


def _is_missed(situation: Situation) -> bool:
    observed = situation.observed
    dataset = observed.dataset
    if ("Secret", names.store_secret(dataset.name, dataset.uid)) in observed.refusals:
        return True
    troubles = (pod.trouble for pod in observed.pods if not pod.deleting)
    return any(trouble is not None and trouble.reason in reasons.ABOUT_THE_STORE for trouble in troubles)


def _wait(status: Status, situation: Situation) -> float:
    if not status.store_written_at:
        return 0.0
    return clock.seconds_until(status.store_written_at, AGAIN_AFTER, situation.now)
