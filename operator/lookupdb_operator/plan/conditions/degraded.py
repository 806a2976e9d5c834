"""Degraded: all that is wrong with a dataset now, the gravest first. Nothing here keeps anything from serving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lookupdb_operator.model import Observed, Trouble
from lookupdb_operator.plan import predecessors, reasons, refusals
from lookupdb_operator.plan.conditions.built import diagnose_build
from lookupdb_operator.plan.conditions.ready import diagnose_serving
from lookupdb_operator.plan.conditions.rolled_out import diagnose_candidate, diagnose_table
from lookupdb_operator.plan.conditions.verdict import Verdict, sentence
from lookupdb_operator.plan.situation import Situation
from lookupdb_operator.status import Status

_MAX_TROUBLES: Final = 3
"""In one message."""


def judge_degraded(status: Status, troubles: tuple[Trouble, ...], *, serves: bool, next_attempt: str = "") -> Verdict:
    """Whether anything is wrong, though it may serve: ``serves`` says whether it does, and ``next_attempt`` when a
    build that failed is tried again."""
    if not troubles:
        return Verdict("False", reasons.HEALTHY, "Nothing is wrong.")
    sentences = " ".join(sentence(trouble.reason, trouble.message) for trouble in troubles[:_MAX_TROUBLES])
    more = f" And {len(troubles) - _MAX_TROUBLES} more." if len(troubles) > _MAX_TROUBLES else ""
    keeps = f" {status.generation} keeps serving." if serves else ""
    return Verdict("True", troubles[0].reason, f"{sentences}{more}{keeps}{next_attempt}")


def diagnose(status: Status, situation: Situation) -> tuple[Trouble, ...]:
    """Everything that is wrong, each once, the gravest first."""
    observed = situation.observed
    troubles = (
        *diagnose_serving(status, situation),
        *_diagnose_writes(observed),
        predecessors.orphaned(observed),
        diagnose_build(status, situation),
        diagnose_candidate(status, situation),
        diagnose_table(status, situation),
    )
    return tuple(dict.fromkeys(trouble for trouble in troubles if trouble is not None))


def _diagnose_writes(observed: Observed) -> Iterator[Trouble]:
    problem = observed.store.problem
    if problem is not None:
        yield Trouble(reasons.STORE_CREDENTIALS_MISSING, problem)
    yield from refusals.list_refusals(observed)
    for contest in observed.contests:
        what = f"is changed by the field manager {contest.by!r}" if contest.by else "is changed or deleted by somebody"
        yield Trouble(
            reasons.CONTESTED,
            f"{contest.kind} {contest.name} {what} again and again; it is put right every five minutes at most",
        )
