"""A spec that cannot be used, though the API server let it in: everything stays as it is, and a condition says why."""

from __future__ import annotations

from datetime import datetime

from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import conditions, hints, reasons, serving, verdicts
from lookupdb_operator.plan.verdicts import Verdict
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Status


def planned(status: Status, observed: Observed, now: datetime) -> Plan:
    """Nothing but conditions."""
    problem = hints.sentence(reasons.INVALID_SPEC, observed.dataset.problem or "The spec cannot be used")
    ready = verdicts.ready(status, observed)
    keeps = f" {status.generation} keeps serving." if ready.status == "True" else ""
    broken = Verdict("False", reasons.INVALID_SPEC, problem)
    judged = {
        READY: ready,
        BUILT: broken,
        ROLLED_OUT: broken,
        DEGRADED: Verdict("True", reasons.INVALID_SPEC, problem + keeps),
    }
    return Plan(status=conditions.dated(serving.told(status, observed), judged, observed.dataset, now))
