"""What status has forgotten though it is there: status was wiped or set back, by hand or with a backup.

What serves goes on serving until something newer is in effect, and no number is claimed that something carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from lookupdb_operator.model import BuildJob, Existing, Observed, ShardSet
from lookupdb_operator.plan import clock, routers
from lookupdb_operator.plan.generations import number
from lookupdb_operator.status import Rollout, Status


def recovered(status: Status, observed: Observed, now: datetime) -> Status:
    """``status`` with the rollouts that it does not know, each as one that some routing table names, and with counters
    not below what is there."""
    forgotten = tuple(_forgotten(status, observed, now))
    of_rollouts: tuple[ShardSet | Existing, ...] = (*observed.sets, *observed.others)
    of_generations: tuple[BuildJob | ShardSet | Existing, ...] = (*observed.jobs, *of_rollouts)
    status = _without_what_is_past(status, observed)
    return replace(
        status,
        rollouts=(*status.rollouts, *forgotten),
        last_rollout=max((status.last_rollout, *(number(one.rollout) for one in of_rollouts))),
        last_generation=max((status.last_generation, *(number(one.generation) for one in of_generations))),
    )


def is_lost(status: Status) -> bool:
    """Whether something serves, and status does not know what."""
    return status.table is None and any(one.named for one in status.rollouts)


def _without_what_is_past(status: Status, observed: Observed) -> Status:
    """``status`` without its routing table and generations, when a newer table is there: what that one names is not
    known, so that all servers there are may be named, and going back to an older generation would be worse than
    building a new one."""
    table = status.table
    if table is None or table.version >= routers.written_table(observed):
        return status
    kept = tuple(
        replace(one, template="", named=max(one.named, _replicas(one.rollout, observed))) for one in status.rollouts
    )
    return replace(status, table=None, rollouts=kept, generations=(), generation="", records=0, bytes=0)


def _forgotten(status: Status, observed: Observed, now: datetime) -> Iterator[Rollout]:
    sets = [one for one in observed.sets if number(one.rollout) > status.last_rollout and not one.deleting]
    for name, generation in sorted({(one.rollout, one.generation) for one in sets}, key=lambda one: number(one[0])):
        yield Rollout(
            rollout=name,
            generation=generation,
            template="",  # it is only kept, never made again
            started_at=clock.written(now),
            named=_replicas(name, observed),
        )


def _replicas(rollout: str, observed: Observed) -> int:
    return max((one.replicas for one in observed.sets if one.rollout == rollout), default=0)
