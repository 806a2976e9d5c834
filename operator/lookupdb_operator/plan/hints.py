"""What to do about what is wrong: a sentence for each reason that has a remedy of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lookupdb_operator.plan import reasons

REMEDIES: Final[Mapping[str, str]] = {
    reasons.BAD_SOURCE: "Correct the source, or spec.source.",
    reasons.GATE_CLOSED: "If the new generation is as it should be, change spec.gates.",
    reasons.STORE_UNAVAILABLE: "Look whether the store answers from this cluster.",
    reasons.STORE_DENIED: "Correct the store's credentials in the operator's Secret.",
    reasons.STORE_CREDENTIALS_MISSING: "Create the operator's store Secret.",
    reasons.OUT_OF_MEMORY: "Raise the memory limit in spec.build.resources or spec.serving.resources.",
    reasons.NOT_ENOUGH_ROOM: "Raise spec.build.resources.limits.memory or spec.build.scratchSize.",
    reasons.OUT_OF_DISK: "Raise spec.build.scratchSize, or make room on the nodes.",
    reasons.DEADLINE_EXCEEDED: "Raise spec.build.deadlineSeconds.",
    reasons.IMAGE_PULL_FAILED: "Correct spec.image or the operator's, and the imagePullSecrets.",
    reasons.VOLUME_MISSING: "Create the claim or the ConfigMap that spec.source.volume names, or correct the name.",
    reasons.SECRET_MISSING: "Create the Secret, or correct its name in the spec.",
    reasons.QUOTA_EXCEEDED: "Raise the namespace's quota, or ask for less.",
    reasons.UNSCHEDULABLE: "Add nodes, ask for less, or correct spec.scheduling.",
    reasons.INVALID_SPEC: "Correct the spec.",
}


def sentence(reason: str, message: str) -> str:
    """``message`` as a sentence, and what to do about ``reason``."""
    text = message.strip() or "No message was given."
    text = text if text.endswith((".", "!", "?", "…")) else f"{text}."
    remedy = REMEDIES.get(reason)
    return f"{text} {remedy}" if remedy and remedy not in text else text
