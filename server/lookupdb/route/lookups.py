"""The lookup core's front door: a key goes in, one call of its waiter comes out, within the deadline."""

from __future__ import annotations

from dataclasses import dataclass

from lookupdb.route.generation import Generation
from lookupdb.route.waiters import UNAVAILABLE, BatchWaiter, Problem, Values, Waiter

__all__ = ["UNAVAILABLE", "BatchWaiter", "DatasetInfo", "Generation", "Lookups", "Problem", "Values", "Waiter"]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What ``GET /v1/dataset`` tells."""

    namespace: str
    name: str
    generation: str
    records: int
    shards: int
    built_at: str
    """ISO 8601, UTC."""
    age: float
    """Seconds since then."""
    candidates: tuple[str, ...]
    """Other generations that can be asked by name."""


class Lookups:
    """Finds keys in the routing table in effect."""

    def find(self, key: str, waiter: Waiter, generation: str | None = None) -> None:
        """Look ``key`` up in the active generation, or in the one named. May call the waiter at once.

        A key that no record can have (``keys.InvalidKey``) is missing.
        """
        raise NotImplementedError

    def find_many(self, keys: list[str], waiter: BatchWaiter, generation: str | None = None) -> None:
        """Look all ``keys`` up in one generation, retries included. May call the waiter at once."""
        raise NotImplementedError

    def dataset(self) -> DatasetInfo | None:
        """The dataset in effect, or None while no routing table is."""
        raise NotImplementedError
