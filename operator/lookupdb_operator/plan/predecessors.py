"""What an earlier dataset of the same name has left, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lookupdb_operator import kinds, names
from lookupdb_operator.model import Observed, Predecessor, Trouble
from lookupdb_operator.plan import reasons

_MAX_OBJECTS: Final = 3


def orphaned(observed: Observed) -> Trouble | None:
    """What stays until somebody deletes it, with the command that does."""
    orphans = [predecessor for predecessor in observed.predecessors if predecessor.orphaned]
    if not orphans:
        return None
    plurals = ",".join(sorted({kinds.named(orphan.kind).plural for orphan in orphans}))
    labels = [f"{names.DATASET_UID}={uid}" for uid in sorted({orphan.uid for orphan in orphans})]
    commands = " and ".join(f"kubectl delete -n {observed.dataset.namespace} {plurals} -l {label}" for label in labels)
    return Trouble(
        reasons.PREDECESSOR_ORPHANED,
        f"An earlier dataset of this name has left {_listed(orphans)}, which nobody collects; delete them: {commands}",
    )


def collected(observed: Observed) -> str:
    """What Kubernetes is collecting, as a sentence."""
    left = _listed(observed.predecessors)
    return f"Kubernetes still collects {left} of an earlier dataset of this name. This one begins after that."


def _listed(left: Iterable[Predecessor]) -> str:
    objects = [f"{predecessor.kind} {predecessor.name}" for predecessor in left]
    more = f" and {len(objects) - _MAX_OBJECTS} more" if len(objects) > _MAX_OBJECTS else ""
    return ", ".join(objects[:_MAX_OBJECTS]) + more
