"""What serves now, as far as Kubernetes knows: servers by shard, routers."""

from __future__ import annotations

from dataclasses import replace

from lookupdb_operator import names
from lookupdb_operator.model import Observed, Pod
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import routers
from lookupdb_operator.status import Rollout, Status


def with_serving_status(status: Status, observed: Observed) -> Status:
    """``status`` with what people and the scale subresource read of the rollout that the routing table names."""
    dataset, table = observed.dataset, status.table
    rollout = None if table is None else status.rollout_called(table.rollout)
    if table is None or rollout is None:
        return replace(status, shards="", replicas=0, selector="")
    shards = shard_count(status, rollout)
    served = shards - len(lacking(status, rollout, 1, observed))
    # Of one shard: an autoscaler of the scale subresource divides what these pods use by ``replicas``.
    chosen = names.selector(dataset.name, dataset.uid, SHARDS, rollout.rollout, shard=0)
    return replace(
        status,
        shards=f"{served}/{shards}",
        replicas=max((servers.replicas for servers in observed.sets if servers.rollout == rollout.rollout), default=0),
        selector=",".join(f"{label}={value}" for label, value in chosen.items()),
    )


def answers(status: Status) -> bool:
    """Whether any routing table was ever in effect everywhere: from then on something serves."""
    return bool(status.generation)


def in_effect(status: Status) -> tuple[Rollout, ...]:
    """The rollouts that routers may answer from now: one, but while a routing table is being taken up."""
    table = status.table
    if table is None:
        return ()
    if table.confirmed_at:
        return tuple(rollout for rollout in status.rollouts if rollout.rollout == table.rollout)
    return tuple(rollout for rollout in status.rollouts if rollout.referenced_replicas)


def lacking(status: Status, rollout: Rollout, servers: int, observed: Observed) -> dict[int, int]:
    """Shard → ready servers, of shards of ``rollout`` with fewer than ``servers`` among those that tables name."""
    ready = dict.fromkeys(range(shard_count(status, rollout)), 0)
    for pod in observed.pods:
        if _serves(pod, rollout) and pod.shard in ready:
            ready[pod.shard] += 1
    return {shard: count for shard, count in ready.items() if count < servers}


def shard_count(status: Status, rollout: Rollout) -> int:
    """How many shards ``rollout`` has."""
    generation = status.generation_called(rollout.generation)
    return 0 if generation is None else generation.shards


def ready_routers(observed: Observed) -> int:
    """How many routers take requests."""
    return sum(pod.ready for pod in routers.living(observed))


def _serves(pod: Pod, rollout: Rollout) -> bool:
    if pod.component != SHARDS or pod.rollout != rollout.rollout or not pod.ready or pod.deleting:
        return False
    ordinal = pod.name.rpartition("-")[2]
    return ordinal.isdigit() and int(ordinal) < rollout.referenced_replicas
