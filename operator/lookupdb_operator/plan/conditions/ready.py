"""Ready: whether lookups are answered, and which servers and routers should be ready and are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Observed, Pod, Trouble
from lookupdb_operator.plan import clock, reasons, recovery, routers, serving
from lookupdb_operator.plan.conditions.verdict import Verdict
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status

READY_WITHIN: Final = 15.0
"""Seconds, after a routing table was confirmed, in which routers may become ready: two of their probes and more."""
_MAX_SHARDS: Final = 10
"""Named in one message."""


def judge_ready(status: Status, observed: Observed) -> Verdict:
    """Whether lookups are answered: of every shard, by something that a router in effect references."""
    if recovery.is_lost(status):
        return _judge_lost(status, observed)
    if not serving.answers(status):
        return Verdict("False", reasons.NO_ROUTING_TABLE, "Nothing is rolled out yet; lookups are answered 503.")
    for rollout in serving.in_effect(status):
        lacking = serving.lacking(status, rollout, 1, observed)
        if lacking:
            return _judge_lacking(rollout, lacking, observed)
    if not serving.ready_routers(observed):
        return Verdict("False", reasons.NO_ROUTER_READY, "No router is ready: requests find nobody to answer them.")
    return Verdict(
        "True", reasons.SERVING, f"{status.generation} serves {status.records} records at {status.endpoint}."
    )


def diagnose_serving(status: Status, situation: Situation) -> Iterator[Trouble]:
    """Servers and routers that should be ready and are not."""
    observed = situation.observed
    yield from (other.trouble for other in observed.others if other.trouble is not None and not other.deleting)
    for rollout in serving.in_effect(status):
        lacking = serving.lacking(status, rollout, rollout.referenced_replicas, observed)
        if lacking:
            yield _diagnose_lacking(rollout, lacking, observed)
    if serving.answers(status) and not serving.ready_routers(observed) and not _is_settling(status, situation):
        yield _because(reasons.NO_ROUTER_READY, "No router is ready", routers.living(observed))
        return
    for pod in routers.living(observed):
        if pod.trouble is not None and not pod.ready:
            yield Trouble(pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
            return


def remaining_settling(status: Status, now: datetime) -> float:
    """Seconds in which routers need not be ready yet: they have just got a table, and their probes notice late."""
    table = status.table
    if table is None or not table.confirmed_at:
        return 0.0
    return clock.seconds_until(table.confirmed_at, READY_WITHIN, now)


def _judge_lost(status: Status, observed: Observed) -> Verdict:
    kept = ", ".join(
        names.rollout(observed.dataset.name, rollout.rollout)
        for rollout in status.rollouts
        if rollout.referenced_replicas
    )
    return Verdict(
        "Unknown",
        reasons.STATUS_LOST,
        f"The status was lost or set back: what routers answer from is not known. {kept} stays until a new"
        " generation serves.",
    )


def _judge_lacking(rollout: Rollout, lacking: dict[int, int], observed: Observed) -> Verdict:
    shards = ", ".join(str(shard) for shard in list(lacking)[:_MAX_SHARDS])
    shards = f"shard {shards}" if len(lacking) == 1 else f"shards {shards}"
    more = ", …" if len(lacking) > _MAX_SHARDS else ""
    where = names.rollout(observed.dataset.name, rollout.rollout)
    return Verdict(
        "False",
        reasons.SHARDS_UNAVAILABLE,
        f"No server of {where} is ready for {shards}{more}: lookups of keys there are answered 503.",
    )


def _diagnose_lacking(rollout: Rollout, lacking: dict[int, int], observed: Observed) -> Trouble:
    shard, ready = next(iter(lacking.items()))
    shard_set = names.shard_set(observed.dataset.name, rollout.rollout, shard)
    more = f", {len(lacking) - 1} other shards lack some too" if len(lacking) > 1 else ""
    pods = (pod for pod in observed.pods if pod.rollout == rollout.rollout and not pod.ready)
    what = f"{shard_set} has {ready} of {rollout.referenced_replicas} servers ready{more}"
    return _because(reasons.SHARDS_UNAVAILABLE, what, pods)


def _is_settling(status: Status, situation: Situation) -> bool:
    is_troubled = any(pod.trouble is not None for pod in routers.living(situation.observed))
    return not is_troubled and remaining_settling(status, situation.now) > 0


def _because(reason: str, what: str, pods: Iterable[Pod]) -> Trouble:
    """``what``, and what the first of ``pods`` that is in trouble says."""
    for pod in pods:
        if pod.trouble is not None:
            return Trouble(pod.trouble.reason, f"{what}; {pod.name}: {pod.trouble.message}")
    return Trouble(reason, what)
