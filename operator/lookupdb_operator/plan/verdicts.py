"""What each condition says: a truth, a reason for machines, a sentence for people. Nothing is decided by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Observed, Trouble
from lookupdb_operator.plan import (
    build,
    cutover,
    draining,
    generations,
    hints,
    reasons,
    recovery,
    routers,
    serving,
    troubles,
)
from lookupdb_operator.plan import rollout as rollouts
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Build, Failure, Rollout, Status, Table, Truth

_TROUBLES_TOLD: Final = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition says."""

    status: Truth
    reason: str
    message: str


def ready(status: Status, observed: Observed) -> Verdict:
    """Whether lookups are answered: of every shard, by something that a router in effect names."""
    if recovery.is_lost(status):
        kept = ", ".join(names.rollout(observed.dataset.name, one.rollout) for one in status.rollouts if one.named)
        return Verdict(
            "Unknown",
            reasons.STATUS_LOST,
            f"The status was lost or set back: what routers answer from is not known. {kept} stays until a new"
            " generation serves.",
        )
    if not serving.answers(status):
        return Verdict("False", reasons.NO_ROUTING_TABLE, "Nothing is rolled out yet; lookups are answered 503.")
    for rollout in serving.in_effect(status):
        lacking = serving.lacking(status, rollout, 1, observed)
        if lacking:
            shards = ", ".join(str(shard) for shard in list(lacking)[:10])
            shards = f"shard {shards}" if len(lacking) == 1 else f"shards {shards}"
            more = ", …" if len(lacking) > 10 else ""
            where = names.rollout(observed.dataset.name, rollout.rollout)
            return Verdict(
                "False",
                reasons.SHARDS_UNAVAILABLE,
                f"No server of {where} is ready for {shards}{more}: lookups of keys there are answered 503.",
            )
    if not serving.ready_routers(observed):
        return Verdict("False", reasons.NO_ROUTER_READY, "No router is ready: requests find nobody to answer them.")
    return Verdict(
        "True", reasons.SERVING, f"{status.generation} serves {status.records} records at {status.endpoint}."
    )


def built(status: Status, situation: Situation) -> Verdict:
    """Whether the store holds what is asked for."""
    wish, under_way = situation.wish, status.build
    trouble = troubles.of_build(status, situation.observed)
    if trouble is not None:
        message = f"{hints.sentence(trouble.reason, trouble.message)}{_next_attempt(under_way, status.failure)}"
        return Verdict("False", trouble.reason, message)
    if under_way is not None:
        return Verdict(
            "False", reasons.BUILDING, f"{under_way.generation} is being built since {under_way.started_at}."
        )
    generation = generations.wanted(status, wish)
    if generation is None or build.is_needed(status, wish):
        return Verdict("False", reasons.BUILDING, "A build is about to begin.")
    message = f"{generation.generation} holds {generation.records} records in {generation.shards} shards."
    return Verdict("True", reasons.GENERATION_BUILT, message)


def rolled_out(status: Status, situation: Situation) -> Verdict:
    """Whether what is asked for is what serves."""
    wanted, table = rollouts.wanted(status, situation), status.table
    if wanted is None:
        serves = f" Until then {status.generation} keeps serving." if serving.answers(status) else ""
        return Verdict("False", reasons.WAITING_FOR_BUILD, f"What the spec asks for is not built yet.{serves}")
    if table is None or table.rollout != wanted.rollout or table.replicas < situation.wish.replicas:
        return _starting(wanted, status, situation)
    if not table.confirmed_at:
        return _confirming(table, status, situation)
    where = rollouts.called(situation.dataset, wanted)
    if draining.is_draining(status):
        return Verdict("True", reasons.DRAINING, f"Routers answer from {where}; {_drains(table, situation)}")
    servers = f"{table.replicas} {_servers(table.replicas)} a shard"
    return Verdict("True", reasons.UP_TO_DATE, f"Routers answer from {where}, {servers}.")


def degraded(status: Status, found: tuple[Trouble, ...], *, serves: bool) -> Verdict:
    """Whether anything is wrong, though it may serve: ``serves`` says whether it does."""
    if not found:
        return Verdict("False", reasons.HEALTHY, "Nothing is wrong.")
    told = " ".join(hints.sentence(trouble.reason, trouble.message) for trouble in found[:_TROUBLES_TOLD])
    more = f" And {len(found) - _TROUBLES_TOLD} more." if len(found) > _TROUBLES_TOLD else ""
    keeps = f" {status.generation} keeps serving." if serves else ""
    attempt = _next_attempt(status.build, status.failure)
    return Verdict("True", found[0].reason, f"{told}{more}{keeps}{attempt}")


def _next_attempt(under_way: Build | None, failure: Failure | None) -> str:
    if failure is None:
        return ""
    if under_way is not None:
        return f" Attempt {failure.count + 1} is {under_way.generation}, since {under_way.started_at}."
    return f" The next attempt is at {failure.retry_at}, or as soon as the spec changes."


def _starting(wanted: Rollout, status: Status, situation: Situation) -> Verdict:
    servers, shards = situation.wish.replicas, serving.shard_count(status, wanted)
    have = cutover.ready_shards(wanted, servers, situation.observed)
    where = rollouts.called(situation.dataset, wanted)
    progress = f"{have} of {shards} shards of {where} have their servers ready ({servers} each)."
    trouble = troubles.of_rollout(status, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, progress)
    return Verdict("False", trouble.reason, f"{progress} {hints.sentence(trouble.reason, trouble.message)}")


def _confirming(table: Table, status: Status, situation: Situation) -> Verdict:
    overdue = troubles.of_table(status, situation)
    if overdue is not None:
        return Verdict("False", overdue.reason, hints.sentence(overdue.reason, overdue.message))
    return Verdict(
        "False", reasons.CONFIRMING, f"Routers take up routing table {table.version}, written {table.written_at}."
    )


def _servers(count: int) -> str:
    return "server" if count == 1 else "servers"


def _drains(table: Table, situation: Situation) -> str:
    if draining.remaining(table, situation) > 0:
        return f"what served before drains since {table.confirmed_at}."
    late = routers.behind(situation.observed, table)
    who = ", ".join(sorted(late)[:3])
    return f"what served before stays until {who} say that they answer from table {table.version}." if who else "done."
