"""The four conditions of a dataset. ``serving`` judges Ready, ``builds`` Built, ``cutover`` RolledOut. This module
judges Degraded, and dates and bounds all four. No decision reads a condition.

Why is Degraded True? It takes its reason from the first trouble and tells the first three, in this order:

    what is wrong                                          who makes the sentence
    the routers' pods cannot be made; servers of a         serving.diagnose_serving
    rollout in effect, or routers, are not ready
    no store credentials; a write that the API server      _diagnose_writes
    refuses; an object that somebody changes back;
    the store is not told what serves;                     announcement.diagnose_announcement
    what an earlier dataset has left for good
    the build does not get on, gave its turn up,           builds.diagnose_build
    or has failed
    a candidate's servers do not get ready, or it          starting.diagnose_candidate
    gave its turn up
    routers do not take up the routing table               cutover.diagnose_table
    what was replaced does not go, and shards wait         leftovers.diagnose_leftovers
    the data that serve are too old                        freshness.diagnose_staleness

The sentences about pods and Jobs are those of ``parse.causes``. ``reasons.write_sentence`` adds the remedy, from
``reasons.REMEDIES``. The message ends with what keeps serving, and with the next attempt at a build
(``builds.describe_next_attempt``).
``standstill`` makes its own Degraded: of a spec that cannot be used, and of what an earlier dataset has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from lookupdb_operator import kinds, names
from lookupdb_operator.model import Observed, ObservedDataset, Predecessor, Trouble
from lookupdb_operator.plan import announcement, clock, phase, reasons
from lookupdb_operator.plan.generation import freshness
from lookupdb_operator.plan.reasons import Assessment, Verdict
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, Condition, DatasetStatus

_MAX_MESSAGE_CHARACTERS: Final = 4000
_MAX_TROUBLES: Final = 3
"""In one message."""
_MAX_OBJECTS: Final = 3


def set_conditions(
    status: DatasetStatus, situation: Situation, *, serving: Assessment, build: Assessment, rollout: Assessment
) -> DatasetStatus:
    """``status`` with all conditions as they are now."""
    observed = situation.observed
    stale = freshness.diagnose_staleness(status, situation)
    ages = () if stale is None else (stale,)
    troubles = (*serving.troubles, *_diagnose_writes(observed), *build.troubles, *rollout.troubles, *ages)
    verdicts = {
        READY: serving.verdict,
        BUILT: build.verdict,
        ROLLED_OUT: rollout.verdict,
        DEGRADED: judge_degraded(
            status,
            tuple(dict.fromkeys(troubles)),
            serves=serving.verdict.status == "True",
            outlook=build.outlook,
        ),
    }
    return date_conditions(status, verdicts, situation.dataset, situation.now)


def date_conditions(
    status: DatasetStatus, verdicts: dict[str, Verdict], dataset: ObservedDataset, now: datetime
) -> DatasetStatus:
    """``status`` with these conditions, and the phase that they come to. The time of a condition changes when its truth
    does."""
    conditions = tuple(_condition(kind, verdict, status, dataset, now) for kind, verdict in verdicts.items())
    status = replace(status, conditions=conditions, observed_generation=dataset.generation)
    return replace(status, phase=phase.find_phase(status, dataset.spec))


def _condition(
    kind: str, verdict: Verdict, status: DatasetStatus, dataset: ObservedDataset, now: datetime
) -> Condition:
    before = status.condition(kind)
    since = before.last_transition_time if before is not None and before.status == verdict.status else ""
    return Condition(
        type=kind,
        status=verdict.status,
        reason=verdict.reason,
        message=reasons.shorten(verdict.message, _MAX_MESSAGE_CHARACTERS),
        observed_generation=dataset.generation,
        last_transition_time=since or clock.format_moment(now),
    )


def judge_degraded(status: DatasetStatus, troubles: tuple[Trouble, ...], *, serves: bool, outlook: str = "") -> Verdict:
    """Whether anything is wrong, though it may serve: ``serves`` says whether it does, and ``outlook`` when it may get
    better."""
    if not troubles:
        return Verdict("False", reasons.HEALTHY, "Nothing is wrong.")
    sentences = " ".join(
        reasons.write_sentence(trouble.reason, trouble.message) for trouble in troubles[:_MAX_TROUBLES]
    )
    more = f" And {len(troubles) - _MAX_TROUBLES} more." if len(troubles) > _MAX_TROUBLES else ""
    keeps = f" {status.generation} keeps serving." if serves else ""
    return Verdict("True", troubles[0].reason, f"{sentences}{more}{keeps}{outlook}")


def _diagnose_writes(observed: Observed) -> Iterator[Trouble]:
    """What cannot be written, or is not left as it was written; and what somebody else has left behind."""
    problem = observed.store.problem
    if problem is not None and observed.dataset.own_store is None:
        yield Trouble(reasons.STORE_CREDENTIALS_MISSING, problem)
    yield from reasons.list_refusals(observed)
    for contest in observed.contests:
        what = f"is changed by the field manager {contest.by!r}" if contest.by else "is changed or deleted by somebody"
        yield Trouble(
            reasons.CONTESTED,
            f"{contest.kind} {contest.name} {what} again and again; it is put right every five minutes at most",
        )
    announcement_trouble = announcement.diagnose_announcement(observed)
    if announcement_trouble is not None:
        yield announcement_trouble
    orphans = diagnose_orphans(observed)
    if orphans is not None:
        yield orphans


def diagnose_orphans(observed: Observed) -> Trouble | None:
    """What stays until somebody deletes it, with the command that does."""
    orphans = [predecessor for predecessor in observed.predecessors if predecessor.orphaned]
    if not orphans:
        return None
    plurals = ",".join(sorted({kinds.find_kind(orphan.kind).plural for orphan in orphans}))
    labels = [f"{names.DATASET_UID}={uid}" for uid in sorted({orphan.uid for orphan in orphans})]
    commands = " and ".join(f"kubectl delete -n {observed.dataset.namespace} {plurals} -l {label}" for label in labels)
    return Trouble(
        reasons.PREDECESSOR_ORPHANED,
        f"An earlier dataset of this name has left {_list_names(orphans)}, which nobody collects; delete them:"
        f" {commands}",
    )


def describe_collection(observed: Observed) -> str:
    """What Kubernetes is collecting, as a sentence."""
    remainder = _list_names(observed.predecessors)
    return f"Kubernetes still collects {remainder} of an earlier dataset of this name. This one begins after that."


def _list_names(predecessors: Iterable[Predecessor]) -> str:
    objects = [f"{predecessor.kind} {predecessor.name}" for predecessor in predecessors]
    more = f" and {len(objects) - _MAX_OBJECTS} more" if len(objects) > _MAX_OBJECTS else ""
    return ", ".join(objects[:_MAX_OBJECTS]) + more
