"""``spec.suspend``: nothing is built, rolled out or changed, and what serves goes on serving.

    what                                  while suspended
    a build under way                     ends: its Job is deleted, its number is past
    a candidate                           is abandoned: no routing table references it
    a table that routers take up          is confirmed; what served before drains and is retired
    a rollout that is kept                is retired when its time has passed
    objects of what serves, and routers,  are made again: servers if the pod template is as it was, the rest as the spec
    that are gone or were changed         says now
    edits of the spec                     wait, also of replicas and routers
    trimming                              waits
    the store's Secret, lost pods         as ever

No part of it is remembered: the step that decides, ``generations.target_generation`` and ``rollouts.target_rollout``
above all, asks for what serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from lookupdb.wording import format_count
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Absence, Manifest, Observed, ObservedDataset, Pod, ShardSet, Trouble
from lookupdb_operator.names import SHARDS
from lookupdb_operator.plan import clock, generations, losses, pushes, reasons, secrets, turns, windows
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.situation import Situation, decided_once, render_permanent_objects
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import (
    ALL,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    TableStatus,
    format_shards,
    shorten_shards,
)

# The servers of a rollout's shards, counted: how many are ready, and how many in trouble. Nothing is decided here.


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


# A rollout before a routing table references it. This module says which rollout is asked for, claims and abandons
# rollouts, says when routers may be sent to their servers, and notes what keeps one that has its turn from getting on.


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
    if generation is None or generations.may_take_effect(generation.generation, status, situation.desired):
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
    return generations.promoted_candidate(status, desired)


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
    if situation.desired.promotion == generations.MANUAL:
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
    window = frozenset() if target is None else windows.next_window(target, status, situation)
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
    wider = windows.with_next_window(target, window, status, situation)
    return replace(status, rollouts=tuple(wider if rollout == target else rollout for rollout in status.rollouts))


def _has_place(
    target: RolloutStatus | None, generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> bool:
    """Whether servers of ``generation`` may be made beside those that are there."""
    if target is None and len(status.rollouts) >= (MOST_IN_STATUS if status.table is None else MOST_ROLLOUTS):
        return False
    is_at_once = windows.window_size(generation, status, situation) == generation.shards
    return is_at_once or windows.may_begin(status, situation, is_first=target is None)


def _with_claimed_rollout(generation: GenerationStatus, status: DatasetStatus, situation: Situation) -> DatasetStatus:
    number = status.last_rollout + 1
    claimed = RolloutStatus(
        rollout=names.rollout_name(number),
        generation=generation.generation,
        template=situation.template_for(generation),
        started_at=clock.format_moment(situation.now),
        workers=situation.desired.workers,
        shard_ranges=shorten_shards(windows.first_window(generation, status, situation), generation.shards),
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
        windows.with_due_window(rollout, status, situation)
        if rollout == target
        else windows.without_window(rollout, status)
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
    is_asked_for = rollout == target_rollout(status, situation) or windows.is_in_table(rollout.rollout, status.table)
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
    return windows.pending_shards(rollout, status) or windows.held_shards(rollout, status)


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


# Servers of the rollout that is asked for that no routing table references yet: how far they are, what they wait for
# and what keeps them from getting ready, for RolledOut and Degraded.


_MAX_SHARDS: Final = 3
"""Named in one message."""


def diagnose_candidate(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the servers of the target rollout, which no table references yet, from getting ready."""
    target, table = target_rollout(status, situation), status.table
    if target is None or (table is not None and not is_starting(target, table, status, situation)):
        return _diagnose_ticket(status, situation)
    trouble = _diagnose_servers(target, status, situation)
    return None if trouble is None else losses.with_loss_advice(trouble, target.generation, status, situation)


def _diagnose_ticket(status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why the last turn of the rollout that is asked for was given up."""
    ticket, generation = status.rollout_ticket, target_generation(status, situation)
    trouble = turns.diagnose_ticket(ticket)
    if trouble is None or ticket is None or generation is None or ticket.digest != situation.template_for(generation):
        return trouble
    return losses.with_loss_advice(trouble, generation.generation, status, situation)


def _diagnose_servers(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """What keeps the servers of ``target`` from getting ready."""
    observed = situation.observed
    shards = awaited_shards(target, status)
    trouble = secrets.name_store(diagnose_obstacle(target, observed, shards), situation)
    if trouble is not None:
        trouble = pushes.with_next_push(trouble, target, with_current_alone(status, situation), situation)
    servers = tuple(list_shard_servers(target, situation.desired.replicas, shards, situation))
    if target.is_starting:
        is_overdue = has_exceeded_deadline(target, status, situation)
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
    text = f"{describe_rollout(dataset, target)} is not ready {since}: {waits}"
    if trouble is None:
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, text)
    return Trouble(trouble.reason, f"{text}; {trouble.message}")


def is_starting(target: RolloutStatus, table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether ``target`` has servers that are asked for and that no routing table references yet."""
    if table.rollout != target.rollout or table.replicas < situation.desired.replicas:
        return True
    return bool(windows.pending_shards(target, status))


def judge_starting(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> Verdict:
    """How far the servers of ``target`` are, and what keeps them."""
    replicas, shards = situation.desired.replicas, awaited_shards(target, status)
    ready = count_ready_shards(target, replicas, shards, situation.observed)
    where = describe_rollout(situation.dataset, target)
    which = f" ({format_shards(shards)})" if len(shards) < generations.count_shards(status, target) else ""
    why = f"{_explain_push(target, status, situation)}{_explain_at_once(target, status, situation)}"
    why += _explain_promotion(target, status, situation)
    progress = (
        f"{windows.describe_progress(status)}{ready} of {format_count(len(shards), 'shard')}{which} of {where}"
        f" {'has its' if len(shards) == 1 else 'have their'} servers ready ({replicas} each).{why}"
    )
    trouble = diagnose_candidate(status, situation)
    idle = _describe_idle_annotations(status, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, f"{progress}{idle}")
    text = reasons.write_sentence(trouble.reason, trouble.message)
    return Verdict("False", trouble.reason, f"{progress} {text}{idle}")


def _explain_promotion(target: RolloutStatus, status: DatasetStatus, situation: Situation) -> str:
    promoted = generations.promoted_candidate(status, situation.desired)
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
    why = "" if generation is None else windows.explain_at_once(generation, status, situation)
    return f" All shards are replaced at once: {why}." if why and target.is_starting else ""


def judge_waiting(status: DatasetStatus, situation: Situation) -> Verdict:
    """Since when, and behind how many, the rollout waits for its turn; and why it gave up the last one."""
    ticket = status.rollout_ticket
    progress = windows.describe_progress(status)
    what = f"{progress}the rollout" if progress else "The rollout"
    idle = _describe_idle_annotations(status, situation)
    waits = f"{what}{turns.describe_wait(ticket, situation.observed.turns.rollout)}{idle}"
    trouble = _diagnose_ticket(status, situation)
    if trouble is None:
        return Verdict("False", reasons.WAITING_FOR_TURN, waits)
    return Verdict("False", trouble.reason, f"{reasons.write_sentence(trouble.reason, trouble.message)} {waits}")


def _describe_idle_annotations(status: DatasetStatus, situation: Situation) -> str:
    """A sentence about an annotation that does nothing. One that promotes what is about to be rolled out does."""
    generation, promoted = target_generation(status, situation), situation.desired.promote
    is_next = generation is not None and generation.generation == promoted
    is_early = is_next and not generations.is_premature(promoted, status)
    return "" if is_early else generations.describe_idle_annotations(status, situation.desired)


def end_build(status: DatasetStatus) -> DatasetStatus:
    """``status`` without a build, and without a turn or an attempt to wait for."""
    return replace(status, build=None, failure=None, build_ticket=None)


def without_edits(manifests_due: Iterable[Manifest], situation: Situation) -> tuple[Manifest, ...]:
    """``manifests_due`` without routers and network policies that are as an earlier spec had them."""
    permanent = {_object_name(manifest) for manifest in render_permanent_objects(situation.ingredients)}
    intact = {
        (existing.ref.kind, existing.ref.name)
        for existing in situation.observed.other_objects
        if not existing.changed and not existing.deleting
    }
    return tuple(manifest for manifest in manifests_due if _object_name(manifest) not in permanent & intact)


def without_permanent_objects(observed: Observed) -> Observed:
    """``observed`` without what is of no rollout and no generation: none of it is deleted."""
    numbered = (existing for existing in observed.other_objects if existing.rollout or existing.generation)
    return replace(observed, other_objects=tuple(numbered))


def _object_name(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def judge_serving(table: TableStatus | None, status: DatasetStatus, situation: Situation) -> Verdict:
    """RolledOut of a dataset that is suspended, of which nothing is being taken up or drains."""
    held = "Nothing is built or rolled out while spec.suspend is true"
    rollout = None if table is None else status.find_rollout(table.rollout)
    if table is None or rollout is None:
        is_lost = any(other.referenced_replicas for other in status.rollouts)
        serves = "what serves stays, and nobody knows what it is" if is_lost else "nothing serves"
        return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}.")
    progress = windows.describe_progress(status).rstrip("; ")
    serves = progress or f"routers answer from {describe_rollout(situation.dataset, rollout)}"
    if is_as_specified(table, status, situation):
        return Verdict("True", reasons.SUSPENDED, f"{held}; {serves}.")
    return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}, and what the spec asks for waits.")


def is_as_specified(table: TableStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Whether what ``table`` references is what would be asked for without the suspension."""
    target = generations.target_generation(status, replace(situation.desired, is_suspended=False))
    rollout = status.find_rollout(table.rollout)
    parsed = situation.dataset.parsed
    return (
        target is not None
        and rollout is not None
        and parsed is not None
        and target.generation == table.generation
        and not table.parts
        and parsed.replicas == table.replicas
        and is_current(rollout, status, situation)
    )
