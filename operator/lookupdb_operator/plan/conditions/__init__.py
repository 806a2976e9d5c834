"""The four conditions, always there. Each has a module with its verdict and the troubles that it tells of; here they
are dated and bounded. Nothing is decided by them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from lookupdb_operator.model import Dataset
from lookupdb_operator.plan import clock, failures
from lookupdb_operator.plan.conditions.built import describe_next_attempt, judge_built
from lookupdb_operator.plan.conditions.degraded import diagnose, judge_degraded
from lookupdb_operator.plan.conditions.ready import judge_ready
from lookupdb_operator.plan.conditions.rolled_out import judge_rolled_out
from lookupdb_operator.plan.conditions.verdict import Verdict
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Condition, Status

_MAX_MESSAGE_CHARACTERS: Final = 4000


def set_conditions(status: Status, situation: Situation) -> Status:
    """``status`` with all conditions as they are now."""
    ready = judge_ready(status, situation.observed)
    judged = {
        READY: ready,
        BUILT: judge_built(status, situation),
        ROLLED_OUT: judge_rolled_out(status, situation),
        DEGRADED: judge_degraded(
            status,
            diagnose(status, situation),
            serves=ready.status == "True",
            next_attempt=describe_next_attempt(status, situation),
        ),
    }
    return date_conditions(status, judged, situation.dataset, situation.now)


def date_conditions(status: Status, judged: dict[str, Verdict], dataset: Dataset, now: datetime) -> Status:
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
        message=failures.shortened(verdict.message, _MAX_MESSAGE_CHARACTERS),
        observed_generation=dataset.generation,
        last_transition_time=since or clock.written(now),
    )
