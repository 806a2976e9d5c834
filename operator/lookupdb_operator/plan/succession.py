"""A dataset that has the name of one that was deleted begins when nothing of that one is left.

Kubernetes collects what belonged to it a while after it is gone. Until then its servers and its routing table have
the very names that ours will have, and hold the old data.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from lookupdb_operator import kinds, names
from lookupdb_operator.model import Observed, Plan, Predecessor
from lookupdb_operator.plan import conditions, reasons
from lookupdb_operator.plan.verdicts import Verdict
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Status

_NAMED: Final = 3


def has_to_wait(status: Status, observed: Observed) -> bool:
    """Whether the dataset is to begin, and cannot yet. What has begun was alone then."""
    begun = status.last_generation or status.last_rollout or status.table
    return bool(observed.predecessors) and not begun


def planned(status: Status, observed: Observed, now: datetime) -> Plan:
    """Nothing but conditions."""
    orphans = [one for one in observed.predecessors if one.orphaned]
    if orphans:
        waits = Verdict("False", reasons.PREDECESSOR_ORPHANED, _of_orphans(orphans, observed.dataset.namespace))
        degraded = Verdict("True", waits.reason, waits.message)
    else:
        left = _listed(observed.predecessors)
        message = f"Kubernetes still collects {left} of an earlier dataset of this name. This one begins after that."
        waits = Verdict("False", reasons.WAITING_FOR_PREDECESSOR, message)
        degraded = Verdict("False", reasons.HEALTHY, "Nothing is wrong.")
    judged = {READY: waits, BUILT: waits, ROLLED_OUT: waits, DEGRADED: degraded}
    return Plan(status=conditions.dated(status, judged, observed.dataset, now))


def _of_orphans(orphans: list[Predecessor], namespace: str) -> str:
    plurals = ",".join(sorted({kinds.named(one.kind).plural for one in orphans}))
    labels = [f"{names.DATASET_UID}={uid}" for uid in sorted({one.uid for one in orphans})]
    commands = " and ".join(f"kubectl delete -n {namespace} {plurals} -l {label}" for label in labels)
    return (
        f"An earlier dataset of this name has left {_listed(orphans)}, which nobody collects. Delete them: {commands}"
    )


def _listed(left: Iterable[Predecessor]) -> str:
    named = [f"{one.kind} {one.name}" for one in left]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more
