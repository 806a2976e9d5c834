"""How far the servers of a rollout are: all ready, enough of them ready, or not about to get there by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lookupdb_operator.model import Observed, Pod, ShardSet
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import clock
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status

GRACE: Final = 60.0
"""Seconds that servers in trouble have, from the claim of their rollout, before enough others do without them."""


@dataclass(frozen=True, slots=True)
class ShardServers:
    """The servers of one shard, pods 0 to replicas-1."""

    shard: int
    replicas: int
    ready: int
    troubled: int
    """Not ready, and in trouble or being deleted."""

    @property
    def needed(self) -> int:
        """How many have to be ready before routers are sent to them: all but one, and at least one."""
        return max(1, self.replicas - 1)

    @property
    def may_suffice(self) -> bool:
        """Whether enough are ready, or may get ready though nobody ends the trouble of the others."""
        return self.replicas - self.troubled >= self.needed


def is_ready(rollout: Rollout, replicas: int, status: Status, observed: Observed) -> bool:
    """Whether every shard of ``rollout`` has ``replicas`` ready servers, pods 0 to replicas-1 among them."""
    generation = status.generation_called(rollout.generation)
    return generation is not None and count_ready_shards(rollout, replicas, observed) == generation.shards


def count_ready_shards(rollout: Rollout, replicas: int, observed: Observed) -> int:
    """How many shards of ``rollout`` have ``replicas`` ready servers, in the words of both their StatefulSet and their
    pods: either may be seen late."""
    ready = Counter(
        pod.shard
        for pod in observed.pods
        if pod.component == SHARDS and pod.rollout == rollout.rollout and pod.ready and not pod.deleting
    )
    return len(
        {
            shard_set.shard
            for shard_set in observed.sets
            if shard_set.rollout == rollout.rollout
            and not shard_set.deleting
            and min(shard_set.ready, ready[shard_set.shard]) >= max(replicas, shard_set.replicas)
        }
    )


def is_servable(rollout: Rollout, replicas: int, status: Status, situation: Situation) -> bool:
    """Whether routers may be sent to ``rollout``: all its servers are ready; or of each shard all but one, and at
    least one, while the others are in trouble after the grace, or the progress deadline has passed.

    The routing table references the missing servers too: routers use them once they come.
    """
    if is_ready(rollout, replicas, status, situation.observed):
        return True
    shards = tuple(list_servers(rollout, replicas, status, situation.observed))
    if not shards or any(servers.ready < servers.needed for servers in shards):
        return False
    if rollout.referenced_replicas == 0 and has_exceeded_deadline(rollout, status, situation):
        return True
    only_troubled_lack = all(servers.ready + servers.troubled >= servers.replicas for servers in shards)
    return only_troubled_lack and clock.seconds_until(rollout.started_at, GRACE, situation.now) == 0


def is_stuck(rollout: Rollout, status: Status, situation: Situation) -> bool:
    """Whether ``rollout`` is not expected to get into effect by itself: its deadline has passed, or a shard has too
    few servers that are not in trouble."""
    if has_exceeded_deadline(rollout, status, situation):
        return True
    shards = list_servers(rollout, situation.desired.replicas, status, situation.observed)
    return not all(servers.may_suffice for servers in shards)


def has_exceeded_deadline(rollout: Rollout, status: Status, situation: Situation) -> bool:
    """Whether ``rollout`` should be in effect by now."""
    return remaining_progress(rollout, status, situation) == 0


def remaining_progress(rollout: Rollout, status: Status, situation: Situation) -> float:
    """Seconds in which ``rollout`` should get on: its servers from its claim, routers from the table that references
    it."""
    table = status.table
    is_referenced = table is not None and table.rollout == rollout.rollout
    since = table.written_at if table is not None and is_referenced else rollout.started_at
    return clock.seconds_until(since, situation.desired.progress_deadline_seconds, situation.now)


def list_servers(rollout: Rollout, replicas: int, status: Status, observed: Observed) -> Iterator[ShardServers]:
    """The servers of each shard of ``rollout``."""
    generation = status.generation_called(rollout.generation)
    pods: dict[int, dict[int, Pod]] = {}
    for pod in observed.pods:
        if pod.component == SHARDS and pod.rollout == rollout.rollout and _ordinal(pod) in range(replicas):
            pods.setdefault(pod.shard, {})[_ordinal(pod)] = pod
    sets = {
        shard_set.shard: shard_set
        for shard_set in observed.sets
        if shard_set.rollout == rollout.rollout and not shard_set.deleting
    }
    for shard in range(0 if generation is None else generation.shards):
        yield _servers_of(shard, replicas, sets.get(shard), pods.get(shard, {}))


def _servers_of(shard: int, replicas: int, shard_set: ShardSet | None, pods: dict[int, Pod]) -> ShardServers:
    ready = sum(pod.ready and not pod.deleting for pod in pods.values())
    troubled = sum(pod.deleting or (not pod.ready and pod.trouble is not None) for pod in pods.values())
    if shard_set is not None and shard_set.trouble is not None:
        troubled += replicas - len(pods)
    # Either may be seen late: a StatefulSet whose controller has not seen its newest spec says that none is ready.
    return ShardServers(shard, replicas, min(ready, 0 if shard_set is None else shard_set.ready), troubled)


def _ordinal(pod: Pod) -> int:
    ordinal = pod.name.rpartition("-")[2]
    return int(ordinal) if ordinal.isascii() and ordinal.isdigit() else -1
