"""A rollout before a routing table references it. This module says which rollout is asked for, claims and abandons
rollouts, says when routers may be sent to their servers, and notes what keeps one that has its turn from getting on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lookupdb_operator import manifests, names
from lookupdb_operator.model import Observed, ObservedDataset, Trouble
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.generation import generations, losses, promotion
from lookupdb_operator.plan.rollout import pushes, references, shard_windows
from lookupdb_operator.plan.rollout.shard_servers import count_ready_shards, list_shard_servers, next_overdue_in
from lookupdb_operator.plan.situation import Situation, decided_once
from lookupdb_operator.plan.turn import turns
from lookupdb_operator.replacing import replace
from lookupdb_operator.shard_ranges import ALL, shorten_shards
from lookupdb_operator.status import DatasetStatus, GenerationStatus, RolloutStatus

MOST_ROLLOUTS: Final = 12
"""Of a dataset at a time. So many exist only while routers confirm nothing for long and the spec keeps changing."""
MOST_IN_STATUS: Final = 16
"""For which a status has room. One that was lost keeps all that stand until another one serves, which needs a place."""
GRACE: Final = 60.0
"""Seconds from the claim of a rollout for which servers in trouble are waited for, though enough others are ready."""


@decided_once
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


@decided_once
def target_generation(status: DatasetStatus, situation: Situation) -> GenerationStatus | None:
    """The generation that is asked for (``generations``). But what serves comes before one that would wait for
    promotion, while it is of an older pod template: a new image reaches it though nobody promotes anything. Not once
    the store has lost it, and no server can be made of it: what could replace it would never be offered."""
    table, promoted = status.table, _find_promoted(status, situation)
    if promoted is not None and _gives_way(promoted, status, situation):
        status = replace(status, candidate=None)
    generation = generations.target_generation(status, situation.desired)
    if generation is None or promotion.may_take_effect(generation.generation, status, situation.desired):
        return generation
    served = None if table is None else status.find_rollout(table.rollout)
    if served is None or is_current(served, status, situation) or losses.is_renewal_lost(served, status, situation):
        return generation
    return generations.served_generation(status) or generation


def _find_promoted(status: DatasetStatus, situation: Situation) -> GenerationStatus | None:
    """The generation that waited and was promoted, if nothing else was asked for since."""
    desired = situation.desired
    if desired.is_suspended or desired.pinned_generation:
        return None
    return promotion.promoted_candidate(status, desired)


def _gives_way(promoted: GenerationStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether a newer generation comes before ``promoted``, which waited. Not while routers can be sent to it. Whoever
    has named it has decided, and may decide otherwise, but nobody waits for what the store has lost; where nothing
    needs to be promoted any more, a newer one comes before what is stuck or would be rolled out anew."""
    candidate = status.candidate
    rollout = None if candidate is None else status.find_rollout(candidate.rollout)
    if rollout is None:
        return True
    if is_servable(rollout, situation.desired.replicas, status, situation):
        return False
    if generations.find_reported_damage(promoted, status, situation) is not None:
        return True
    if situation.desired.promotion == promotion.MANUAL:
        return False
    return not is_current(rollout, status, situation) or is_stuck(rollout, status, situation)


@decided_once
def unfinished_candidate(status: DatasetStatus, situation: Situation) -> RolloutStatus | None:
    """The newest rollout of the present spec and pod template that is not in effect yet: no routing table
    references it, or routers are taking up the one that does, or it replaces another one shard by shard. What is
    held back by now, because the pin that asked for it was taken away or it was rejected, never comes before
    anything else."""
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
        return (not table.confirmed_at or bool(table.parts)) and status.candidate is None
    return rollout.is_candidate


def _is_of_present_spec(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    generation = status.find_generation(rollout.generation)
    if generation is None or generation.content != situation.desired.content_hash or rollout.overtaken_by:
        return False
    return not generations.is_held_back(generation, status) and is_current(rollout, status, situation)


def _find_standing_rollout(
    generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> RolloutStatus | None:
    """A rollout of ``generation``, which somebody has named, whose servers routers can be sent to now: of the present
    pod template rather than of an older one. None once they answer from this generation: then the present template
    counts."""
    table, desired = status.table, situation.desired
    is_pinned = table is not None and generation.generation == desired.pinned_generation
    if not is_pinned and generation != _find_promoted(status, situation):
        return None
    if table is not None and table.generation == generation.generation:
        return None
    template = situation.template_for(generation)
    standing = [
        rollout
        for rollout in reversed(status.rollouts)
        if rollout.generation == generation.generation
        and rollout.shard_ranges == ALL
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
            if (rollout.generation, rollout.template) == (generation.generation, template) and not rollout.overtaken_by
        ),
        None,
    )


def is_current(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` has the pod template that one of its generation would have now. Of an older template only the
    number of servers may change: what its pods are made from is not known any more."""
    generation = status.find_generation(rollout.generation)
    return generation is not None and situation.template_for(generation) == rollout.template


def with_current_alone(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without the rollouts of which nothing is written any more but Services and budgets."""
    current = tuple(rollout for rollout in status.rollouts if is_current(rollout, status, situation))
    return replace(status, rollouts=current)


def claim_rollout(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the rollout that is asked for, its number claimed, or with its next window, or with a ticket.
    What serves stays as it is while no generation of the present spec is built."""
    generation = target_generation(status, situation)
    target = target_rollout(status, situation)
    window = frozenset() if target is None else shard_windows.next_window(target, status, situation)
    if target is not None:
        generation = status.find_generation(target.generation)
    if generation is None or (target is not None and not window):
        has_turn = target is not None and target.is_starting
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket) if has_turn else None)
    if not _has_place(target, generation, status, situation):  # it could not use a turn
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket))
    template = situation.template_for(generation)
    if not turns.may_take_turn(situation.observed.turns.rollout, status.rollout_ticket, situation.now):
        return replace(status, rollout_ticket=turns.wait_for_turn(status.rollout_ticket, template, situation.now))
    status = replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket))
    if target is None:
        return _with_claimed_rollout(generation, status, situation)
    wider = shard_windows.with_next_window(target, window, status, situation)
    return replace(status, rollouts=tuple(wider if rollout == target else rollout for rollout in status.rollouts))


def _has_place(
    target: RolloutStatus | None, generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> bool:
    """Whether servers of ``generation`` may be made beside those that are there."""
    if target is None and len(status.rollouts) >= (MOST_IN_STATUS if status.table is None else MOST_ROLLOUTS):
        return False
    is_at_once = shard_windows.window_size(generation, status, situation) == generation.shards
    return is_at_once or shard_windows.may_begin(status, situation, is_first=target is None)


def _with_claimed_rollout(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> DatasetStatus:
    number = status.last_rollout + 1
    claimed = RolloutStatus(
        rollout=names.rollout_name(number),
        generation=generation.generation,
        template=situation.template_for(generation),
        started_at=clock.format_moment(situation.now),
        workers=situation.desired.workers,
        shard_ranges=shorten_shards(shard_windows.first_window(generation, status, situation), generation.shards),
        password_key=manifests.password_key(situation.dataset, situation.config),
    )
    return replace(status, rollouts=(*status.rollouts, claimed), last_rollout=number)


def abandon_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without servers that no routing table ever referenced and that are not asked for any more: whole
    rollouts, and windows. They go whether or not they are ready: a correction never waits for the mistake that it
    corrects."""
    target = target_rollout(status, situation)
    status = _without_going_on(target, status, situation)
    trouble = None if target is None else diagnose_stall(target, status, situation)
    if target is not None and trouble is not None and _must_yield(target, status, situation):
        ticket = turns.give_turn_up(
            status.rollout_ticket, trouble, target.template, situation.now, shares_store=situation.shares_store
        )
        status, target = replace(status, rollout_ticket=ticket), None
    kept = tuple(
        shard_windows.with_due_window(rollout, status, situation)
        if rollout == target
        else shard_windows.without_window(rollout, status)
        for rollout in status.rollouts
        if not rollout.is_candidate or rollout == target
    )
    return replace(status, rollouts=kept)


def _without_going_on(target: RolloutStatus | None, status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` in which a rollout shard by shard that newer data come before, because its window is stuck, does not
    go on. Without that window it would look as between two windows, and have it made again before the newer data."""
    is_fixed = generations.has_fixed_target(status, situation.desired)
    candidate = None if is_fixed else unfinished_candidate(status, situation)
    newer = target_generation(status, situation)
    if candidate is None or candidate == target or not candidate.window or newer is None:
        return status
    ended = replace(candidate, overtaken_by=newer.generation)
    return replace(status, rollouts=tuple(ended if rollout == candidate else rollout for rollout in status.rollouts))


def _must_yield(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` has to give its turn up. One all of whose servers a routing table references, or may
    reference by now, has no turn."""
    if not rollout.is_starting or not situation.observed.turns.rollout.must_yield:
        return False
    return not is_servable(rollout, situation.desired.replicas, status, situation)


def desired_replicas(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> int:
    """How many servers each shard of ``rollout`` should have: as many as are asked for, also while it is kept, and
    never fewer than any routing table references that a router may answer from."""
    is_asked_for = rollout == target_rollout(status, situation) or references.is_in_table(rollout.rollout, status.table)
    is_whole = is_asked_for or bool(rollout.kept_since)
    return max(situation.desired.replicas if is_whole else 1, rollout.minimum_replicas)


def is_servable(
    rollout: RolloutStatus,
    replicas: int,
    status: DatasetStatus,
    situation: Situation,
    shards: Collection[int] | None = None,
) -> bool:
    """Whether routers may be sent to ``shards`` of ``rollout``, or to those that they are not sent to yet
    (``awaited_shards``): all their servers are ready; or of each shard all but one, and at least one, while the others
    are in trouble after the grace, or the progress deadline has passed.

    The routing table references the missing servers too: routers use them once they come.
    """
    chosen = awaited_shards(rollout, status) if shards is None else shards
    if not chosen:
        return False
    if count_ready_shards(rollout, replicas, chosen, situation.observed) == len(chosen):
        return True
    servers_by_shard = tuple(list_shard_servers(rollout, replicas, chosen, situation))
    if any(servers.ready < servers.needed_servers for servers in servers_by_shard):
        return False
    if rollout.is_starting and has_exceeded_deadline(rollout, status, situation):
        return True
    only_troubled_lack = all(servers.ready + servers.troubled >= servers.replicas for servers in servers_by_shard)
    return only_troubled_lack and clock.seconds_until(rollout.started_at, GRACE, situation.now) == 0


def awaited_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards of ``rollout`` whose servers are waited for: those that the newest routing table does not route to it,
    or all."""
    return references.pending_shards(rollout, status) or references.held_shards(rollout, status)


def is_stuck(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` is unlikely to get into effect by itself: its deadline has passed, or a shard has too few
    servers without trouble. Not between two windows, when nothing of it starts."""
    table = status.table
    if table is not None and table.rollout == rollout.rollout and table.confirmed_at and not rollout.is_starting:
        return False
    if has_exceeded_deadline(rollout, status, situation):
        return True
    shards = list_shard_servers(rollout, situation.desired.replicas, awaited_shards(rollout, status), situation)
    return not all(servers.may_suffice for servers in shards)


def has_exceeded_deadline(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``rollout`` should be in effect by now."""
    return remaining_progress(rollout, status, situation) == 0


def remaining_progress(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> float:
    """Seconds until the progress deadline of ``rollout``. It runs from the claim for its servers, or those of its
    window, and from when its table was written for the routers."""
    table = status.table
    is_referenced = table is not None and table.rollout == rollout.rollout and not rollout.is_starting
    since = table.written_at if table is not None and is_referenced else rollout.started_at
    return clock.seconds_until(since, situation.desired.progress_deadline_seconds, situation.now)


def next_progress_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until missing servers may be left out, or the rollout is overdue, or one of its servers; None for
    none."""
    target = target_rollout(status, situation)
    if target is None:
        return None
    if not target.is_starting:
        return next_overdue_in(target, situation)
    grace = clock.seconds_until(target.started_at, GRACE, situation.now)
    deadline = remaining_progress(target, status, situation)
    return min((wait for wait in (grace, deadline) if wait > 0), default=None)


def diagnose_obstacle(
    rollout: RolloutStatus, observed: Observed, shards: Collection[int] | None = None
) -> Trouble | None:
    """What keeps servers of ``shards`` of ``rollout``, or of all, from getting ready; its push, too. What a pod says of
    itself comes before that a push was failed for good: it may be why."""
    sets = (
        shard_set.trouble
        for shard_set in observed.shard_sets
        if shard_set.rollout == rollout.rollout and (shards is None or shard_set.shard in shards)
    )
    pods = (
        pod.trouble
        for pod in observed.pods
        if pod.rollout == rollout.rollout
        and not pod.ready
        and (shards is None or pod.component == names.PUSHER or pod.shard in shards)
    )
    cluster = pushes.diagnose_cluster(rollout, observed)
    pushed = (other.trouble for other in observed.other_objects if other.rollout == rollout.rollout)
    prefix = f"{names.rollout(observed.dataset.name, rollout.rollout)}-"
    refused = (trouble for kind in ("StatefulSet", "Job") for trouble in reasons.list_refusals(observed, kind, prefix))
    return next((trouble for trouble in (cluster, *sets, *pods, *pushed, *refused) if trouble is not None), None)


def diagnose_stall(candidate: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps ``candidate`` from getting on; also that it takes longer than it should."""
    trouble = diagnose_obstacle(candidate, situation.observed, awaited_shards(candidate, status))
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
            stall=turns.note_stall(
                rollout.stall,
                diagnose_stall(rollout, status, situation),
                situation.now,
                shares_store=situation.shares_store,
            )
            if rollout is candidate
            else None,
        )
        for rollout in status.rollouts
    )
    return replace(status, rollouts=noted)


def describe_rollout(dataset: ObservedDataset, rollout: RolloutStatus) -> str:
    """For people: ``airports-r3 (generation g2)``."""
    return f"{names.rollout(dataset.name, rollout.rollout)} (generation {rollout.generation})"
