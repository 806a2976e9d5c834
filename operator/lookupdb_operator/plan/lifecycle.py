"""The life of a generation and of a rollout, written down once: their phases, and the transitions between them.

``plan()`` executes ``TRANSITIONS`` from the first to the last at each pass. The simulation checks every pass against
them, and the reference of the documentation shows them.

Why does r1 stay? Because of its phase: each transition out of that phase says when it happens. Which transition ends
it? The one that leads to ``GONE``. Which code deletes it? ``objects.find_garbage`` lists its objects only when its
phase is ``GONE``, and ``loop.reconcile.Reconciler._delete`` deletes what is listed. A pod on a lost node is deleted by
force in any phase (``planner.find_lost_pods``), and its StatefulSet makes another one.

Whatever its phase, a StatefulSet also stays

- while the operator leaves the dataset alone (``planner``): it is being deleted (Kubernetes collects it then),
  belongs to another operator, has an unreadable status or an invalid spec, or waits for the objects of an earlier
  dataset of its name;
- while a finalizer keeps it;
- while the API server refuses the DELETE, which is sent again after 30 s at most (``objects.REFUSED_RETRY_SECONDS``).

Why do a generation's files stay? ``lookupdb.store.dataset`` lists what removes them. Why does a build's Job stay? See
``builds``; a routing table: ``routing_tables``; the servers of the generation before: ``cutover``.

A phase is not stored: it is read from the status, so that an operator that died at any point continues from what it
finds. Each transition is written to the status before anything else is done because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, TypeVar

from lookupdb_operator import names
from lookupdb_operator.model import ExistingObject, ShardSet, clamp_moment, clamp_to_now, format_moment
from lookupdb_operator.plan import builds, cutover, generations, reasons, rollouts, routing_tables, turns, windows
from lookupdb_operator.plan.turns import Situation
from lookupdb_operator.status import (
    ALL,
    BuildFailure,
    BuildStatus,
    DatasetStatus,
    RefusedGeneration,
    RolloutStatus,
    TableStatus,
    replace,
)


class GenerationPhase(Enum):
    """The phase of a generation's life."""

    UNCLAIMED = "unclaimed"
    """Its number was never claimed."""
    BUILDING = "building"
    """``status.build``: a Job builds it."""
    REFUSED = "refused"
    """Whole in the store, but rejected by a gate: no rollout serves it."""
    BUILT = "built"
    """Whole in the store; no rollout serves it."""
    ROLLED_OUT = "rolled out"
    """A rollout serves it, or is about to."""
    ACTIVE = "active"
    """Every router answered from it when its routing table was confirmed."""
    GONE = "gone"
    """Its number is used up: the build failed or was superseded, or the store may drop it."""


class RolloutPhase(Enum):
    """The phase of a rollout's life."""

    UNCLAIMED = "unclaimed"
    """Its number was never claimed."""
    CLAIMED = "claimed"
    """Its servers start, or are ready. No routing table references them."""
    REFERENCED = "referenced"
    """The newest routing table references its servers. Some routers may answer from it, some from an older one."""
    CANDIDATE = "candidate"
    """It waits for promotion. The newest routing table references its servers for lookups that name its generation."""
    PARTIAL = "partial"
    """The newest routing table routes some shards to it and others to another rollout: one of them replaces the other
    shard by shard."""
    ACTIVE = "active"
    """Every router answers from it."""
    SUPERSEDED = "superseded"
    """A newer routing table is written. Routers that have not taken it up answer from this rollout."""
    DRAINING = "draining"
    """Every router answers from another rollout. Lookups that began on this one still finish."""
    KEPT = "kept"
    """It has drained, and its servers stay for a while, for a rollback (``rollout.keepPrevious``)."""
    GONE = "gone"
    """It existed once, and nothing of it is kept."""


Phase = GenerationPhase | RolloutPhase


# Recovery: of a status that was wiped or set back, by hand or from a backup, and of times in the future, because the
# clock was set back.
#
# Servers keep serving until something newer is in effect. No number is assigned twice: all that objects and the status
# use are counted.


_Holder = TypeVar("_Holder", BuildStatus, RolloutStatus)
"""A build or a rollout: both hold slots."""


def recover_status(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with all rollouts that have servers, and with its last numbers raised to the highest in use. Rollouts
    that it did not know count as referenced, so they stay."""
    observed = situation.observed
    # Such a status does not say which rollout serves, so old rollouts are kept, too.
    serves_unknown_table = routing_tables.is_newer_written(status, observed) or (
        status.table is None
        and routing_tables.written_table_version(observed) > 0
        and not any(rollout.minimum_replicas for rollout in status.rollouts)
    )
    oldest = 0 if serves_unknown_table or is_inconsistent(status) else status.last_rollout + 1
    rollout_objects: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *observed.other_objects)
    rollouts = (*status.rollouts, *rollout_objects)
    last_rollout = max((names.recover_number(item.rollout) for item in rollouts), default=0)
    generations = {generation.generation for generation in status.generations}
    generations |= {record.generation for record in status.builds}
    ended: tuple[BuildStatus | RefusedGeneration | BuildFailure | None, ...]
    ended = status.build, status.refused, status.failure
    generations |= {item.generation for item in ended if item is not None}
    generations |= {item.generation for item in observed.objects}
    last_generation = max(map(names.recover_number, generations), default=0)
    unknown = tuple(_list_unknown_rollouts(status, situation, oldest, last_generation))
    status = _without_outdated_table(status, situation)

    with_keys = []
    for rollout in (*status.rollouts, *unknown):
        marks = (item.password_key for item in observed.shard_sets if item.rollout == rollout.rollout)
        key = rollout.password_key or max(marks, default="")
        with_keys.append(replace(rollout, password_key=key))
    return replace(
        status,
        rollouts=tuple(with_keys),
        last_rollout=max(status.last_rollout, last_rollout),
        last_generation=max(status.last_generation, last_generation),
    )


def is_inconsistent(status: DatasetStatus) -> bool:
    """Return whether ``status`` was edited: it lacks a part that another part references."""
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
    return any(
        rollout.referenced_replicas < table.replicas
        or rollout.kept_since
        or not windows.routed_shards(rollout, status) <= windows.referenced_shards(rollout, status)
        for rollout in windows.serving_rollouts(status)
    )


def _lacks_what_served(table: TableStatus, status: DatasetStatus) -> bool:
    """Return whether some routers have not taken up ``table`` yet, but ``status`` lacks the rollout that they still
    answer from.
    """
    generation = status.find_generation(table.generation)
    if table.confirmed_at or table.parts or generation is None or generation.served_by == table.version:
        return False
    if status.generation in ("", table.generation):
        return False
    return not any(
        rollout.referenced_replicas and not windows.is_in_table(rollout.rollout, table) for rollout in status.rollouts
    )


def _names_other_servers(table: TableStatus, status: DatasetStatus) -> bool:
    """Return whether ``table`` names no servers, or another number of workers than its rollouts have."""
    candidates = () if table.candidate is None else (table.candidate,)
    for part in (table, *table.parts, *candidates):
        rollout = status.find_rollout(part.rollout)
        known = 0 if rollout is None else rollout.workers
        if part.workers != (known or max(part.workers, 1)):
            return True
    return not all(part.replicas for part in (table, *candidates))


def _without_outdated_table(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` without its routing table and generations if a newer table exists or ``status`` is inconsistent.
    Routers may then answer from any rollout, so all servers are kept as referenced. A new generation is built, because
    going back to an older one would be worse. A rejection is noted first: the new generation may have the same
    source."""
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
    status = generations.note_rejection(status, situation)
    forgotten = replace(status, table=None, candidate=None, generations=(), refused=None, generation="")
    return replace(forgotten, rollouts=kept, records=0, bytes=0, last_table=newest)


def _list_unknown_rollouts(
    status: DatasetStatus, situation: Situation, oldest: int, last_generation: int
) -> Iterator[RolloutStatus]:
    """The rollouts that ``status`` lacks, oldest first. Each gets a generation only for display: the newest that its
    StatefulSets name, or the newest of all."""
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
            started_at=format_moment(situation.now),
            referenced_replicas=windows.count_replicas(rollout, situation.observed),
        )


def clamp_moments(status: DatasetStatus, now: datetime) -> DatasetStatus:
    """Move each time in ``status`` that lies too far ahead back to the latest possible. The clock was set back,
    so the age of such a time is unknown: count it from now, so that nothing waits forever or ends early."""
    status = builds.clamp_records(status, now)
    table, failure, candidate = status.table, status.failure, status.candidate
    if candidate is not None:
        candidate = replace(candidate, since=clamp_to_now(candidate.since, now))
    if table is not None:
        table = replace(
            table,
            written_at=clamp_to_now(table.written_at, now),
            confirmed_at=clamp_to_now(table.confirmed_at, now),
        )
    if failure is not None:
        latest = now + timedelta(seconds=reasons.retry_delay(failure.count, failure.reason))
        failure = replace(failure, retry_at=clamp_moment(failure.retry_at, latest))
    lost = status.lost
    if lost is not None and lost.retry_at:
        latest = now + timedelta(seconds=reasons.retry_delay(lost.count))
        lost = replace(lost, retry_at=clamp_moment(lost.retry_at, latest))
    return replace(
        status,
        table=table,
        candidate=candidate,
        failure=failure,
        lost=lost,
        generations=tuple(
            replace(generation, refreshed_at=clamp_to_now(generation.refreshed_at, now))
            for generation in status.generations
        ),
        store_written_at=clamp_to_now(status.store_written_at, now),
        password_key_written_at=clamp_to_now(status.password_key_written_at, now),
        build_ticket=turns.clamp_ticket(status.build_ticket, now),
        rollout_ticket=turns.clamp_ticket(status.rollout_ticket, now),
        build=None if status.build is None else _with_past_stall(status.build, now),
        rollouts=tuple(
            replace(
                _with_past_stall(rollout, now),
                started_at=clamp_to_now(rollout.started_at, now),
                kept_since=clamp_to_now(rollout.kept_since, now),
                push=None
                if rollout.push is None
                else replace(rollout.push, finished_at=clamp_to_now(rollout.push.finished_at, now)),
            )
            for rollout in status.rollouts
        ),
    )


def _with_past_stall(holder: _Holder, now: datetime) -> _Holder:
    stall = holder.stall
    return holder if stall is None else replace(holder, stall=replace(stall, since=clamp_to_now(stall.since, now)))


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of a pass, and all that it may do to any generation and rollout."""

    name: str
    step: Callable[[DatasetStatus, Situation], DatasetStatus]
    edges: tuple[tuple[Phase, Phase], ...]
    when: str
    written_first: str
    may_be_deleted: str


RECOVER: Final = Transition(
    name="recover",
    step=recover_status,
    edges=(
        *((phase, RolloutPhase.SUPERSEDED) for phase in RolloutPhase),
        (RolloutPhase.UNCLAIMED, RolloutPhase.GONE),
        *((phase, GenerationPhase.GONE) for phase in GenerationPhase if phase is not GenerationPhase.GONE),
    ),
    when=(
        "the status was wiped, edited or set back. Signs of that: an object's number or the routing table's version is"
        " newer than the status knows; the status's table references something that the status lacks, or names other"
        " servers; a table is written, but the status has neither a table nor a rollout that routers may answer from."
        " In the last case, servers with older numbers are kept, too"
    ),
    written_first=(
        "`rollouts` with all servers, `lastRollout`, `lastGeneration`, `lastTable`; no `table`, no `generations`"
    ),
    may_be_deleted="nothing of a rollout that has servers",
)
TRANSITIONS: Final = (
    RECOVER,
    Transition(
        name="reopen",
        step=cutover.reopen_table,
        edges=(
            (RolloutPhase.ACTIVE, RolloutPhase.REFERENCED),
            (RolloutPhase.DRAINING, RolloutPhase.SUPERSEDED),
        ),
        when=(
            "a router starts with an older table while another rollout drains; or a router has the newest table's"
            " version with other content; or `generation` was edited"
        ),
        written_first="`table.confirmedAt` is empty",
        may_be_deleted="nothing: the table is confirmed again, and the drain time begins again",
    ),
    Transition(
        name="confirm",
        step=cutover.confirm_table,
        edges=(
            (RolloutPhase.REFERENCED, RolloutPhase.ACTIVE),
            (RolloutPhase.SUPERSEDED, RolloutPhase.DRAINING),
            (GenerationPhase.ROLLED_OUT, GenerationPhase.ACTIVE),
            (GenerationPhase.ACTIVE, GenerationPhase.ROLLED_OUT),
            (GenerationPhase.ACTIVE, GenerationPhase.BUILT),
        ),
        when="every router that may take requests answers from the newest routing table",
        written_first="`table.confirmedAt`, `generation`, `generations[].servedBy`",
        may_be_deleted="nothing: the drain time begins",
    ),
    Transition(
        name="record the outcome",
        step=builds.record_outcome,
        edges=(
            (GenerationPhase.BUILDING, GenerationPhase.BUILT),
            (GenerationPhase.BUILDING, GenerationPhase.REFUSED),
            (GenerationPhase.BUILDING, GenerationPhase.GONE),
            (GenerationPhase.REFUSED, GenerationPhase.GONE),
        ),
        when=(
            "the builder has ended: built, unchanged, failed, or rejected by a gate. A previously rejected generation"
            " is gone once a later build succeeds, or a gate rejects another one"
        ),
        written_first="`generations`, or `failure` and `refused`; `builds`; `build` is empty",
        may_be_deleted="its Job and ConfigMap; after a failure when the next attempt begins",
    ),
    Transition(
        name="override",
        step=builds.override_gates,
        edges=((GenerationPhase.REFUSED, GenerationPhase.BUILT),),
        when="the annotation was set to the rejected generation, which was built from the current spec",
        written_first="`generations[].overridden`; `refused` is empty",
        may_be_deleted="nothing",
    ),
    Transition(
        name="ask for a check",
        step=turns.advance_schedule,
        edges=(),
        when="a slot of the schedule is due; the schedule begins, changes or stops",
        written_first="`schedule`, `nextCheck`",
        may_be_deleted="nothing",
    ),
    Transition(
        name="reject",
        step=generations.read_annotations,
        edges=(),
        when=(
            "the annotation `lookupdb.dev/reject` names a generation that is neither in effect nor pinned; or the"
            " annotation `lookupdb.dev/promote`, set before its generation was built, was removed or changed"
        ),
        written_first="`rejected`; `generations[].prematurePromotion` is empty",
        may_be_deleted="nothing yet: it is no longer desired, so its rollout is abandoned, or drains",
    ),
    Transition(
        name="note a loss",
        step=generations.note_loss,
        edges=(),
        when=(
            "the store has lost or damaged the newest generation of the current spec, so a server cannot fetch it, and"
            " none is pinned; or no server reports that any more, and no build has begun"
        ),
        written_first="`lost`",
        may_be_deleted="nothing",
    ),
    Transition(
        name="decide the build",
        step=builds.decide_build,
        edges=(
            (GenerationPhase.BUILDING, GenerationPhase.GONE),
            (GenerationPhase.UNCLAIMED, GenerationPhase.BUILDING),
        ),
        when=(
            "the store lacks the desired generation, and a slot is free; or the running build is no longer needed,"
            " or gives its slot up; or the dataset is suspended"
        ),
        written_first="`build`, `lastGeneration`, or `buildTicket`",
        may_be_deleted="the Job and ConfigMap of the build that was running",
    ),
    Transition(
        name="abandon",
        step=rollouts.abandon_rollouts,
        edges=(
            (RolloutPhase.CLAIMED, RolloutPhase.GONE),
            (GenerationPhase.ROLLED_OUT, GenerationPhase.BUILT),
        ),
        when=("it is no longer desired, or gives its slot up; and no routing table ever referenced it or its window"),
        written_first="`rollouts` without it, or without its window",
        may_be_deleted="all of it, or the servers of its window, at once, ready or not",
    ),
    Transition(
        name="claim",
        step=rollouts.claim_rollout,
        edges=(
            (RolloutPhase.UNCLAIMED, RolloutPhase.CLAIMED),
            (GenerationPhase.BUILT, GenerationPhase.ROLLED_OUT),
        ),
        when=(
            "a slot is free, and the desired generation has no rollout of the current pod template, or only of some"
            " shards. With `PerShard`, the servers that the last window replaced must also be gone"
        ),
        written_first="`rollouts`, `lastRollout`, or `rolloutTicket`; for a window `rollouts[].window`",
        may_be_deleted="nothing",
    ),
    Transition(
        name="release",
        step=cutover.release_rollouts,
        edges=(
            (RolloutPhase.KEPT, RolloutPhase.GONE),
            (GenerationPhase.ROLLED_OUT, GenerationPhase.BUILT),
        ),
        when=(
            "it is not desired, and one of these holds: the current `rollout.keepPrevious` has passed since it"
            " drained; a candidate finds no room; another rollout serves its generation"
        ),
        written_first="`rollouts` without it",
        may_be_deleted="all of it: no routing table references it",
    ),
    Transition(
        name="retire",
        step=cutover.retire_rollouts,
        edges=(
            (RolloutPhase.DRAINING, RolloutPhase.GONE),
            (RolloutPhase.DRAINING, RolloutPhase.CLAIMED),
            (RolloutPhase.DRAINING, RolloutPhase.KEPT),
            (RolloutPhase.KEPT, RolloutPhase.GONE),
            (GenerationPhase.ROLLED_OUT, GenerationPhase.BUILT),
        ),
        when=(
            "the drain time has passed since `table.confirmedAt`, and every router still answers from the newest table"
        ),
        written_first=(
            "`rollouts` without it. If it is desired again, it stays as claimed. With `rollout.keepPrevious`, of the"
            " rollouts of other generations only the newest is kept"
        ),
        may_be_deleted="all of it; shards and servers beyond those that the newest table references",
    ),
    Transition(
        name="cut over",
        step=routing_tables.decide_table,
        edges=(
            (RolloutPhase.CLAIMED, RolloutPhase.CANDIDATE),
            (RolloutPhase.KEPT, RolloutPhase.CANDIDATE),
            (RolloutPhase.SUPERSEDED, RolloutPhase.CANDIDATE),
            (RolloutPhase.DRAINING, RolloutPhase.CANDIDATE),
            (RolloutPhase.CLAIMED, RolloutPhase.REFERENCED),
            (RolloutPhase.KEPT, RolloutPhase.REFERENCED),
            (RolloutPhase.CANDIDATE, RolloutPhase.REFERENCED),
            (RolloutPhase.CANDIDATE, RolloutPhase.CLAIMED),
            (RolloutPhase.CANDIDATE, RolloutPhase.DRAINING),
            (RolloutPhase.SUPERSEDED, RolloutPhase.REFERENCED),
            (RolloutPhase.DRAINING, RolloutPhase.REFERENCED),
            (RolloutPhase.ACTIVE, RolloutPhase.REFERENCED),
            (RolloutPhase.ACTIVE, RolloutPhase.SUPERSEDED),
            (RolloutPhase.REFERENCED, RolloutPhase.SUPERSEDED),
            (RolloutPhase.CANDIDATE, RolloutPhase.SUPERSEDED),
            (RolloutPhase.DRAINING, RolloutPhase.SUPERSEDED),
            *(
                (phase, RolloutPhase.PARTIAL)
                for phase in (
                    RolloutPhase.CLAIMED,
                    RolloutPhase.ACTIVE,
                    RolloutPhase.REFERENCED,
                    RolloutPhase.SUPERSEDED,
                    RolloutPhase.DRAINING,
                )
            ),
            (RolloutPhase.PARTIAL, RolloutPhase.REFERENCED),
            (RolloutPhase.PARTIAL, RolloutPhase.SUPERSEDED),
        ),
        when=(
            "one of these holds: servers of the target rollout or its window are ready; more servers per shard are"
            " ready, or fewer desired; a pinned generation has a ready rollout; a candidate is promoted, or no longer"
            " desired. The same table gets a new version if other content has its version, or a router has a newer one"
        ),
        written_first=(
            "`table` with its version, or only `lastTable`; `rollouts[].named` and `offered`, `candidate`; also"
            " `rolledBack` when it goes back to a pinned generation"
        ),
        may_be_deleted="nothing: everything that an older table references stays",
    ),
    Transition(
        name="trim",
        step=generations.trim_generations,
        edges=((GenerationPhase.BUILT, GenerationPhase.GONE),),
        when="there are `keepGenerations` newer ones, and it is neither desired nor pinned, nor the one to go back to",
        written_first="`generations` without it",
        may_be_deleted="its files in the store, by the next sweep",
    ),
)
"""In the order of a pass: each sees the decisions of those before it."""


def advance(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` after every transition that is due."""
    for transition in TRANSITIONS:
        status = transition.step(status, situation)
    return status


def rollout_phase(name: str, status: DatasetStatus) -> RolloutPhase:
    """The phase of the rollout ``name``."""
    rollout = status.find_rollout(name)
    if rollout is None:
        # An inconsistent status does not know what is gone.
        is_past = 0 < names.read_number(name) <= status.last_rollout and not is_inconsistent(status)
        return RolloutPhase.GONE if is_past else RolloutPhase.UNCLAIMED
    table = status.table
    if rollout.kept_since:
        return RolloutPhase.KEPT
    if table is not None and table.parts and windows.is_in_table(rollout.rollout, table):
        return RolloutPhase.PARTIAL
    if table is not None and table.rollout == rollout.rollout:
        return RolloutPhase.ACTIVE if table.confirmed_at else RolloutPhase.REFERENCED
    if status.candidate is not None and status.candidate.rollout == rollout.rollout:
        return RolloutPhase.CANDIDATE
    if rollout.is_candidate:
        return RolloutPhase.CLAIMED
    # A status that was lost has no table: routers answer from one that it does not know.
    return RolloutPhase.DRAINING if table is not None and table.confirmed_at else RolloutPhase.SUPERSEDED


def generation_phase(name: str, status: DatasetStatus) -> GenerationPhase:
    """The phase of the generation ``name``."""
    if status.build is not None and status.build.generation == name:
        return GenerationPhase.BUILDING
    if status.find_generation(name) is None:
        if status.refused is not None and status.refused.generation == name:
            return GenerationPhase.REFUSED
        is_past = 0 < names.read_number(name) <= status.last_generation
        return GenerationPhase.GONE if is_past else GenerationPhase.UNCLAIMED
    if status.generation == name:
        return GenerationPhase.ACTIVE
    is_rolled_out = any(rollout.generation == name for rollout in status.rollouts)
    return GenerationPhase.ROLLED_OUT if is_rolled_out else GenerationPhase.BUILT
