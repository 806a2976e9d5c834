"""The interface between the HTTP front and the lookup core: callbacks, so that a lookup costs no future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, Protocol, TypeAlias

from lookupdb.route.lookups.generation import ServedGeneration


class _Mark(Enum):
    UNAVAILABLE = "unavailable"


UNAVAILABLE: Final = _Mark.UNAVAILABLE
"""Stands in a batch for a key whose shard could not be asked: it may or may not exist."""

Values: TypeAlias = "Sequence[bytes | Literal[_Mark.UNAVAILABLE] | None]"
"""One entry a key: its value, None when no record has the key, or UNAVAILABLE."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing can be said about a key. Always temporary: the client may ask again."""

    reason: Literal["NoTable", "Unreachable", "QueueFull", "Deadline", "BadAnswer", "Damaged", "Overloaded"]
    """Stable, for metrics and problem details."""
    detail: str
    """A sentence for people: what was tried, where, and what was found."""
    shard: int | None = None


OVERLOADED: Final = Problem(
    "Overloaded", "the router holds as many requests and answers as its memory allows; come back later"
)


class Waiter(Protocol):
    """Gets exactly one of these calls for one key, possibly before ``LookupCore.find`` returns. Must not raise."""

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about the key now."""

    def unknown_generation(self, name: str) -> None:
        """The generation asked for is neither active nor a candidate."""


class BatchWaiter(Protocol):
    """Gets exactly one of these calls for a list of keys, possibly before ``find_many`` returns. Must not raise."""

    def done(self, generation: ServedGeneration, values: Values, size: int, problem: Problem | None) -> None:
        """What was found, aligned with the keys: ``size`` bytes. With a ``problem`` some of ``values`` are UNAVAILABLE,
        but not all: it is why the first of them is."""

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""

    def unknown_generation(self, name: str) -> None:
        """The generation asked for is neither active nor a candidate."""
