"""What status has forgotten though it is there: status was wiped or set back, by hand or with a backup.

What serves goes on serving until something newer is in effect, and no number is claimed that something carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from lookupdb_operator.model import Observed
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.generations import number
from lookupdb_operator.status import Rollout, Status


def recovered(status: Status, observed: Observed, now: datetime) -> Status:
    """``status`` with the rollouts that it does not know, each as one that some routing table names, and with counters
    not below what is there."""
    forgotten = tuple(_forgotten(status, observed, now))
    return replace(
        status,
        rollouts=(*status.rollouts, *forgotten),
        last_rollout=max((status.last_rollout, *(number(one.rollout) for one in forgotten))),
        last_generation=max((status.last_generation, *(number(one.generation) for one in forgotten))),
    )


def _forgotten(status: Status, observed: Observed, now: datetime) -> Iterator[Rollout]:
    sets = [one for one in observed.sets if number(one.rollout) > status.last_rollout and not one.deleting]
    for name in sorted({one.rollout for one in sets}, key=number):
        of_it = [one for one in sets if one.rollout == name]
        yield Rollout(
            rollout=name,
            generation=of_it[0].generation,
            template="",  # not known any more: it is only kept, never made again
            started_at=clock.written(now),
            named=max(one.replicas for one in of_it),
        )
