"""Rollouts: which one should serve (``find_target``), when it is claimed or abandoned, when routers may be sent to its
servers, and what delays it.

While ``spec.suspend`` is true, nothing is built, rolled out or changed, and the active generation serves:

    object                                while suspended
    a build under way                     ends: its Job is deleted, its number is not reused
    a candidate                           is abandoned: no routing table references it
    a table that routers take up          is confirmed; what served before drains and is retired
    a rollout that is kept                is retired when its time has passed
    active objects, and routers,          are made again: servers if the pod template is unchanged, the rest by the
    that are gone or were changed         current spec
    edits of the spec                     wait, also those of replicas and routers
    generations that nothing needs        stay
    the store's Secret, lost pods         as usual

None of this is stored: meanwhile, ``generations.target_generation`` and ``find_target`` return what is active.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from lookupdb.backoff import delay_after
from lookupdb.wording import format_count
from lookupdb_operator import manifests, names
from lookupdb_operator.model import (
    ExistingObject,
    Manifest,
    ObjectRef,
    Observed,
    ObservedDataset,
    Trouble,
    format_moment,
    parse_moment,
    seconds_until,
)
from lookupdb_operator.plan import generations, reasons, turns, windows
from lookupdb_operator.plan.reasons import Verdict
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import (
    ALL,
    DatasetStatus,
    GenerationStatus,
    PushStatus,
    RolloutStatus,
    TableStatus,
    format_shards,
    replace,
    shorten_shards,
)

MOST_ROLLOUTS: Final = 12
"""Maximum number of rollouts of a dataset. It is reached only if routers confirm nothing for a long time while the spec
keeps changing, or if cutovers follow each other faster than servers drain."""
MOST_IN_STATUS: Final = 16
"""Maximum number of rollouts in a status. A lost status takes in all existing ones, which stay until a new one serves.
The new one needs a place, too."""
GRACE: Final = 60.0
"""For this many seconds after its claim, a rollout waits for servers in trouble, although enough others are ready."""


@dataclass(frozen=True, slots=True)
class PassTarget:
    """The generation and the rollout that a dataset should serve, found once in a pass."""

    generation: GenerationStatus | None = None
    """The desired generation; None while there is none that could serve."""
    rollout: RolloutStatus | None = None
    """The desired rollout; None until it is claimed."""
    unfinished: RolloutStatus | None = None
    """The newest rollout of the current spec that is not in effect yet; None also if the generation is fixed."""


def find_target(status: DatasetStatus, situation: Situation) -> PassTarget:
    """Return the desired generation, and its rollout from the current pod template. An unfinished rollout of the same
    spec comes first unless it is stuck. Otherwise data that is refreshed faster than it is rolled out would never
    serve."""
    generation = _desired_generation(status, situation)
    if generation is None:
        return PassTarget()
    if situation.desired.is_suspended:  # whatever its pod template
        return PassTarget(generation, None if status.table is None else status.find_rollout(status.table.rollout))
    # Fixed: a pinned generation, or what serves while the newest is held back. No unfinished rollout comes before it.
    newest = generations.up_to_date_generation(status, situation.desired)
    is_held_back = newest is not None and generations.is_held_back(newest, status)
    is_fixed = bool(situation.desired.pinned_generation) or is_held_back
    unfinished = None if is_fixed else _unfinished_candidate(status, situation)
    if unfinished is None or unfinished.generation == generation.generation:
        rollout = _find_standing_rollout(generation, status, situation) or _find_rollout(generation, status, situation)
    elif is_stuck(unfinished, status, situation):
        rollout = _find_rollout(generation, status, situation)
    else:
        rollout = unfinished
    return PassTarget(generation, rollout, unfinished)


def _desired_generation(status: DatasetStatus, situation: Situation) -> GenerationStatus | None:
    """Return the desired generation (``generations.target_generation``). An active generation with an outdated pod
    template comes before one that would wait for promotion, so a new image needs no promotion."""
    table, promoted = status.table, _find_promoted(status, situation)
    if promoted is not None and _gives_way(promoted, status, situation):
        status = replace(status, candidate=None)
    generation = generations.target_generation(status, situation.desired)
    if generation is None or generations.may_take_effect(generation.generation, status, situation.desired):
        return generation
    served = None if table is None else status.find_rollout(table.rollout)
    if served is None or is_current(served, status, situation):
        return generation
    return generations.served_generation(status) or generation


def _find_promoted(status: DatasetStatus, situation: Situation) -> GenerationStatus | None:
    """Return the promoted candidate, unless the dataset is suspended or pinned."""
    desired = situation.desired
    if desired.is_suspended or desired.pinned_generation:
        return None
    return generations.promoted_candidate(status, desired)


def _gives_way(promoted: GenerationStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether a newer generation replaces ``promoted``, which waits to take effect. It does not while routers
    can be sent to ``promoted``, because a user chose that. It does if ``promoted`` is damaged, or, once promotion is
    automatic again, if it is stuck or must be rolled out again."""
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


def _unfinished_candidate(status: DatasetStatus, situation: Situation) -> RolloutStatus | None:
    """The newest rollout of the current spec and pod template that is not in effect everywhere yet. One that is held
    back now, because its pin was removed or it was rejected, does not count."""
    table = status.table
    for rollout in reversed(status.rollouts):
        if table is not None and table.rollout == rollout.rollout:
            # A table with a candidate was written for a rollout that was in effect already: it only adds the candidate,
            # or changes the number of servers.
            is_unfinished = (not table.confirmed_at or bool(table.parts)) and status.candidate is None
        else:
            is_unfinished = rollout.is_candidate
        generation = status.find_generation(rollout.generation) if is_unfinished else None
        if generation is None or generation.content != situation.desired.content_hash or rollout.overtaken_by:
            continue
        if not generations.is_held_back(generation, status) and is_current(rollout, status, situation):
            return rollout
    return None


def _find_standing_rollout(
    generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> RolloutStatus | None:
    """Return a rollout of ``generation``, which a user has named, if routers can use it now. It may have an older pod
    template. None once routers answer from this generation: then the current template applies."""
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
    """The newest rollout of ``generation`` that has the current pod template."""
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
    """Return whether ``rollout`` has the current pod template. If not, only its number of servers may
    change."""
    generation = status.find_generation(rollout.generation)
    return generation is not None and situation.template_for(generation) == rollout.template


def claim_rollout(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` with the target rollout or its next window claimed, or queued for a slot. The active rollout
    stays until a generation of the current spec is built."""
    desired = find_target(status, situation)
    generation, target = desired.generation, desired.rollout
    window = frozenset() if target is None else windows.next_window(target, status, situation)
    if target is not None:
        generation = status.find_generation(target.generation)
    if generation is None or (target is not None and not window):
        has_turn = target is not None and target.is_starting
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket) if has_turn else None)
    if not _has_place(target, generation, status, situation):  # it could not use a slot
        return replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket))
    template = situation.template_for(generation)
    if not turns.may_take_turn(situation.observed.turns.rollout, status.rollout_ticket, situation.now):
        return replace(status, rollout_ticket=turns.wait_for_turn(status.rollout_ticket, template, situation.now))
    status = replace(status, rollout_ticket=turns.take_turn(status.rollout_ticket))
    if target is None:
        number, size = status.last_rollout + 1, windows.window_size(generation, status, situation)
        claimed = RolloutStatus(
            rollout=names.rollout_name(number),
            generation=generation.generation,
            template=template,
            started_at=format_moment(situation.now),
            workers=situation.desired.spec.serving_workers,
            shard_ranges=shorten_shards(range(size), generation.shards),
            password_key=manifests.password_key(situation.dataset, situation.config),
        )
        return replace(status, rollouts=(*status.rollouts, claimed), last_rollout=number)
    wider = windows.with_next_window(target, window, status, situation)
    return replace(status, rollouts=tuple(wider if rollout == target else rollout for rollout in status.rollouts))


def _has_place(
    target: RolloutStatus | None, generation: GenerationStatus, status: DatasetStatus, situation: Situation
) -> bool:
    """Return whether servers of ``generation`` may be created beside the existing ones."""
    if target is None and len(status.rollouts) >= (MOST_IN_STATUS if status.table is None else MOST_ROLLOUTS):
        return False
    is_at_once = windows.window_size(generation, status, situation) == generation.shards
    return is_at_once or windows.may_begin(status, situation, is_first=target is None)


def abandon_rollouts(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` without rollouts and windows that are no longer desired and that no routing table has ever
    referenced. They are deleted, ready or not: a correction never waits for the mistake that it corrects."""
    if not any(rollout.is_starting for rollout in status.rollouts):
        return status
    desired = find_target(status, situation)
    target, overtaken, newer = desired.rollout, desired.unfinished, desired.generation
    if overtaken is not None and overtaken != target and overtaken.window and newer is not None:
        # A shard-by-shard rollout ends if its window is stuck and newer data takes its place.
        ended = replace(overtaken, overtaken_by=newer.generation)
        kept = (ended if rollout == overtaken else rollout for rollout in status.rollouts)
        status = replace(status, rollouts=tuple(kept))
    trouble = None if target is None else diagnose_stall(target, status, situation)
    if target is not None and trouble is not None and _must_yield(target, status, situation):
        ticket = turns.give_turn_up(
            status.rollout_ticket, trouble, target.template, situation.now, shares_store=situation.shares_store
        )
        status, target = replace(status, rollout_ticket=ticket), None
    kept = (
        windows.with_due_window(rollout, status, situation)
        if rollout == target
        else windows.without_window(rollout, status)
        for rollout in status.rollouts
        if not rollout.is_candidate or rollout == target
    )
    return replace(status, rollouts=tuple(kept))


def _must_yield(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether ``rollout`` has to give its slot up. It has none once a table may reference all its servers."""
    if not rollout.is_starting or not situation.observed.turns.rollout.must_yield:
        return False
    return not is_servable(rollout, situation.desired.replicas, status, situation)


def desired_replicas(rollout: RolloutStatus, status: DatasetStatus, target: PassTarget, situation: Situation) -> int:
    """Number of servers of each shard of ``rollout``: the desired one, but never fewer than a routing table
    references."""
    is_asked_for = rollout == target.rollout or windows.is_in_table(rollout.rollout, status.table)
    is_whole = is_asked_for or bool(rollout.kept_since)
    return max(situation.desired.replicas if is_whole else 1, rollout.minimum_replicas)


def is_servable(
    rollout: RolloutStatus,
    replicas: int,
    status: DatasetStatus,
    situation: Situation,
    shards: Collection[int] | None = None,
) -> bool:
    """Return whether routers may be sent to ``shards`` of ``rollout``, by default ``awaited_shards``. True if all their
    servers are ready. Each shard may lack one if another is ready: after the grace period if the missing one is in
    trouble, else after the progress deadline. The routing table references missing servers too: routers use them once
    they come.
    """
    chosen = awaited_shards(rollout, status) if shards is None else shards
    if not chosen:
        return False
    servers_by_shard = tuple(windows.list_shard_servers(rollout, replicas, chosen, situation))
    if all(servers.ready >= servers.replicas for servers in servers_by_shard):
        return True
    if any(servers.ready < servers.needed_servers for servers in servers_by_shard):
        return False
    if rollout.is_starting and has_exceeded_deadline(rollout, status, situation):
        return True
    only_troubled_lack = all(servers.ready + servers.troubled >= servers.replicas for servers in servers_by_shard)
    return only_troubled_lack and seconds_until(rollout.started_at, GRACE, situation.now) == 0


def awaited_shards(rollout: RolloutStatus, status: DatasetStatus) -> frozenset[int]:
    """The shards of ``rollout`` that the newest routing table does not route to it; if none, all its shards."""
    return windows.pending_shards(rollout, status) or windows.held_shards(rollout, status)


def is_stuck(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether ``rollout`` is unlikely to take effect without help: its deadline has passed, or trouble leaves a
    shard too few servers. False between two windows."""
    table = status.table
    if table is not None and table.rollout == rollout.rollout and table.confirmed_at and not rollout.is_starting:
        return False
    if has_exceeded_deadline(rollout, status, situation):
        return True
    shards = windows.list_shard_servers(rollout, situation.desired.replicas, awaited_shards(rollout, status), situation)
    return any(servers.replicas - servers.troubled < servers.needed_servers for servers in shards)


def has_exceeded_deadline(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> bool:
    """Return whether ``rollout`` should be in effect by now."""
    return remaining_progress(rollout, status, situation) == 0


def remaining_progress(rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> float:
    """Return the seconds until the progress deadline of ``rollout``: counted for servers from its claim, for routers
    from its table."""
    table = status.table
    is_referenced = table is not None and table.rollout == rollout.rollout and not rollout.is_starting
    since = table.written_at if table is not None and is_referenced else rollout.started_at
    return seconds_until(since, situation.desired.progress_deadline_seconds, situation.now)


def next_progress_in(status: DatasetStatus, target: PassTarget, situation: Situation) -> float | None:
    """Return the seconds until missing servers may be left out, or the rollout or one of its servers is overdue; None
    if none of these can happen."""
    rollout = target.rollout
    if rollout is None:
        return None
    if not rollout.is_starting:
        return windows.next_server_overdue_in(rollout, situation)
    grace = seconds_until(rollout.started_at, GRACE, situation.now)
    return reasons.find_earliest((grace, remaining_progress(rollout, status, situation)))


def diagnose_obstacle(
    rollout: RolloutStatus, observed: Observed, shards: Collection[int] | None = None
) -> Trouble | None:
    """The obstacle that keeps servers of ``shards`` of ``rollout`` (default: all) from getting ready. The report of a
    pod comes before the failure of a push, which it may explain."""
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
    cluster = None
    if observed.lacks_image_volumes and not any(found.rollout == rollout.rollout for found in observed.shard_sets):
        cluster = Trouble(
            reasons.IMAGE_VOLUMES_MISSING,
            "the cluster has no image volumes: its API server drops them; turn on its feature ImageVolume"
            " (Kubernetes 1.33 or newer), or choose another spec.serving.delivery",
        )
    pushed = (other.trouble for other in observed.other_objects if other.rollout == rollout.rollout)
    prefix = f"{names.rollout(observed.dataset.name, rollout.rollout)}-"
    refused = (trouble for kind in ("StatefulSet", "Job") for trouble in reasons.list_refusals(observed, kind, prefix))
    return next((trouble for trouble in (cluster, *sets, *pods, *pushed, *refused) if trouble is not None), None)


def diagnose_stall(candidate: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble | None:
    """Why ``candidate`` makes no progress, or takes too long."""
    trouble = diagnose_obstacle(candidate, situation.observed, awaited_shards(candidate, status))
    if trouble is None and has_exceeded_deadline(candidate, status, situation):
        where = describe_rollout(situation.dataset, candidate)
        return Trouble(reasons.PROGRESS_DEADLINE_EXCEEDED, f"{where} started {candidate.started_at} and is not ready")
    return trouble


def note_stalls(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the reason why the rollout with a slot makes no progress; no other rollout has a reason."""
    candidate, stall = turns.find_candidate(status), None
    if candidate is not None:
        trouble = diagnose_stall(candidate, status, situation)
        stall = turns.note_stall(candidate.stall, trouble, situation.now, shares_store=situation.shares_store)
    noted = (replace(rollout, stall=stall if rollout is candidate else None) for rollout in status.rollouts)
    return replace(status, rollouts=tuple(noted))


def describe_rollout(dataset: ObservedDataset, rollout: RolloutStatus) -> str:
    """For people: ``airports-r3 (generation g2)``."""
    return f"{names.rollout(dataset.name, rollout.rollout)} (generation {rollout.generation})"


# For RolledOut and Degraded: progress and trouble of servers that no routing table references yet.


_MAX_SHARDS: Final = 3
"""Maximum number of shards named in one message."""


def diagnose_candidate(status: DatasetStatus, target: PassTarget, situation: Situation) -> Trouble | None:
    """Why the servers of the target rollout, which no table references yet, do not get ready."""
    rollout, table = target.rollout, status.table
    if rollout is None or (table is not None and not is_starting(rollout, table, status, situation)):
        return _diagnose_ticket(status, target, situation)
    shards = awaited_shards(rollout, status)
    trouble = name_store(diagnose_obstacle(rollout, situation.observed, shards), situation)
    if trouble is not None:
        trouble = with_next_push(trouble, rollout, status, situation)
    servers = tuple(windows.list_shard_servers(rollout, situation.desired.replicas, shards, situation))
    if rollout.is_starting:
        is_overdue = has_exceeded_deadline(rollout, status, situation)
    else:  # it was ready once, and has been unready for longer than its deadline
        is_overdue = any(shard.overdue for shard in servers)
    if is_overdue:
        trouble = _diagnose_overdue(rollout, servers, trouble, situation)
    return None if trouble is None else generations.with_loss_advice(trouble, rollout.generation, status, situation)


def _diagnose_ticket(status: DatasetStatus, target: PassTarget, situation: Situation) -> Trouble | None:
    """Why the last rollout slot of the target was given up."""
    ticket, generation = status.rollout_ticket, target.generation
    trouble = turns.diagnose_ticket(ticket)
    if trouble is None or ticket is None or generation is None or ticket.digest != situation.template_for(generation):
        return trouble
    return generations.with_loss_advice(trouble, generation.generation, status, situation)


def _diagnose_overdue(
    target: RolloutStatus, shards: Iterable[windows.ShardServers], trouble: Trouble | None, situation: Situation
) -> Trouble:
    """The servers that ``target`` lacks after its deadline, or after the deadline of some of its servers."""
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
    """Return whether ``target`` has desired servers that no routing table references yet."""
    if table.rollout != target.rollout or table.replicas < situation.desired.replicas:
        return True
    return bool(windows.pending_shards(target, status))


def judge_starting(rollout: RolloutStatus, status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict:
    """Report the number of ready servers of ``rollout``, and what delays the others."""
    replicas, shards = situation.desired.replicas, awaited_shards(rollout, status)
    ready = windows.count_ready_shards(rollout, replicas, shards, situation)
    where = describe_rollout(situation.dataset, rollout)
    which = f" ({format_shards(shards)})" if len(shards) < generations.count_shards(status, rollout) else ""
    image, why = situation.dataset.spec["serving"]["delivery"].get("image"), ""
    if image is not None and not is_pushed(rollout, situation.observed):
        pushes = _list_made_again(status, situation)
        failed = (at for push, at in pushes if push.rollout == rollout.rollout and push.push_state == "Failed")
        again = next((f"; the next attempt is at {format_moment(at)}" for at in failed), "")
        why = f" Its images are pushed to {image['repository']} first{again}."
    generation = status.find_generation(rollout.generation)
    at_once = "" if generation is None else windows.explain_at_once(generation, status, situation)
    if at_once and rollout.is_starting:
        why += f" All shards are replaced together: {at_once}."
    promoted = generations.promoted_candidate(status, situation.desired)
    if promoted is not None and promoted.generation == rollout.generation:
        why += f" It is promoted, and serves once they are ready; {names.REJECT}={promoted.generation} gives it up."
    progress = (
        f"{windows.describe_progress(status)}{ready} of {format_count(len(shards), 'shard')}{which} of {where}"
        f" {'has its' if len(shards) == 1 else 'have their'} servers ready ({replicas} each).{why}"
    )
    trouble = diagnose_candidate(status, target, situation)
    idle = _describe_idle_annotations(status, target, situation)
    if trouble is None:
        return Verdict("False", reasons.STARTING_SERVERS, f"{progress}{idle}")
    text = reasons.write_sentence(trouble.reason, trouble.message)
    return Verdict("False", trouble.reason, f"{progress} {text}{idle}")


def judge_waiting(status: DatasetStatus, target: PassTarget, situation: Situation) -> Verdict:
    """Report since when the rollout has been queued, its place in the queue, and why it gave its last slot up."""
    ticket = status.rollout_ticket
    progress = windows.describe_progress(status)
    what = f"{progress}the rollout" if progress else "The rollout"
    idle = _describe_idle_annotations(status, target, situation)
    waits = f"{what}{turns.describe_wait(ticket, situation.observed.turns.rollout)}{idle}"
    trouble = _diagnose_ticket(status, target, situation)
    if trouble is None:
        return Verdict("False", reasons.WAITING_FOR_TURN, waits)
    return Verdict("False", trouble.reason, f"{reasons.write_sentence(trouble.reason, trouble.message)} {waits}")


def _describe_idle_annotations(status: DatasetStatus, target: PassTarget, situation: Situation) -> str:
    """Return a sentence about an annotation without effect; empty if it promotes the generation that comes next."""
    generation, promoted = target.generation, situation.desired.promote
    is_next = generation is not None and generation.generation == promoted
    is_early = is_next and not generations.is_premature(promoted, status)
    return "" if is_early else generations.describe_idle_annotations(status, situation.desired)


def judge_serving(table: TableStatus | None, status: DatasetStatus, situation: Situation) -> Verdict:
    """Judge RolledOut of a suspended dataset while no table is being taken up and nothing drains."""
    held = "Nothing is built or rolled out while spec.suspend is true"
    rollout = None if table is None else status.find_rollout(table.rollout)
    if table is None or rollout is None:
        is_lost = any(other.referenced_replicas for other in status.rollouts)
        serves = "the active generation is unknown; its servers stay" if is_lost else "nothing serves"
        return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}.")
    progress = windows.describe_progress(status).rstrip("; ")
    serves = progress or f"routers answer from {describe_rollout(situation.dataset, rollout)}"
    # The generation that would be desired without the suspension.
    target = generations.target_generation(status, replace(situation.desired, is_suspended=False))
    parsed = situation.dataset.parsed
    is_whole = parsed is not None and not table.parts and parsed.replicas == table.replicas
    is_target = target is not None and target.generation == table.generation
    if is_whole and is_target and is_current(rollout, status, situation):
        return Verdict("True", reasons.SUSPENDED, f"{held}; {serves}.")
    return Verdict("False", reasons.SUSPENDED, f"{held}; {serves}, and pending changes wait.")


_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def name_store(trouble: Trouble | None, situation: Situation) -> Trouble | None:
    """``trouble``, with the store's name added if the store is in trouble and not named."""
    if trouble is None or trouble.reason not in reasons.STORE_REASONS - {reasons.SECRET_MISSING}:
        return trouble
    own, environment = situation.dataset.own_store, situation.observed.store.environment
    if own is None:
        endpoint = next((environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)), "")
        host = urlsplit(endpoint).netloc.rpartition("@")[2]  # without user and password
        known = [("", situation.config.store), ("at ", host), ("behind ", situation.config.gateway)]
    else:
        known = [("", own["url"])]
    named = [before + part for before, part in known if part and part not in trouble.message]
    return Trouble(trouble.reason, f"{trouble.message}; the store is {' '.join(named)}") if named else trouble


# The push of a rollout whose servers get their shards from images. Servers are created only after the push, because a
# kubelet that finds no image waits for minutes. A Job that failed for good is deleted after a pause and created again;
# so is one whose images the registry lost. The pause starts when the operator saw the push end. It doubles with each
# push without effect. Once all servers are ready, or the rollout changes, it is short again.


BELIEVED_SECONDS: Final = 360.0
"""Seconds for which pushed images are assumed to exist: a kubelet that does not find one retries within five
minutes."""
_MOST_PUSHES: Final = 999_999_999
"""The CRD's maximum."""


def without_early_servers(
    rendered: Iterable[Manifest], rollout: RolloutStatus, observed: Observed
) -> tuple[Manifest, ...]:
    """Return ``rendered`` without new StatefulSets that wait for their push, and without the push if the cluster has no
    image volumes. A rollout that a routing table references waits for no push."""
    manifests = tuple(rendered)
    push = "Job", names.push(observed.dataset.name, rollout.rollout)
    if not any((manifest["kind"], manifest["metadata"]["name"]) == push for manifest in manifests):
        return manifests
    waiting = {"StatefulSet", "Job"} if observed.lacks_image_volumes else {"StatefulSet"}
    was_pushed = not rollout.is_candidate or is_pushed(rollout, observed)
    if was_pushed and not observed.lacks_image_volumes:
        return manifests
    present = {shard_set.ref.name for shard_set in observed.shard_sets}
    return tuple(
        manifest for manifest in manifests if manifest["kind"] not in waiting or manifest["metadata"]["name"] in present
    )


def is_pushed(rollout: RolloutStatus, observed: Observed) -> bool:
    """Return whether the Job that pushes the images of ``rollout`` has succeeded."""
    return any(other.rollout == rollout.rollout and other.push_state == "Succeeded" for other in observed.other_objects)


def note_push_ends(status: DatasetStatus, observed: Observed, now: datetime) -> DatasetStatus:
    """``status`` with each push that is seen to have ended, and the number of pushes in a row without effect."""
    ended = {push.rollout: push for push in observed.other_objects if _has_ended(push)}

    def with_end(rollout: RolloutStatus) -> RolloutStatus:
        push, before = ended.get(rollout.rollout), rollout.push
        if push is None:
            return rollout
        count = _count_vain(push, rollout, observed)
        if before is not None and before.job == push.ref.uid:
            return replace(rollout, push=replace(before, count=count))
        return replace(rollout, push=PushStatus(push.ref.uid, format_moment(now), count))

    return replace(status, rollouts=tuple(map(with_end, status.rollouts)))


def _has_ended(push: ExistingObject) -> bool:
    return push.push_state in ("Succeeded", "Failed") and not push.deleting


def _count_vain(push: ExistingObject, rollout: RolloutStatus, observed: Observed) -> int:
    """Number of pushes in a row without effect, up to ``push``."""
    before, has_failed = rollout.push, push.push_state == "Failed"
    sets = [found for found in observed.shard_sets if found.rollout == rollout.rollout]
    if not has_failed and sets and all(0 < found.replicas <= found.ready for found in sets):
        return 0
    if before is None:
        return int(has_failed)
    return min(before.count + (before.job != push.ref.uid), _MOST_PUSHES)


def list_overdue_pushes(status: DatasetStatus, situation: Situation) -> Iterator[ObjectRef]:
    """The push Jobs to create again now, because they failed for good or servers lack images."""
    return (push.ref for push, retry_at in _list_made_again(status, situation) if retry_at <= situation.now)


def next_push_in(status: DatasetStatus, situation: Situation) -> float | None:
    """Seconds until a push is repeated next; None if none is still ahead."""
    pushes = _list_made_again(status, situation)
    return reasons.find_earliest((retry_at - situation.now).total_seconds() for _, retry_at in pushes)


def with_next_push(trouble: Trouble, rollout: RolloutStatus, status: DatasetStatus, situation: Situation) -> Trouble:
    """``trouble`` of servers of ``rollout``, with the time of the next push if they lack an image."""
    if trouble.reason != reasons.IMAGE_NOT_FOUND:
        return trouble
    for push, retry_at in _list_made_again(status, situation):
        if push.rollout == rollout.rollout and retry_at > situation.now:
            at = format_moment(retry_at)
            return Trouble(trouble.reason, f"{trouble.message}; the next push is at {at}")
    return trouble


def _list_made_again(status: DatasetStatus, situation: Situation) -> Iterator[tuple[ExistingObject, datetime]]:
    """Yield the pushes to repeat, and when: those that failed, and those whose servers lack an image. There are none in
    a cluster without image volumes, or for an older pod template, whose Job would not be made again."""
    observed = situation.observed
    if observed.lacks_image_volumes:
        return
    missing = {
        pod.rollout
        for pod in observed.pods
        if pod.trouble is not None and pod.trouble.reason == reasons.IMAGE_NOT_FOUND and not pod.deleting
    }
    for push in filter(_has_ended, observed.other_objects):
        known = status.find_rollout(push.rollout)
        if known is None or known.push is None or not is_current(known, status, situation):
            continue
        if push.push_state == "Failed" or push.rollout in missing:
            count = max(known.push.count, 1)
            pause = delay_after(count, BELIEVED_SECONDS, reasons.LONGEST_RETRY_DELAY)
            if push.push_state == "Failed":
                pause = reasons.retry_delay(count)
            yield push, parse_moment(known.push.finished_at) + timedelta(seconds=pause)
