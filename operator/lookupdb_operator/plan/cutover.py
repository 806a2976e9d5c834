"""Routing tables: when the next one is written, and when it is in effect everywhere.

A table is written only when all that it newly names is ready. Servers that fail later stay in it: routers ask another
replica meanwhile, and Kubernetes brings them back under the same name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from lookupdb_operator.model import Observed
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import clock, rollout, routers
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status, Table

CONFIRMED_WITHIN: Final = 60.0
"""Seconds, in which every router should have taken up a routing table. A kubelet that was not nudged syncs ConfigMaps
every minute or so."""


def confirmed(status: Status, situation: Situation) -> Status:
    """``status`` with the routing table in effect, when every router that may answer says so. From then on its
    generation is the active one."""
    table, observed = status.table, situation.observed
    if table is None or table.confirmed_at or not routers.answering(observed) or routers.behind(observed, table):
        return status
    generation = status.generation_called(table.generation)
    assert generation is not None, f"{table.generation} was trimmed, and a routing table names it"
    return replace(
        status,
        table=replace(table, confirmed_at=clock.written(situation.now)),
        generation=generation.generation,
        records=generation.records,
        bytes=generation.bytes,
    )


def decided(status: Status, situation: Situation) -> Status:
    """``status`` with the routing table that should be written by now, its version claimed."""
    return _newest(_wished(status, situation), situation)


def _wished(status: Status, situation: Situation) -> Status:
    table, wish = status.table, situation.wish
    wanted = rollout.wanted(status, situation)
    is_another = wanted is not None and (table is None or table.rollout != wanted.rollout)
    if wanted is not None and is_another and is_ready(wanted, wish.replicas, status, situation.observed):
        return _written(status, wanted, wish.replicas, wish.workers, situation)
    if table is None:
        return status
    current = status.rollout_called(table.rollout)
    if current is None or wish.replicas == table.replicas:
        return status
    # Fewer are named first and gone later, more are there first and named later.
    if wish.replicas < table.replicas or is_ready(current, wish.replicas, status, situation.observed):
        return _written(status, current, wish.replicas, table.workers, situation)
    return status


def is_ready(candidate: Rollout, replicas: int, status: Status, observed: Observed) -> bool:
    """Whether every shard of ``candidate`` has ``replicas`` ready servers, pods 0 to replicas-1 among them."""
    generation = status.generation_called(candidate.generation)
    return generation is not None and ready_shards(candidate, replicas, observed) == generation.shards


def ready_shards(candidate: Rollout, replicas: int, observed: Observed) -> int:
    """How many shards of ``candidate`` have ``replicas`` ready servers, in the words of both their StatefulSet and
    their pods: either may be seen late."""
    pods = Counter(
        pod.shard
        for pod in observed.pods
        if pod.component == SHARDS and pod.rollout == candidate.rollout and pod.ready and not pod.deleting
    )
    return len(
        {
            one.shard
            for one in observed.sets
            if one.rollout == candidate.rollout
            and not one.deleting
            and min(one.ready, pods[one.shard]) >= max(replicas, one.replicas)
        }
    )


def is_overdue(status: Status, situation: Situation) -> bool:
    """Whether a router takes too long to take up the routing table."""
    table = status.table
    if table is None or table.confirmed_at:
        return False
    return clock.seconds_until(table.written_at, CONFIRMED_WITHIN, situation.now) == 0


def _newest(status: Status, situation: Situation) -> Status:
    """``status`` with a version of its routing table that routers take up: the cluster may have been set back. Not
    before what it names is ready: routers answer from something meanwhile."""
    table, newest = status.table, routers.newest_table(situation.observed)
    if table is None or newest <= table.version:
        return status
    named = status.rollout_called(table.rollout)
    if named is None or not is_ready(named, table.replicas, status, situation.observed):
        return status
    return replace(
        status, table=replace(table, version=newest + 1, written_at=clock.written(situation.now), confirmed_at="")
    )


def _written(status: Status, target: Rollout, replicas: int, workers: int, situation: Situation) -> Status:
    claimed = status.table.version if status.table is not None else 0
    table = Table(
        version=max(claimed, routers.newest_table(situation.observed)) + 1,
        rollout=target.rollout,
        generation=target.generation,
        replicas=replicas,
        workers=workers,
        written_at=clock.written(situation.now),
    )
    rollouts = tuple(
        replace(one, named=max(one.named, replicas)) if one.rollout == target.rollout else one
        for one in status.rollouts
    )
    return replace(status, table=table, rollouts=rollouts)
