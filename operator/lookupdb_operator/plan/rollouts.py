"""A rollout before a routing table references it. This module says which rollout is asked for, claims and abandons
rollouts, counts their servers, and says when routers may be sent to them. It diagnoses what keeps a candidate from
getting on, for RolledOut and Degraded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.model import Observed, ObservedDataset, Pod, ShardSet, Trouble
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import clock, generations, promotion, reasons, store, turns
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolloutStatus, TableStatus

MOST_ROLLOUTS: Final = 12
"""Of a dataset at a time. So many exist only while routers confirm nothing for long and the spec keeps changing. Status
has room for 16."""
GRACE: Final = 60.0
"""Seconds from the claim of a rollout for which servers in trouble are waited for, though enough others are ready."""
_MAX_SHARDS: Final = 3
"""Named in one message."""


def target_rollout(status: DatasetStatus, situation: Situation) -> RolloutStatus | None:
    """The rollout that is asked for, once it is claimed: that of ``target_generation`` from the present pod
    template. An unfinished candidate of the same spec comes first unless it is stuck: data that is refreshed faster
    than rolled out would else never be served."""
    generation = target_generation(status, situation)
    if generation is None:
        return None
    if situation.desired.is_suspended:  # whatever its pod template
        return None if status.table is None else status.find_rollout(status.table.rollout)
    fixed = generations.has_fixed_target(status, situation.desired)
    candidate = None if fixed else unfinished_candidate(status, situation)
    if candidate is None or candidate.generation == generation.generation:
        return _find_standing_rollout(generation, status, situation) or _find_rollout(generation, status, situation)
    return _find_rollout(generation, status, situation) if is_stuck(candidate, status, situation) else candidate


def target_generation(status: DatasetStatus, situation: Situation) -> GenerationStatus | None:
    """The generation that is asked for (``generations``). But what serves comes before one that would wait for
    promotion, while it is of an older pod template: a new image reaches it though nobody promotes anything."""
    generation, table = generations.target_generation(status, situation.desired), status.table
    if generation is None or promotion.may_take_effect(generation.generation, status, situation.desired):
        return generation
    served = None if table is None else status.find_rollout(table.rollout)
    is_outdated = served is not None and not is_current(served, status, situation)
    return (generations.served_generation(status) if is_outdated else None) or generation


def unfinished_candidate(status: DatasetStatus, situation: Situation) -> RolloutStatus | None:
    """The newest rollout of the present spec and pod template that is not in effect yet: no routing table references
    it, or routers are taking up the one that does. What is held back by now, because the pin that asked for it was
    taken away or it was rejected, never comes before anything else."""
    return next(
        (
            rollout
            for rollout in reversed(status.rollouts)
            if _is_unfinished(rollout, status) and _is_of_present_spec(rollout, status, situation)
        ),
        None,
    )


def _is_unfinished(rollout: RolloutStatus, status: DatasetStatus) -> bool:
    table = status.table
    if table is not None and table.rollout == rollout.rollout:
        # One that a candidate waits beside was in effect before: routers take the candidate up, or other numbers.
        return not table.confirmed_at and status.candidate is None
    return rollout.is_candidate


def _is_of_present_spec(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    generation = status.find_generation(rollout.generation)
    if generation is None or generation.content != situation.desired.content_hash:
        return False
    return not generations.is_held_back(generation, status) and is_current(rollout, status, situation)


def _find_standing_rollout(
    generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> RolloutStatus | None:
    """A rollout of ``generation``, which is pinned, whose servers routers can be sent to now: of the present pod
    template rather than of an older one. None once they answer from this generation: then the present template counts.
    """
    table, desired = status.table, situation.desired
    if generation.generation != desired.pinned_generation or table is None or table.generation == generation.generation:
        return None
    template = situation.template_for(generation)
    standing = [
        rollout
        for rollout in reversed(status.rollouts)
        if rollout.generation == generation.generation
        and (rollout.workers or rollout.template == template)
        and is_servable(rollout, desired.replicas, status, situation)
    ]
    return min(standing, key=lambda rollout: rollout.template != template, default=None)


def _find_rollout(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> RolloutStatus | None:
    """The newest rollout of ``generation`` that is made from what it would be made from now."""
    template = situation.template_for(generation)
    return next(
        (
            rollout
            for rollout in reversed(status.rollouts)
            if (rollout.generation, rollout.template) == (generation.generation, template)
        ),
        None,
    )


def is_current(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` has the pod template that one of its generation would have now. Of an older template only the
    number of servers may change: what its pods are made from is not known any more."""
    generation = status.find_generation(rollout.generation)
    return generation is not None and situation.template_for(generation) == rollout.template


def claim_rollout(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the rollout that is asked for, its number claimed, or with a ticket. What serves stays as it is
    while no generation of the present spec is built."""
    generation = target_generation(status, situation)
    target = target_rollout(status, situation)
    if generation is None or target is not None:
        has_turn = target is not None and target.is_candidate
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket) if has_turn else None)
    if len(status.rollouts) >= MOST_ROLLOUTS:  # it could not use a turn
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket))
    template = situation.template_for(generation)
    if not turns.may_take_turn(situation.observed.turns.rollout, status.rollout_ticket, situation.now):
        return replace(status, rollout_ticket=turns.wait_for_turn(status.rollout_ticket, template, situation.now))
    number = status.last_rollout + 1
    claimed = RolloutStatus(
        rollout=names.rollout_name(number),
        generation=generation.generation,
        template=template,
        started_at=clock.format_moment(situation.now),
        workers=situation.desired.workers,
    )
    ticket = turns.take_turn(status.rollout_ticket)
    return replace(status, rollouts=(*status.rollouts, claimed), rollout_ticket=ticket, last_rollout=number)


def abandon_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without rollouts that no routing table ever referenced and that are not asked for any more. They go
    whether or not they are ready: a correction never waits for the mistake that it corrects."""
    target = target_rollout(status, situation)
    trouble = None if target is None else diagnose_stall(target, status, situation)
    if target is not None and trouble is not None and _must_yield(target, status, situation):
        ticket = turns.give_turn_up(status.rollout_ticket, trouble, target.template, situation.now)
        status, target = replace(status, rollout_ticket=ticket), None
    kept = tuple(rollout for rollout in status.rollouts if not rollout.is_candidate or rollout == target)
    return replace(status, rollouts=kept)


def _must_yield(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` has to give its turn up. One that a routing table references, or may reference by now, has no
    turn."""
    if not rollout.is_candidate or not situation.observed.turns.rollout.must_yield:
        return False
    return not is_servable(rollout, situation.desired.replicas, status, situation)


def desired_replicas(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> int:
    """How many servers each shard of ``rollout`` should have: as many as are asked for, also while it is kept, and
    never fewer than any routing table references that a router may answer from."""
    target, table = target_rollout(status, situation), status.table
    is_asked_for = rollout == target or (table is not None and table.rollout == rollout.rollout)
    is_whole = is_asked_for or bool(rollout.kept_since)
    return max(situation.desired.replicas if is_whole else 1, rollout.minimum_replicas)


def is_servable(rollout: RolloutStatus, replicas: int, status: DatasetStatus, situation: Situation) -> bool:
    """Whether routers may be sent to ``rollout``: all its servers are ready; or of each shard all but one, and at
    least one, while the others are in trouble after the grace, or the progress deadline has passed.

    The routing table references the missing servers too: routers use them once they come.
    """
    if is_ready(rollout, replicas, status, situation.observed):
        return True
    shards = tuple(list_shard_servers(rollout, replicas, status, situation.observed))
    if not shards or any(servers.ready < servers.needed_servers for servers in shards):
        return False
    if rollout.is_candidate and has_exceeded_deadline(rollout, status, situation):
        return True
    only_troubled_lack = all(servers.ready + servers.troubled >= servers.replicas for servers in shards)
    return only_troubled_lack and clock.seconds_until(rollout.started_at, GRACE, situation.now) == 0


def is_stuck(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` is unlikely to get into effect by itself: its deadline has passed, or a shard has too few
    servers without trouble."""
    if has_exceeded_deadline(rollout, status, situation):
        return True
    shards = list_shard_servers(rollout, situation.desired.replicas, status, situation.observed)
    return not all(servers.may_suffice for servers in shards)


def has_exceeded_deadline(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` should be in effect by now."""
    return remaining_progress(rollout, status, situation) == 0


def remaining_progress(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> float:
    """Seconds until the progress deadline of ``rollout``. It runs from the claim for its servers, and from when
    its table was written for the routers."""
    table = status.table
    is_referenced = table is not None and table.rollout == rollout.rollout
    since = table.written_at if table is not None and is_referenced else rollout.started_at
    return clock.seconds_until(since, situation.desired.progress_deadline_seconds, situation.now)


def next_progress_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until missing servers may be left out, or the rollout is overdue; None for neither."""
    target = target_rollout(status, situation)
    if target is None or not target.is_candidate:
        return None
    grace = clock.seconds_until(target.started_at, GRACE, situation.now)
    deadline = remaining_progress(target, status, situation)
    return min((wait for wait in (grace, deadline) if wait > 0), default=None)


def is_ready(rollout: RolloutStatus, replicas: int, status: DatasetStatus, observed: Observed) -> bool:
    """Whether every shard of ``rollout`` has ``replicas`` ready servers, pods 0 to replicas-1 among them."""
    generation = status.find_generation(rollout.generation)
    return generation is not None and count_ready_shards(rollout, replicas, observed) == generation.shards


def count_ready_shards(rollout: RolloutStatus, replicas: int, observed: Observed) -> int:
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
            for shard_set in observed.shard_sets
            if shard_set.rollout == rollout.rollout
            and not shard_set.deleting
            and min(shard_set.ready, ready[shard_set.shard]) >= max(replicas, shard_set.replicas)
        }
    )


@dataclass(frozen=True, slots=True)
class ShardServers:
    """The servers of one shard, pods 0 to replicas-1."""

    shard: int
    replicas: int
    ready: int
    troubled: int
    """Not ready, and in trouble or being deleted."""

    @property
    def needed_servers(self) -> int:
        """How many have to be ready before routers are sent to them: all but one, and at least one."""
        return max(1, self.replicas - 1)

    @property
    def may_suffice(self) -> bool:
        """Whether enough are ready, or may get ready though nobody ends the trouble of the others."""
        return self.replicas - self.troubled >= self.needed_servers


def list_shard_servers(
    rollout: RolloutStatus, replicas: int, status: DatasetStatus, observed: Observed
) -> Iterator[ShardServers]:
    """The servers of each shard of ``rollout``."""
    generation = status.find_generation(rollout.generation)
    pods: dict[int, dict[int, Pod]] = {}
    for pod in observed.pods:
        if pod.component == SHARDS and pod.rollout == rollout.rollout and _ordinal(pod) in range(replicas):
            pods.setdefault(pod.shard, {})[_ordinal(pod)] = pod
    sets = {
        shard_set.shard: shard_set
        for shard_set in observed.shard_sets
        if shard_set.rollout == rollout.rollout and not shard_set.deleting
    }
    for shard in range(0 if generation is None else generation.shards):
        yield _count_servers(shard, replicas, sets.get(shard), pods.get(shard, {}))


def _count_servers(shard: int, replicas: int, shard_set: ShardSet | None, pods: dict[int, Pod]) -> ShardServers:
    ready = sum(pod.ready and not pod.deleting for pod in pods.values())
    troubled = sum(pod.deleting or (not pod.ready and pod.trouble is not None) for pod in pods.values())
    if shard_set is not None and shard_set.trouble is not None:
        troubled += replicas - len(pods)
    # Either may be seen late: a StatefulSet whose controller has not seen its newest spec says that none is ready.
    return ShardServers(shard, replicas, min(ready, 0 if shard_set is None else shard_set.ready), troubled)


def _ordinal(pod: Pod) -> int:
    ordinal = pod.name.rpartition("-")[2]
    return int(ordinal) if ordinal.isascii() and ordinal.isdigit() else -1


def diagnose_obstacle(rollout: RolloutStatus, observed: Observed) -> Trouble | None:
    """What keeps servers of ``rollout`` from getting ready."""
    sets = (shard_set.trouble for shard_set in observed.shard_sets if shard_set.rollout == rollout.rollout)
    pods = (pod.trouble for pod in observed.pods if pod.rollout == rollout.rollout and not pod.ready)
    prefix = f"{names.rollout(observed.dataset.name, rollout.rollout)}-"
    refused = reasons.list_refusals(observed, "StatefulSet", prefix)
    return next((trouble for trouble in (*sets, *pods, *refused) if trouble is not None), None)


def diagnose_stall(candidate: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps ``candidate`` from getting on; also that it takes longer than it should."""
    trouble = diagnose_obstacle(candidate, situation.observed)
    if trouble is None and has_exceeded_deadline(candidate, status, situation):
        where = describe_rollout(situation.dataset, candidate)
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, f"{where} is not ready since {candidate.started_at}")
    return trouble


def note_stalls(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with what keeps the rollout that has its turn from getting on, and no other one."""
    candidate = turns.find_candidate(status)
    noted = tuple(
        replace(
            rollout,
            stall=turns.note_stall(rollout.stall, diagnose_stall(rollout, status, situation), situation.now)
            if rollout is candidate
            else None,
        )
        for rollout in status.rollouts
    )
    return replace(status, rollouts=noted)


def diagnose_candidate(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the servers of the target rollout, which no table references yet, from getting ready."""
    target, table, observed = target_rollout(status, situation), status.table, situation.observed
    if target is None:
        return turns.diagnose_ticket(status.rollout_ticket)
    if table is not None and not is_starting(target, table, situation):
        return None
    trouble = store.name_store(diagnose_obstacle(target, observed), situation)
    if not target.is_candidate or not has_exceeded_deadline(target, status, situation):
        return trouble
    return _diagnose_overdue(target, trouble, status, situation)


def _diagnose_overdue(
    target: RolloutStatus, trouble: Trouble | None, status: DatasetStatus, situation: Situation
) -> Trouble:
    """What ``target``, whose deadline has passed, waits for."""
    dataset, desired = situation.dataset, situation.desired
    shards = list_shard_servers(target, desired.replicas, status, situation.observed)
    lacking = [servers for servers in shards if servers.ready < servers.needed_servers]
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


def is_starting(target: RolloutStatus, table: TableStatus, situation: Situation) -> bool:
    """Whether no routing table references all servers that are asked for yet."""
    return table.rollout != target.rollout or table.replicas < situation.desired.replicas


def judge_starting(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> Verdict:
    """How far the servers of ``target`` are, and what keeps them."""
    replicas, shards = situation.desired.replicas, generations.count_shards(status, target)
    ready = count_ready_shards(target, replicas, situation.observed)
    where = describe_rollout(situation.dataset, target)
    progress = f"{ready} of {shards} shards of {where} have their servers ready ({replicas} each)."
    trouble = diagnose_candidate(status, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, progress)
    return Verdict("False", trouble.reason, f"{progress} {reasons.write_sentence(trouble.reason, trouble.message)}")


def judge_waiting(status: DatasetStatus, situation: Situation) -> Verdict:
    """Since when, and behind how many, the rollout waits for its turn; and why it gave up the last one."""
    ticket = status.rollout_ticket
    waits = f"The rollout{turns.describe_wait(ticket, situation.observed.turns.rollout)}"
    trouble = turns.diagnose_ticket(ticket)
    if trouble is None:
        return Verdict("False", reasons.WAITING_FOR_TURN, waits)
    return Verdict("False", trouble.reason, f"{reasons.write_sentence(trouble.reason, trouble.message)} {waits}")


def describe_rollout(dataset: ObservedDataset, rollout: RolloutStatus) -> str:
    """For people: ``airports-r3 (generation g2)``."""
    return f"{names.rollout(dataset.name, rollout.rollout)} (generation {rollout.generation})"
