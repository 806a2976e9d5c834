"""All that is wrong with a dataset now, the gravest first. Nothing here keeps anything from serving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Observed, Pod, Trouble
from lookupdb_operator.plan import clock, cutover, outcomes, predecessors, reasons, routers, serving
from lookupdb_operator.plan import rollout as rollouts
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Status

READY_WITHIN: Final = 15.0
"""Seconds, after a routing table was confirmed, in which routers may become ready: two of their probes and more."""


def found(status: Status, situation: Situation) -> tuple[Trouble, ...]:
    """Everything that is wrong, each once."""
    every = (
        *of_serving(status, situation),
        *_of_writes(situation.observed),
        *_one(predecessors.orphaned(situation.observed)),
        *_one(of_build(status, situation.observed)),
        *_one(of_rollout(status, situation)),
        *_one(of_table(status, situation)),
    )
    return tuple(dict.fromkeys(every))


def of_build(status: Status, observed: Observed) -> Trouble | None:
    """What keeps the build under way from getting on, else how the last one failed."""
    build, failure = status.build, status.failure
    if build is not None:
        job = outcomes.job_of(observed, build)
        held = job.failure if job is not None else None
        waiting = held or next((pod.trouble for pod in outcomes.pods_of(observed, build) if pod.trouble), None)
        if waiting is not None:
            return waiting
    return None if failure is None else Trouble(failure.reason, failure.message)


def of_rollout(status: Status, situation: Situation) -> Trouble | None:
    """What keeps the servers that are asked for, and not yet named by the table, from getting ready."""
    wanted, table, observed = rollouts.wanted(status, situation), status.table, situation.observed
    if wanted is None or (
        table is not None and table.rollout == wanted.rollout and table.replicas >= situation.wish.replicas
    ):
        return None
    sets = (one.trouble for one in observed.sets if one.rollout == wanted.rollout)
    pods = (pod.trouble for pod in observed.pods if pod.rollout == wanted.rollout and not pod.ready)
    return next((trouble for trouble in (*sets, *pods) if trouble is not None), None)


def of_serving(status: Status, situation: Situation) -> Iterator[Trouble]:
    """Servers and routers that should be ready and are not."""
    observed = situation.observed
    yield from (one.trouble for one in observed.others if one.trouble is not None and not one.deleting)
    for one in serving.in_effect(status):
        lacking = serving.lacking(status, one, one.named, observed)
        if lacking:
            shard, ready = next(iter(lacking.items()))
            what = (
                f"{names.shard_set(observed.dataset.name, one.rollout, shard)} has {ready} of {one.named} servers ready"
            )
            more = f", {len(lacking) - 1} other shards lack some too" if len(lacking) > 1 else ""
            pods = (pod for pod in observed.pods if pod.rollout == one.rollout and not pod.ready)
            yield _because(reasons.SHARDS_UNAVAILABLE, f"{what}{more}", pods)
    if serving.answers(status) and not serving.ready_routers(observed) and not _settles(status, situation):
        yield _because(reasons.NO_ROUTER_READY, "No router is ready", routers.living(observed))
        return
    for pod in routers.living(observed):
        if pod.trouble is not None and not pod.ready:
            yield Trouble(pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
            return


def settling(status: Status, now: datetime) -> float:
    """Seconds in which routers need not be ready yet: they have just got a table, and their probes notice late."""
    table = status.table
    if table is None or not table.confirmed_at:
        return 0.0
    return clock.seconds_until(table.confirmed_at, READY_WITHIN, now)


def _settles(status: Status, situation: Situation) -> bool:
    troubled = any(pod.trouble is not None for pod in routers.living(situation.observed))
    return not troubled and settling(status, situation.now) > 0


def _because(reason: str, what: str, pods: Iterable[Pod]) -> Trouble:
    """``what``, and what the first of ``pods`` that is in trouble says."""
    for pod in pods:
        if pod.trouble is not None:
            return Trouble(pod.trouble.reason, f"{what}; {pod.name}: {pod.trouble.message}")
    return Trouble(reason, what)


def _of_writes(observed: Observed) -> Iterator[Trouble]:
    problem = observed.store.problem
    if problem is not None:
        yield Trouble(reasons.STORE_CREDENTIALS_MISSING, problem)
    for (kind, name), why in observed.refusals.items():
        reason = reasons.QUOTA_EXCEEDED if "exceeded quota" in why else reasons.APPLY_REFUSED
        yield Trouble(reason, f"The API server refuses {kind} {name}: {why}")


def of_table(status: Status, situation: Situation) -> Trouble | None:
    """Which routers take too long to take up the routing table."""
    table = status.table
    if table is None or not cutover.is_overdue(status, situation):
        return None
    late = routers.behind(situation.observed, table)
    who = ", ".join(f"{pod} ({why})" for pod, why in sorted(late.items())[:3]) or "no router is running"
    return Trouble(
        reasons.NOT_CONFIRMED,
        f"Routing table {table.version} is not in effect everywhere: {who}. What served before stays",
    )


def _one(trouble: Trouble | None) -> tuple[Trouble, ...]:
    return () if trouble is None else (trouble,)
