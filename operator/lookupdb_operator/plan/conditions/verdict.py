"""What one condition says; and what to do about what is wrong: a remedy for each reason that has one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lookupdb_operator import names
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import Truth

_REFRESH: Final = f"Set the annotation {names.REFRESH} to another value: the dataset is built again."

REMEDIES: Final[Mapping[str, str]] = {
    reasons.BAD_SOURCE: "Correct the source, or the spec.",
    reasons.GATE_CLOSED: "If the new generation is as it should be, change spec.gates.",
    reasons.STORE_UNAVAILABLE: "Look whether the store answers from this cluster.",
    reasons.STORE_DENIED: "Correct the store's credentials in the operator's Secret.",
    reasons.STORE_CREDENTIALS_MISSING: "Create the operator's store Secret.",
    reasons.GENERATION_MISSING: _REFRESH,
    reasons.CORRUPT_FILE: _REFRESH,
    reasons.NOT_ENOUGH_ROOM: "Raise spec.build.resources.limits.memory or spec.build.scratchSize.",
    reasons.OUT_OF_DISK: "Raise spec.build.scratchSize, or make room on the nodes.",
    reasons.CONTESTED: "Let whoever that is leave it alone, and change the dataset instead.",
    reasons.DEADLINE_EXCEEDED: "Raise spec.build.deadlineSeconds.",
    reasons.INVALID_SPEC: "Correct the spec.",
    reasons.PROGRESS_DEADLINE_EXCEEDED: "Look at its pods; if they only need longer, raise"
    " spec.rollout.progressDeadlineSeconds.",
}
"""Of what builders and the operator say; what pods are in trouble about comes with its remedy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition says: a truth, a reason for machines, a sentence for people. Nothing is decided by it."""

    status: Truth
    reason: str
    message: str


def sentence(reason: str, message: str) -> str:
    """``message`` on one line, as a sentence, and what to do about ``reason`` unless the message says so itself: the
    further lines of an error of lookupdb's are its advice."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["No message was given"]
    text = lines[0]
    for line in lines[1:]:
        text = f"{text} {line}" if text.endswith((":", ";", ",")) else f"{text}; {line}"
    text = text if text.endswith((".", "!", "?", "…")) else f"{text}."
    remedy = REMEDIES.get(reason) if len(lines) == 1 else None
    return f"{text} {remedy}" if remedy and remedy not in text else text
