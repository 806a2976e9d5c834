"""The life of a generation and of a rollout, written down once: their phases, and the transitions between them.

``plan()`` executes ``TRANSITIONS`` from the first to the last at each pass; the simulation holds every pass against
them; the reference of the documentation shows them.

Why does r1 stay? Because of its phase: the transitions that leave it say when they do. What ends it? The transition
that leads to ``GONE``. Who deletes it? ``objects.find_garbage`` lists its objects, only when its phase is ``GONE``, and
``loop.reconcile.Reconciler._delete`` deletes what is listed. A pod on a lost node is deleted by force in any phase
(``serving.find_lost_pods``), and its StatefulSet makes another one.

Whatever its phase, a StatefulSet also stays

- while ``standstill`` holds: the dataset is being deleted (Kubernetes collects it then), belongs to another operator,
  has an unreadable status or an invalid spec, or waits for the objects of an earlier dataset of its name;
- while a finalizer keeps it;
- while the API server refuses the DELETE, which is sent again after 30 s at most (``objects.REFUSED_RETRY_SECONDS``).

Why do a generation's files stay? ``lookupdb.store.dataset`` lists who removes them. Why does a build's Job stay? See
``builds``; a routing table: ``table_content``; the servers of the generation before: ``previous``.

A phase is stored nowhere: it is read from status, so that an operator that died at any point goes on from what it
finds. Each transition is written to status before anything else is done on account of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.plan import (
    builds,
    cutover,
    generations,
    losses,
    recovery,
    refreshes,
    rollouts,
    routing_tables,
    windows,
)
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import DatasetStatus, RolloutStatus


class GenerationPhase(Enum):
    """Where a generation is in its life."""

    UNCLAIMED = "unclaimed"
    """Its number was never claimed."""
    BUILDING = "building"
    """``status.build``: a Job builds it."""
    REFUSED = "refused"
    """Whole in the store, and a gate is closed for it: no rollout serves it."""
    BUILT = "built"
    """Whole in the store, of no rollout."""
    ROLLED_OUT = "rolled out"
    """A rollout serves it, or is about to."""
    ACTIVE = "active"
    """Every router answered from it when its routing table was confirmed."""
    GONE = "gone"
    """Its number is past: the build failed or was superseded, or the store may drop it."""


class RolloutPhase(Enum):
    """Where a rollout is in its life."""

    UNCLAIMED = "unclaimed"
    """Its number was never claimed."""
    CLAIMED = "claimed"
    """Its servers start, or are ready. No routing table references them."""
    REFERENCED = "referenced"
    """The newest routing table references its servers. Some routers may answer from it, some from an older one."""
    CANDIDATE = "candidate"
    """It waits for promotion. The newest routing table references its servers for those who ask for its generation."""
    PARTIAL = "partial"
    """The newest routing table routes some shards to it and others to another rollout: one of them replaces the other
    shard by shard."""
    ACTIVE = "active"
    """Every router answers from it."""
    SUPERSEDED = "superseded"
    """A newer routing table is written. Routers that have not taken it up answer from this rollout."""
    DRAINING = "draining"
    """Every router answers from another rollout. Lookups that began on this one end."""
    KEPT = "kept"
    """It has drained, and its servers stay for a while, to go back to (``rollout.keepPrevious``)."""
    GONE = "gone"
    """Its number is past, and nothing of it is kept."""


Phase = GenerationPhase | RolloutPhase


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
    step=recovery.recover_status,
    edges=(
        *((phase, RolloutPhase.SUPERSEDED) for phase in RolloutPhase),
        (RolloutPhase.UNCLAIMED, RolloutPhase.GONE),
        *((phase, GenerationPhase.GONE) for phase in GenerationPhase if phase is not GenerationPhase.GONE),
    ),
    when=(
        "status was wiped, edited or set back: objects carry numbers, or the routing table a version, that it does not"
        " know, or its own table references what it lacks or names other servers, or a table is written and it knows"
        " none, or nothing that routers answer from until they take one up; servers of a past number that are still"
        " there are kept, too"
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
            "a router came up with an older table while another rollout drains; or has other content under the"
            " version of the newest one; or `generation` was edited"
        ),
        written_first="`table.confirmedAt` is empty",
        may_be_deleted="nothing: it is confirmed again, and the drain time begins again",
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
            "the builder has ended: built, unchanged, failed, or refused by a gate; what was refused before is gone"
            " when a newer one is built or refused"
        ),
        written_first="`generations`, or `failure` and `refused`; `builds`; `build` is empty",
        may_be_deleted="its Job and ConfigMap; after a failure when the next attempt begins",
    ),
    Transition(
        name="override",
        step=losses.override_gates,
        edges=((GenerationPhase.REFUSED, GenerationPhase.BUILT),),
        when="the annotation names the refused generation, did not do so before, and it is of the present spec",
        written_first="`generations[].overridden`; `refused` is empty",
        may_be_deleted="nothing",
    ),
    Transition(
        name="ask for a check",
        step=refreshes.advance_schedule,
        edges=(),
        when="a slot of the schedule is due; the schedule changes, begins or rests",
        written_first="`schedule`, `nextCheck`",
        may_be_deleted="nothing",
    ),
    Transition(
        name="reject",
        step=generations.read_annotations,
        edges=(),
        when=(
            "the annotation `lookupdb.dev/reject` names a generation that is neither in effect nor pinned; the"
            " annotation `lookupdb.dev/promote` was taken away that named one before it was built"
        ),
        written_first="`rejected`; `generations[].prematurePromotion` is empty",
        may_be_deleted="nothing yet: it is not asked for any more, so its rollout is abandoned, or drains",
    ),
    Transition(
        name="note a loss",
        step=losses.note_loss,
        edges=(),
        when=(
            "a server cannot have the newest generation of the present spec from the store as it was published, and"
            " none is pinned; or none says so any more, and no build has begun; or it cannot have what serves, and"
            " something else waits for promotion"
        ),
        written_first="`lost`, `rollouts[].lostTemplate`",
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
            "the store lacks what is asked for, and the turn is here; the build under way is not asked for any more, or"
            " gives its turn up, or the dataset is suspended"
        ),
        written_first="`build`, `lastGeneration`, or `buildTicket`",
        may_be_deleted="the Job and ConfigMap of the build that was under way",
    ),
    Transition(
        name="abandon",
        step=rollouts.abandon_rollouts,
        edges=(
            (RolloutPhase.CLAIMED, RolloutPhase.GONE),
            (GenerationPhase.ROLLED_OUT, GenerationPhase.BUILT),
        ),
        when=(
            "it is not asked for any more, or gives its turn up; and no routing table ever referenced it, or not its"
            " window"
        ),
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
            "the generation that is asked for has no rollout of the present pod template, or not all its shards; and"
            " the turn is here. With `PerShard` also what the last window has replaced is gone"
        ),
        written_first="`rollouts`, `lastRollout`, or `rolloutTicket`; of a window `rollouts[].window`",
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
            "`rollout.keepPrevious` has passed since it had drained, or is turned down so far; a candidate finds no"
            " room; another rollout serves its generation. Not while it is asked for"
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
            "`rollouts` without it; asked for again, it stays as claimed; with `rollout.keepPrevious` the newest of"
            " another generation is kept, and no other"
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
            "the servers of the rollout that is asked for are ready, or those of its window; or another number of"
            " replicas is; of a pinned"
            " generation any rollout whose servers are ready, at once; a candidate is promoted, or is not asked for any"
            " more; or the routing table's version has, or had, other content, or a router has a newer one: it is"
            " written as it is, under the next version"
        ),
        written_first=(
            "`table` with its version, or `lastTable`, `rollouts[].named` and `offered`, `candidate`; `rolledBack`,"
            " when it goes back to a pinned generation"
        ),
        may_be_deleted="nothing: what an older table references stays",
    ),
    Transition(
        name="trim",
        step=generations.trim_generations,
        edges=((GenerationPhase.BUILT, GenerationPhase.GONE),),
        when="`keepGenerations` newer ones are there, and it is neither asked for nor pinned",
        written_first="`generations` without it",
        may_be_deleted="its files in the store, by the next sweep",
    ),
)
"""In the order in which a pass goes through them: each sees what those before it have decided."""


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
        is_past = 0 < names.read_number(name) <= status.last_rollout and not recovery.is_inconsistent(status)
        return RolloutPhase.GONE if is_past else RolloutPhase.UNCLAIMED
    return _phase_of_known(rollout, status)


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


def _phase_of_known(rollout: RolloutStatus, status: DatasetStatus) -> RolloutPhase:
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
