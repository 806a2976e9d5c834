"""The one word that ``kubectl get`` shows of a dataset: a summary for people. No decision reads it.

Several things may hold at once, a refresh that is built while what serves is pinned say. The word is the first of
``PHASES`` that holds: what somebody has to do something about comes before what goes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lookupdb_operator.plan import reasons
from lookupdb_operator.status import BUILT, DEGRADED, READY, ROLLED_OUT, DatasetStatus

_ROLLING_OUT: Final = frozenset({reasons.STARTING_SERVERS, reasons.CONFIRMING, reasons.DRAINING})
_WAITING_FOR_PREDECESSOR: Final = frozenset({reasons.WAITING_FOR_PREDECESSOR, reasons.PREDECESSOR_ORPHANED})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a phase is found by: conditions, and the status and the spec that they are about."""

    status: DatasetStatus
    spec: Mapping[str, Any]

    def truth(self, kind: str) -> str:
        """True, False or Unknown; empty while there is no such condition."""
        condition = self.status.condition(kind)
        return condition.status if condition is not None else ""

    def reason(self, kind: str) -> str:
        """Why; empty while there is no such condition."""
        condition = self.status.condition(kind)
        return condition.reason if condition is not None else ""

    def fails(self, kind: str) -> bool:
        """Whether the condition tells of a failure."""
        return bool(self.reason(kind)) and self.reason(kind) not in reasons.HEALTHY_REASONS


@dataclass(frozen=True, slots=True)
class Phase:
    """One word, and when it holds."""

    name: str
    means: str
    holds: Callable[[Facts], bool]


PHASES: Final = (
    Phase(
        "Invalid",
        "the spec cannot be used; what serves goes on",
        lambda facts: facts.reason(BUILT) == reasons.INVALID_SPEC,
    ),
    Phase(
        "Waiting",
        "an earlier dataset of this name is not gone yet",
        lambda facts: facts.reason(BUILT) in _WAITING_FOR_PREDECESSOR,
    ),
    Phase(
        "Recovering",
        "the status was lost; what serves is kept until a new generation serves",
        lambda facts: facts.reason(READY) == reasons.STATUS_LOST,
    ),
    Phase(
        "Unavailable",
        "lookups are not answered, though a generation was rolled out",
        lambda facts: facts.truth(READY) == "False" and facts.status.table is not None,
    ),
    Phase(
        "Suspended",
        "`spec.suspend`: nothing is built or rolled out",
        lambda facts: bool(facts.spec.get("suspend")),
    ),
    Phase(
        "GateClosed",
        "the newest generation did not pass a gate",
        lambda facts: facts.status.failure is not None and facts.status.failure.reason == reasons.GATE_CLOSED,
    ),
    Phase(
        "Stuck",
        "a build or a rollout failed, or does not get on",
        lambda facts: facts.fails(BUILT) or facts.fails(ROLLED_OUT),
    ),
    Phase("Degraded", "something else is wrong; lookups are answered", lambda facts: facts.truth(DEGRADED) == "True"),
    Phase(
        "RollingOut",
        "the servers of a rollout start, take over or end",
        lambda facts: facts.reason(ROLLED_OUT) in _ROLLING_OUT,
    ),
    Phase(
        "Queued",
        "it waits for its turn to build or to roll out",
        lambda facts: reasons.WAITING_FOR_TURN in (facts.reason(BUILT), facts.reason(ROLLED_OUT)),
    ),
    Phase(
        "CandidateWaiting",
        "a generation waits for promotion, beside what serves",
        lambda facts: facts.reason(ROLLED_OUT) == reasons.CANDIDATE_WAITING,
    ),
    Phase("Pinned", "`spec.generation` serves, whatever is built", lambda facts: bool(facts.spec.get("generation"))),
    Phase(
        "RolledBack",
        "what is newer was rolled back from, and waits for another source",
        lambda facts: facts.reason(ROLLED_OUT) == reasons.ROLLED_BACK,
    ),
    Phase(
        "Rejected",
        "what is newer was rejected, and waits for another source",
        lambda facts: facts.reason(ROLLED_OUT) == reasons.REJECTED,
    ),
    Phase(
        "WaitingForSource",
        "the success file of the source is not there yet",
        lambda facts: facts.reason(BUILT) == reasons.WAITING_FOR_SOURCE,
    ),
    Phase("Building", "a build is under way, or about to begin", lambda facts: facts.reason(BUILT) == reasons.BUILDING),
    Phase("Ready", "what is asked for is what serves", lambda facts: facts.reason(ROLLED_OUT) == reasons.UP_TO_DATE),
)
PENDING: Final = "Pending"
"""The word for what is none of them."""


def find_phase(status: DatasetStatus, spec: Mapping[str, Any]) -> str:
    """The word for ``status``, whose conditions are those of now, and for ``spec``, which may be unusable."""
    facts = Facts(status, spec)
    return next((phase.name for phase in PHASES if phase.holds(facts)), PENDING)
