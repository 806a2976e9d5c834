"""The servers of a rollout's shards, counted: how many are ready, and how many in trouble. Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from lookupdb_operator.model import Absence, Observed, Pod, ShardSet
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import RolloutStatus

_UNSEEN: Final = Absence()


@dataclass(frozen=True, slots=True)
class ShardServers:
    """The servers of one shard, pods 0 to replicas-1."""

    shard: int
    replicas: int
    ready: int
    troubled: int
    """Not ready, and in trouble, overdue or being deleted."""
    overdue: int
    """Not ready for longer than servers may take, and they do not say why."""

    @property
    def needed_servers(self) -> int:
        """How many have to be ready before routers are sent to them: all but one, and at least one."""
        return max(1, self.replicas - 1)

    @property
    def may_suffice(self) -> bool:
        """Whether enough are ready, or may get ready though nobody ends the trouble of the others."""
        return self.replicas - self.troubled >= self.needed_servers


def count_ready_shards(rollout: RolloutStatus, replicas: int, shards: Collection[int], observed: Observed) -> int:
    """How many of ``shards`` of ``rollout`` have ``replicas`` ready servers, pods 0 to replicas-1 among them, in the
    words of both their StatefulSet and their pods: either may be seen late."""
    ready = Counter(
        pod.shard
        for pod in observed.pods
        if pod.component == SHARDS and pod.rollout == rollout.rollout and pod.ready and not pod.deleting
    )
    return len(
        {
            shard_set.shard
            for shard_set in observed.shard_sets
            if shard_set.rollout == rollout.rollout
            and shard_set.shard in shards
            and not shard_set.deleting
            and min(shard_set.ready, ready[shard_set.shard]) >= max(replicas, shard_set.replicas)
        }
    )


def list_shard_servers(
    rollout: RolloutStatus, replicas: int, shards: Collection[int], situation: Situation
) -> Iterator[ShardServers]:
    """The servers of each of ``shards`` of ``rollout``."""
    observed = situation.observed
    pods: dict[int, dict[int, Pod]] = {}
    for pod in observed.pods:
        if pod.component == SHARDS and pod.rollout == rollout.rollout and _ordinal(pod) in range(replicas):
            pods.setdefault(pod.shard, {})[_ordinal(pod)] = pod
    sets = {
        shard_set.shard: shard_set
        for shard_set in observed.shard_sets
        if shard_set.rollout == rollout.rollout and not shard_set.deleting
    }
    for shard in sorted(shards):
        yield _count_servers(shard, replicas, sets.get(shard), tuple(pods.get(shard, {}).values()), situation)


def next_overdue_in(rollout: RolloutStatus, situation: Situation) -> float | None:
    """Seconds until the next server of ``rollout`` counts as overdue; None for never."""
    servers = (pod for pod in situation.observed.pods if pod.component == SHARDS and pod.rollout == rollout.rollout)
    waits = (_remaining_patience(pod, situation) for pod in servers if _is_silent(pod))
    return min((wait for wait in waits if wait > 0), default=None)


def _is_silent(pod: Pod) -> bool:
    return not pod.ready and not pod.deleting and pod.trouble is None


def _remaining_patience(pod: Pod, situation: Situation) -> float:
    """Seconds for which ``pod``, which is not ready, may go on so. The clock on the wall has no part in it."""
    seen = situation.observed.absences.get(pod.uid, _UNSEEN)
    return max(0.0, situation.desired.progress_deadline_seconds - seen.unready)


def _count_servers(
    shard: int, replicas: int, shard_set: ShardSet | None, pods: Collection[Pod], situation: Situation
) -> ShardServers:
    ready = sum(pod.ready and not pod.deleting for pod in pods)
    overdue = sum(_is_silent(pod) and not _remaining_patience(pod, situation) for pod in pods)
    troubled = overdue + sum(pod.deleting or (not pod.ready and pod.trouble is not None) for pod in pods)
    if shard_set is not None and shard_set.trouble is not None:
        troubled += replicas - len(pods)
    # Either may be seen late: a StatefulSet whose controller has not seen its newest spec says that none is ready.
    return ShardServers(shard, replicas, min(ready, 0 if shard_set is None else shard_set.ready), troubled, overdue)


def _ordinal(pod: Pod) -> int:
    ordinal = pod.name.rpartition("-")[2]
    return int(ordinal) if ordinal.isascii() and ordinal.isdigit() else -1
