"""Servers of the rollout that is asked for that no routing table references yet: how far they are, what they wait for
and what keeps them from getting ready, for RolledOut and Degraded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import names
from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons, store
from lookupdb_operator.plan.generation import generations, loss_advice, promotion
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.rollout import pushes, references, rollouts, shard_windows
from lookupdb_operator.plan.rollout.shard_servers import ShardServers, count_ready_shards, list_shard_servers
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.plan.turn import turns
from lookupdb_operator.shard_ranges import format_shards
from lookupdb_operator.status import DatasetStatus, RolloutStatus, TableStatus

_MAX_SHARDS: Final = 3
"""Named in one message."""


def diagnose_candidate(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the servers of the target rollout, which no table references yet, from getting ready."""
    target, table = rollouts.target_rollout(status, situation), status.table
    if target is None or (table is not None and not is_starting(target, table, status, situation)):
        return _diagnose_ticket(status, situation)
    trouble = _diagnose_servers(target, status, situation)
    return None if trouble is None else loss_advice.with_advice(trouble, target.generation, status, situation)


def _diagnose_ticket(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why the last turn of the rollout that is asked for was given up."""
    ticket, generation = status.rollout_ticket, rollouts.target_generation(status, situation)
    trouble = turns.diagnose_ticket(ticket)
    if trouble is None or ticket is None or generation is None or ticket.digest != situation.template_for(generation):
        return trouble
    return loss_advice.with_advice(trouble, generation.generation, status, situation)


def _diagnose_servers(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the servers of ``target`` from getting ready."""
    observed = situation.observed
    shards = rollouts.awaited_shards(target, status)
    trouble = store.name_store(rollouts.diagnose_obstacle(target, observed, shards), situation)
    if trouble is not None:
        trouble = pushes.with_next_push(trouble, target, rollouts.with_current_alone(status, situation), situation)
    servers = tuple(list_shard_servers(target, situation.desired.replicas, shards, situation))
    if target.is_starting:
        is_overdue = rollouts.has_exceeded_deadline(target, status, situation)
    else:  # it was ready once, and stands for longer than its deadline
        is_overdue = any(shard.overdue for shard in servers)
    return _diagnose_overdue(target, servers, trouble, situation) if is_overdue else trouble


def _diagnose_overdue(
    target: RolloutStatus, shards: Iterable[ShardServers], trouble: Trouble | None, situation: Situation
) -> Trouble:
    """What ``target`` waits for, whose deadline has passed, or that of some of its servers."""
    dataset, desired = situation.dataset, situation.desired
    lacking = [servers for servers in shards if servers.ready < servers.needed_servers]
    lacks = ", ".join(
        f"{names.shard_set(dataset.name, target.rollout, servers.shard)} has {servers.ready} of {servers.replicas}"
        for servers in lacking[:_MAX_SHARDS]
    )
    others = format_count(len(lacking) - _MAX_SHARDS, "other shard")
    more = f", and servers of {others} are not ready either" if len(lacking) > _MAX_SHARDS else ""
    waits = f"{lacks} servers ready{more}" if lacking else "its StatefulSets are not up to date"
    seconds = f"{desired.progress_deadline_seconds:g} s"
    since = f"{seconds} after {target.started_at}" if target.is_starting else f"for more than {seconds}"
    text = f"{rollouts.describe_rollout(dataset, target)} is not ready {since}: {waits}"
    if trouble is None:
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, text)
    return Trouble(trouble.reason, f"{text}; {trouble.message}")


def is_starting(target: RolloutStatus, table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``target`` has servers that are asked for and that no routing table references yet."""
    if table.rollout != target.rollout or table.replicas < situation.desired.replicas:
        return True
    return bool(references.pending_shards(target, status))


def judge_starting(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> Verdict:
    """How far the servers of ``target`` are, and what keeps them."""
    replicas, shards = situation.desired.replicas, rollouts.awaited_shards(target, status)
    ready = count_ready_shards(target, replicas, shards, situation.observed)
    where = rollouts.describe_rollout(situation.dataset, target)
    which = f" ({format_shards(shards)})" if len(shards) < generations.count_shards(status, target) else ""
    why = f"{_explain_push(target, status, situation)}{_explain_at_once(target, status, situation)}"
    why += _explain_promotion(target, status, situation)
    progress = (
        f"{shard_windows.describe_progress(status)}{ready} of {format_count(len(shards), 'shard')}{which} of {where}"
        f" {'has its' if len(shards) == 1 else 'have their'} servers ready ({replicas} each).{why}"
    )
    trouble = diagnose_candidate(status, situation)
    idle = _describe_idle_annotations(status, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, f"{progress}{idle}")
    text = reasons.write_sentence(trouble.reason, trouble.message)
    return Verdict("False", trouble.reason, f"{progress} {text}{idle}")


def _explain_promotion(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> str:
    promoted = promotion.promoted_candidate(status, situation.desired)
    if promoted is None or promoted.generation != target.generation:
        return ""
    return f" It is promoted, and serves when they are; {names.REJECT}={target.generation} gives it up."


def _explain_push(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> str:
    image = situation.dataset.spec["serving"]["delivery"].get("image")
    if image is None or pushes.is_pushed(target, situation.observed):
        return ""
    again = pushes.describe_next_attempt(target, status, situation.observed)
    return f" Its images are pushed to {image['repository']} first{again}."


def _explain_at_once(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> str:
    generation = status.find_generation(target.generation)
    why = "" if generation is None else shard_windows.explain_at_once(generation, status, situation)
    return f" All shards are replaced at once: {why}." if why and target.is_starting else ""


def judge_waiting(status: DatasetStatus, situation: Situation) -> Verdict:
    """Since when, and behind how many, the rollout waits for its turn; and why it gave up the last one."""
    ticket = status.rollout_ticket
    progress = shard_windows.describe_progress(status)
    what = f"{progress}the rollout" if progress else "The rollout"
    idle = _describe_idle_annotations(status, situation)
    waits = f"{what}{turns.describe_wait(ticket, situation.observed.turns.rollout)}{idle}"
    trouble = _diagnose_ticket(status, situation)
    if trouble is None:
        return Verdict("False", reasons.WAITING_FOR_TURN, waits)
    return Verdict("False", trouble.reason, f"{reasons.write_sentence(trouble.reason, trouble.message)} {waits}")


def _describe_idle_annotations(status: DatasetStatus, situation: Situation) -> str:
    """A sentence about an annotation that does nothing. One that promotes what is about to be rolled out does."""
    generation, promoted = rollouts.target_generation(status, situation), situation.desired.promote
    is_next = generation is not None and generation.generation == promoted
    is_early = is_next and not promotion.is_premature(promoted, status)
    return "" if is_early else promotion.describe_idle_annotations(status, situation.desired)
