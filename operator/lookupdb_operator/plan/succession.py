"""A dataset that has the name of one that was deleted begins when nothing of that one is left.

Kubernetes collects what belonged to it a while after it is gone. Until then its servers and its routing table have
the very names that ours will have, and hold the old data.
"""

from __future__ import annotations

from datetime import datetime

from lookupdb_operator.model import Observed, Plan
from lookupdb_operator.plan import conditions, predecessors, reasons, verdicts
from lookupdb_operator.plan.verdicts import Verdict
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Status


def has_to_wait(status: Status, observed: Observed) -> bool:
    """Whether the dataset is to begin, and cannot yet. What has begun was alone then."""
    begun = status.last_generation or status.last_rollout or status.table
    return bool(observed.predecessors) and not begun


def planned(status: Status, observed: Observed, now: datetime) -> Plan:
    """Nothing but conditions."""
    trouble = predecessors.orphaned(observed)
    if trouble is not None:
        waits = Verdict("False", trouble.reason, trouble.message)
        degraded = Verdict("True", trouble.reason, trouble.message)
    else:
        waits = Verdict("False", reasons.WAITING_FOR_PREDECESSOR, predecessors.collected(observed))
        degraded = verdicts.degraded(status, (), serves=False)
    judged = {READY: waits, BUILT: waits, ROLLED_OUT: waits, DEGRADED: degraded}
    return Plan(status=conditions.dated(status, judged, observed.dataset, now))
