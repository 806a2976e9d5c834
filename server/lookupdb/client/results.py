"""What lookups come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class _Missing:
    """Stands for the value of a key that no record has."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Lookup(NamedTuple):
    """What was found of one key."""

    value: Any
    """None if it is missing; but None may also be a value: see ``is_found``."""
    is_found: bool
    generation: str | None
    """Which has, or has not, the key. None if no record of several generations can have it, while the dataset is rolled
    out shard by shard."""


class LookupResults(NamedTuple):
    """What was found of many keys. Each key that was asked for stands in exactly one of the three, once, and in
    the order in which it was first asked for."""

    found: dict[str, Any]
    """Key, as asked → value."""
    missing: list[str]
    """No record has these."""
    unavailable: list[str]
    """Of these nothing can be said now. Empty, unless ``partial`` was asked for."""
    generation: str | None
    """The one that all are out of; None while the dataset is rolled out shard by shard, and they are of several."""
    generations: tuple[str, ...]
    """Those that they are out of, in the order of their numbers."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise TypeError(f"results have three parts, and no keys of their own: write results.found[{place!r:.60}]")
        return tuple.__getitem__(self, place)


class DatasetDescription(NamedTuple):
    """The dataset that a router serves."""

    namespace: str
    name: str
    generation: str
    """The active one; while the dataset is rolled out shard by shard, the one that is rolled out."""
    records: int
    """Of ``generation``."""
    shards: int
    built_at: str
    """When it was built; of several that serve, the oldest: ISO 8601, UTC."""
    age_seconds: float
    """Since then."""
    candidates: tuple[str, ...]
    """Other generations that ``at`` takes."""
    shard_generations: Mapping[str, int]
    """While the dataset is rolled out shard by shard, how many shards each generation serves; else empty."""
