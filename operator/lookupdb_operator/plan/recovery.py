"""Recovers a status that was wiped or set back, by hand or with a backup, and moments that lie ahead because the clock
was set back.

What serves goes on serving until something newer is in effect. No number is claimed that an object carries, or another
part of the status.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TypeVar

from lookupdb_operator import names
from lookupdb_operator.model import BuildJob, ExistingObject, Observed, ShardSet
from lookupdb_operator.plan import clock, pushes, refreshes, routing_tables, secrets, turns, windows
from lookupdb_operator.plan import generations as promotion
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import (
    ALL,
    BuildFailure,
    BuildRecord,
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    RefusedGeneration,
    RolloutStatus,
    TableStatus,
)

_Holder = TypeVar("_Holder", BuildStatus, RolloutStatus)
"""Of a turn."""
_WithGeneration = GenerationStatus | RefusedGeneration | BuildRecord | BuildStatus | BuildFailure


def recover_status(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the rollouts that only objects tell of, and with numbers not below any that it or an object has.
    Some routing table may reference such a rollout: it is kept as referenced."""
    observed = situation.observed
    # Such a status does not tell which rollout serves: those whose numbers are past are kept, too.
    oldest = 0 if is_inconsistent(status) or _forgets_what_serves(status, observed) else status.last_rollout + 1
    rollout_objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
    generation_objects: tuple[BuildJob | ShardSet | ExistingObject, ...] = (*observed.jobs, *rollout_objects)
    rollouts = (*status.rollouts, *rollout_objects)
    last_rollout = max((names.recover_number(item.rollout) for item in rollouts), default=0)
    generations = (*_list_with_generations(status), *generation_objects)
    last_generation = max((names.recover_number(item.generation) for item in generations), default=0)
    unknown = tuple(_list_unknown_rollouts(status, situation, oldest, last_generation))
    status = _without_outdated_table(status, situation)
    return replace(
        status,
        rollouts=tuple(secrets.recover_key(rollout, observed) for rollout in (*status.rollouts, *unknown)),
        last_rollout=max(status.last_rollout, last_rollout),
        last_generation=max(status.last_generation, last_generation),
    )


def _list_with_generations(status: DatasetStatus) -> Iterator[_WithGeneration]:
    """What ``status`` knows of that has the number of a generation, whatever it says that the last one is."""
    yield from status.generations
    yield from status.builds
    last: tuple[_WithGeneration | None, ...] = (status.build, status.refused, status.failure)
    yield from filter(None, last)


def _forgets_what_serves(status: DatasetStatus, observed: Observed) -> bool:
    """Whether routers may answer from a routing table of which ``status`` knows nothing: a newer one is written than it
    knows of, or one is written, and it knows of no table and of no servers that any references."""
    if routing_tables.is_newer_written(status, observed):
        return True
    written = routing_tables.written_table_version(observed)
    return bool(written) and status.table is None and not any(rollout.minimum_replicas for rollout in status.rollouts)


def is_inconsistent(status: DatasetStatus) -> bool:
    """Whether a part of ``status`` is missing that another part references: somebody edited it."""
    table = status.table
    if table is None:
        return bool(status.generation)
    candidates = () if table.candidate is None else (table.candidate,)
    referenced = tuple((reference.rollout, reference.generation) for reference in (table, *table.parts, *candidates))
    if table.is_mixed and status.generation and status.find_generation(status.generation) is None:
        return True
    if any(
        status.find_rollout(rollout) is None or status.find_generation(generation) is None
        for rollout, generation in referenced
    ):
        return True
    if _names_other_servers(table, status) or _lacks_what_served(table, status):
        return True
    return any(_lacks_routed_shards(rollout, table, status) for rollout in windows.serving_rollouts(status))


def _lacks_what_served(table: TableStatus, status: DatasetStatus) -> bool:
    """Whether routers take ``table`` up, and ``status`` keeps nothing that they answer from until then."""
    generation = status.find_generation(table.generation)
    if table.confirmed_at or table.parts or generation is None or generation.served_by == table.version:
        return False
    if status.generation in ("", table.generation):
        return False
    return not any(
        rollout.referenced_replicas and not windows.is_in_table(rollout.rollout, table) for rollout in status.rollouts
    )


def _names_other_servers(table: TableStatus, status: DatasetStatus) -> bool:
    """Whether ``table`` names no servers, or not the workers that these have."""
    candidates = () if table.candidate is None else (table.candidate,)
    for part in (table, *table.parts, *candidates):
        rollout = status.find_rollout(part.rollout)
        known = 0 if rollout is None else rollout.workers
        if part.workers != (known or max(part.workers, 1)):
            return True
    return not all(part.replicas for part in (table, *candidates))


def _lacks_routed_shards(rollout: RolloutStatus, table: TableStatus, status: DatasetStatus) -> bool:
    """Whether ``table`` routes shards to ``rollout`` that this does not keep servers of, by its own words."""
    if rollout.referenced_replicas < table.replicas or rollout.kept_since:
        return True
    return not windows.routed_shards(rollout, status) <= windows.referenced_shards(rollout, status)


def _without_outdated_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without its routing table and generations, when a newer table is there, or when ``status`` is
    inconsistent. Routers may then answer from any rollout, so all servers are kept as referenced. A new generation is
    built: going back to an older one would be worse. What the annotation rejects is noted before it is forgotten: the
    new generation may be of the same source."""
    observed = situation.observed
    if not routing_tables.is_newer_written(status, observed) and not is_inconsistent(status):
        return status
    kept = tuple(
        replace(
            rollout,
            template="",
            kept_since="",
            referenced_replicas=max(rollout.minimum_replicas, windows.count_replicas(rollout.rollout, observed)),
            offered_replicas=0,
            shard_ranges=ALL,
            window="",
        )
        for rollout in status.rollouts
    )
    newest = max(routing_tables.written_table_version(observed), routing_tables.known_table_version(status))
    status = promotion.note_rejection(status, situation)
    forgotten = replace(status, table=None, candidate=None, generations=(), refused=None, generation="")
    return replace(forgotten, rollouts=kept, records=0, bytes=0, last_table=newest)


def _list_unknown_rollouts(
    status: DatasetStatus, situation: Situation, oldest: int, last_generation: int
) -> Iterator[RolloutStatus]:
    """The rollouts that status does not have, oldest first. Each has one generation, whatever labels say: the newest
    of its sets', or the newest of all. It is only for show, as such a rollout is only kept, never made again."""
    known = {rollout.rollout for rollout in status.rollouts}
    generations: dict[str, int] = {}
    for shard_set in situation.observed.shard_sets:
        rollout = shard_set.rollout
        if names.recover_number(rollout) >= max(oldest, 1) and rollout not in known and not shard_set.deleting:
            generations[rollout] = max(generations.get(rollout, 0), names.recover_number(shard_set.generation))
    for rollout in sorted(generations, key=names.read_number):
        yield RolloutStatus(
            rollout=rollout,
            generation=names.generation_name(generations[rollout] or max(last_generation, 1)),
            template="",  # it is only kept, never made again
            started_at=clock.format_moment(situation.now),
            referenced_replicas=windows.count_replicas(rollout, situation.observed),
        )


def clamp_moments(status: DatasetStatus, now: datetime) -> DatasetStatus:
    """``status`` with every moment that lies too far ahead moved back to the latest that it can be. The clock was set
    back, and nobody knows how long ago such a moment was: its time passes from now on. Nothing waits for ever, nothing
    ends early."""
    status = refreshes.clamp_records(status, now)
    table, failure, candidate = status.table, status.failure, status.candidate
    if candidate is not None:
        candidate = replace(candidate, since=clock.clamp_to_now(candidate.since, now))
    if table is not None:
        table = replace(
            table,
            written_at=clock.clamp_to_now(table.written_at, now),
            confirmed_at=clock.clamp_to_now(table.confirmed_at, now),
        )
    if failure is not None:
        latest = now + timedelta(seconds=clock.retry_delay(failure.count, failure.reason))
        failure = replace(failure, retry_at=clock.clamp_moment(failure.retry_at, latest))
    lost = status.lost
    if lost is not None and lost.retry_at:
        latest = now + timedelta(seconds=clock.retry_delay(lost.count))
        lost = replace(lost, retry_at=clock.clamp_moment(lost.retry_at, latest))
    return replace(
        status,
        table=table,
        candidate=candidate,
        failure=failure,
        lost=lost,
        generations=tuple(
            replace(generation, refreshed_at=clock.clamp_to_now(generation.refreshed_at, now))
            for generation in status.generations
        ),
        store_written_at=clock.clamp_to_now(status.store_written_at, now),
        password_key_written_at=clock.clamp_to_now(status.password_key_written_at, now),
        build_ticket=turns.clamp_ticket(status.build_ticket, now),
        rollout_ticket=turns.clamp_ticket(status.rollout_ticket, now),
        build=None if status.build is None else _with_past_stall(status.build, now),
        rollouts=tuple(
            replace(
                _with_past_stall(rollout, now),
                started_at=clock.clamp_to_now(rollout.started_at, now),
                kept_since=clock.clamp_to_now(rollout.kept_since, now),
                push=pushes.clamp_push(rollout.push, now),
            )
            for rollout in status.rollouts
        ),
    )


def _with_past_stall(holder: _Holder, now: datetime) -> _Holder:
    stall = holder.stall
    return (
        holder if stall is None else replace(holder, stall=replace(stall, since=clock.clamp_to_now(stall.since, now)))
    )
