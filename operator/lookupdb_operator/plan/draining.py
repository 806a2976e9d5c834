"""When what an older routing table named may go: every router answers from the new one, and lookups that began on the
old one have ended."""

from __future__ import annotations

from dataclasses import replace

from lookupdb_operator.names import ROUTER
from lookupdb_operator.plan import clock, rollout, routers
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status, Table


def retired(status: Status, situation: Situation) -> Status:
    """``status`` without the rollouts, and the servers, that no routing table in effect names any more, once the drain
    time has passed and the routers still say that it is in effect everywhere: one that was started meanwhile may have
    come up with an older table."""
    table = status.table
    if table is None or not is_draining(status) or remaining(table, situation) > 0:
        return status
    if routers.behind(situation.observed, table):
        return status
    wanted = rollout.wanted(status, situation)
    spared = {table.rollout} | ({wanted.rollout} if wanted is not None else set())
    rollouts = tuple(replace(one, named=_named(one, table)) for one in status.rollouts if one.rollout in spared)
    return replace(status, rollouts=rollouts)


def is_draining(status: Status) -> bool:
    """Whether the table in effect names less than what is kept on account of an older one."""
    table = status.table
    if table is None or not table.confirmed_at:
        return False
    return any(one.named > _named(one, table) for one in status.rollouts)


def remaining(table: Table, situation: Situation) -> float:
    """Seconds until the drain time of a confirmed ``table`` has passed. While a router is being stopped, it answers
    from the table that it has, as long as it still takes requests."""
    wish = situation.wish
    stopping = any(pod.component == ROUTER and pod.deleting for pod in situation.observed.pods)
    seconds = max(wish.drain_seconds, wish.router_drain_seconds) if stopping else wish.drain_seconds
    return clock.seconds_until(table.confirmed_at, seconds, situation.now)


def _named(one: Rollout, table: Table) -> int:
    return table.replicas if one.rollout == table.rollout else 0
