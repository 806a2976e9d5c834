"""What a sender has counted since its last report. A report is a line of JSON: to_json here, from_json there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

FailureKind = Literal["unavailable", "httpErrors", "broken", "invalid"]
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = ("unavailable", "httpErrors", "broken", "invalid")
MAX_LABELS: Final = 50
"""Of one kind of failure, and of generations: what servers say must not fill memory."""
OTHER_LABELS: Final = "(others)"


@dataclass(slots=True)
class GenerationSpan:
    """The answers out of one generation; seconds since measuring began."""

    answers: int
    first: float
    last: float

    def extend(self, other: Self) -> None:
        """Take in ``other``."""
        self.answers += other.answers
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)


@dataclass(slots=True)
class Tally:
    """Counts of requests that were to be sent after the warm-up, and their latencies in microseconds."""

    scheduled: int = 0
    """Requests whose time has come."""
    held_back: int = 0
    """Of these, those that found as many in flight as may be. They were sent later, or never."""
    answered: int = 0
    """Requests of which all keys were found or missing."""
    timeouts: int = 0
    """Sent, and not answered in time."""
    unsent: int = 0
    """Not sent in time."""
    found: int = 0
    """Keys."""
    missing: int = 0
    unavailable_keys: int = 0
    mixed: int = 0
    """Answers out of several generations."""
    failures: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in FAILURE_KINDS})
    """By kind, requests by their label."""
    generations: dict[str, GenerationSpan] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=list)
    """From the intended time: of what was answered, and how long was waited in vain for the rest of them: timeouts, and
    what was not sent."""
    failure_latencies: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    """How late this sender was by itself, for each request."""
    busy: float = 0.0
    """Seconds of processor time."""

    def count_failure(self, kind: FailureKind, label: str) -> None:
        """Count one request."""
        add_label(self.failures[kind], label)

    def count_generation(self, name: str, instant: float) -> None:
        """Count one answer out of the generations that ``name`` lists."""
        span = self.generations.get(name)
        if span is not None:
            span.answers += 1
            span.last = instant
            return
        key = name if len(self.generations) < MAX_LABELS else OTHER_LABELS
        self.generations.setdefault(key, GenerationSpan(0, instant, instant)).extend(
            GenerationSpan(1, instant, instant)
        )

    def to_json(self) -> dict[str, Any]:
        """For orjson, which writes dataclasses."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Self:
        """What ``to_json`` became."""
        spans = {name: GenerationSpan(**span) for name, span in members["generations"].items()}
        return cls(**{**members, "generations": spans})


def add_label(labels: dict[str, int], label: str, count: int = 1) -> None:
    """Add ``count`` to ``label``, or to those for which there is no room."""
    key = label if label in labels or len(labels) < MAX_LABELS else OTHER_LABELS
    labels[key] = labels.get(key, 0) + count
