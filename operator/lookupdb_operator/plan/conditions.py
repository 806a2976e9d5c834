"""The four conditions, always there: what their verdicts are is decided next door, here they are dated and bounded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from lookupdb_operator.model import Dataset
from lookupdb_operator.plan import clock, failures, troubles, verdicts
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.plan.verdicts import Verdict
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Condition, Status

_MESSAGE_AT_MOST: Final = 4000


def told(status: Status, situation: Situation) -> Status:
    """``status`` with all conditions as they are now."""
    ready = verdicts.ready(status, situation.observed)
    judged = {
        READY: ready,
        BUILT: verdicts.built(status, situation),
        ROLLED_OUT: verdicts.rolled_out(status, situation),
        DEGRADED: verdicts.degraded(status, troubles.found(status, situation), serves=ready.status == "True"),
    }
    return dated(status, judged, situation.dataset, situation.now)


def dated(status: Status, judged: dict[str, Verdict], dataset: Dataset, now: datetime) -> Status:
    """``status`` with these conditions. The time of a condition changes when its truth does."""
    conditions = tuple(_condition(kind, verdict, status, dataset, now) for kind, verdict in judged.items())
    return replace(status, conditions=conditions, observed_generation=dataset.generation)


def _condition(kind: str, verdict: Verdict, status: Status, dataset: Dataset, now: datetime) -> Condition:
    before = status.condition(kind)
    since = before.last_transition_time if before is not None and before.status == verdict.status else ""
    return Condition(
        type=kind,
        status=verdict.status,
        reason=verdict.reason,
        message=failures.shortened(verdict.message, _MESSAGE_AT_MOST),
        observed_generation=dataset.generation,
        last_transition_time=since or clock.written(now),
    )
