"""RolledOut: whether what is asked for is what serves, and what keeps it from serving."""

from __future__ import annotations

from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import cutover, readiness, reasons, routers, serving
from lookupdb_operator.plan.conditions.store import name_store
from lookupdb_operator.plan.conditions.verdict import Verdict, sentence
from lookupdb_operator.plan.conditions.waiting import describe_wait, diagnose_ticket, is_waiting
from lookupdb_operator.plan.rollouts import describe_rollout, obstacle, target_rollout
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Rollout, Status, Table

_MAX_SHARDS: Final = 3
"""Named in one message."""


def judge_rolled_out(status: Status, situation: Situation) -> Verdict:
    """Whether what is asked for is what serves."""
    target, table = target_rollout(status, situation), status.table
    if target is None and is_waiting(status.rollout_ticket):
        return _judge_waiting(status, situation)
    if target is None:
        serves = f" Until then {status.generation} keeps serving." if serving.answers(status) else ""
        return Verdict("False", reasons.WAITING_FOR_BUILD, f"What the spec asks for is not built yet.{serves}")
    if table is None or _is_starting(target, table, situation):
        return _judge_starting(target, status, situation)
    if not table.confirmed_at:
        return _judge_confirming(table, status, situation)
    where = describe_rollout(situation.dataset, target)
    if cutover.is_draining(status):
        drains = _describe_draining(table, situation)
        return Verdict("True", reasons.DRAINING, f"Routers answer from {where}; {drains}")
    servers = f"{table.replicas} {_servers(table.replicas)} a shard"
    return Verdict("True", reasons.UP_TO_DATE, f"Routers answer from {where}, {servers}.")


def diagnose_candidate(status: Status, situation: Situation) -> Trouble | None:
    """What keeps the servers that are asked for, and that no table references yet, from getting ready."""
    target, table, observed = target_rollout(status, situation), status.table, situation.observed
    if target is None:
        return diagnose_ticket(status.rollout_ticket)
    if table is not None and not _is_starting(target, table, situation):
        return None
    trouble = name_store(obstacle(target, observed), situation)
    if target.referenced_replicas or not readiness.has_exceeded_deadline(target, status, situation):
        return trouble
    return _diagnose_overdue(target, trouble, status, situation)


def _diagnose_overdue(target: Rollout, trouble: Trouble | None, status: Status, situation: Situation) -> Trouble:
    """What a rollout waits for whose deadline has passed."""
    dataset, desired = situation.dataset, situation.desired
    shards = readiness.list_servers(target, desired.replicas, status, situation.observed)
    lacking = [servers for servers in shards if servers.ready < servers.needed]
    lacks = ", ".join(
        f"{names.shard_set(dataset.name, target.rollout, servers.shard)} has {servers.ready} of {servers.replicas}"
        for servers in lacking[:_MAX_SHARDS]
    )
    more = f" and {len(lacking) - _MAX_SHARDS} other shards lack some" if len(lacking) > _MAX_SHARDS else ""
    waits = f"{lacks} servers ready{more}" if lacking else "its StatefulSets are not up to date"
    text = (
        f"{describe_rollout(dataset, target)} is not ready {desired.progress_deadline_seconds:g} s after"
        f" {target.started_at}: {waits}"
    )
    if trouble is None:
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, text)
    return Trouble(trouble.reason, f"{text}; {trouble.message}")


def diagnose_table(status: Status, situation: Situation) -> Trouble | None:
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


def _judge_waiting(status: Status, situation: Situation) -> Verdict:
    ticket = status.rollout_ticket
    waits = f"The rollout{describe_wait(ticket, situation.observed.turns.rollout)}"
    trouble = diagnose_ticket(ticket)
    if trouble is None:
        return Verdict("False", reasons.WAITING_FOR_TURN, waits)
    return Verdict("False", trouble.reason, f"{sentence(trouble.reason, trouble.message)} {waits}")


def _is_starting(target: Rollout, table: Table, situation: Situation) -> bool:
    return table.rollout != target.rollout or table.replicas < situation.desired.replicas


def _judge_starting(target: Rollout, status: Status, situation: Situation) -> Verdict:
    servers, shards = situation.desired.replicas, serving.shard_count(status, target)
    ready = readiness.count_ready_shards(target, servers, situation.observed)
    where = describe_rollout(situation.dataset, target)
    progress = f"{ready} of {shards} shards of {where} have their servers ready ({servers} each)."
    trouble = diagnose_candidate(status, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, progress)
    return Verdict("False", trouble.reason, f"{progress} {sentence(trouble.reason, trouble.message)}")


def _judge_confirming(table: Table, status: Status, situation: Situation) -> Verdict:
    overdue = diagnose_table(status, situation)
    if overdue is not None:
        return Verdict("False", overdue.reason, sentence(overdue.reason, overdue.message))
    return Verdict(
        "False", reasons.CONFIRMING, f"Routers take up routing table {table.version}, written {table.written_at}."
    )


def _describe_draining(table: Table, situation: Situation) -> str:
    if cutover.remaining_drain(table, situation) > 0:
        return f"what served before drains since {table.confirmed_at}."
    late = routers.behind(situation.observed, table)
    who = ", ".join(sorted(late)[:3])
    return f"what served before stays until {who} say that they answer from table {table.version}." if who else "done."


def _servers(count: int) -> str:
    return "server" if count == 1 else "servers"
