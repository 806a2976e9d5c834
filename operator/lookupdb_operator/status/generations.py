"""Generations, as the status remembers them: in the store, refused, rolled back from, lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuiltGeneration:
    """A whole generation in the store, as its builder reported it, refused or not."""

    generation: str
    content: str
    """``DatasetSpec.content_hash()`` of the spec it was built to."""
    fingerprint: str
    """Of the source as it was read."""
    records: int
    bytes: int
    """Of all shard files."""
    largest_shard_bytes: int
    shards: int
    normalize: tuple[str, ...]
    value_format: Literal["json", "raw"]
    built_at: str
    refresh: str = ""
    """The last value of the refresh annotation that it answers: it was built for it, or found to be as new."""
    verified_by: int = 0
    """The number of the last build that read the source and found it unchanged; 0: none but its own."""
    success_file: str = ""
    """The identity of the success file before its source was last read; empty where the spec named none."""
    refreshed_at: str = ""
    """When the last build began that read its source, or found it unchanged."""
    premature_promotion: str = ""
    """The annotation that promotes it, if it did so before it was built: then it does nothing. Else empty."""
    adopted_from: str = ""
    """``uid/gN`` of the earlier dataset that it is a copy of; empty: it was built."""


@dataclass(frozen=True, slots=True)
class GenerationStatus(BuiltGeneration):
    """A generation that may be rolled out."""

    overridden: str = ""
    """Which gate was closed for it, and was overridden; empty when it passed all."""
    served_by: int = 0
    """The version of the newest routing table with which every router answered from it; 0: it never took effect."""


@dataclass(frozen=True, slots=True)
class RefusedGeneration(BuiltGeneration):
    """A generation that a gate has refused."""

    message: str = ""
    """Which gate is closed."""
    slot: str = ""
    """The slot of the schedule whose check it was built for; empty for none."""
    premature_override: str = ""
    """The annotation that names it, if it did so before it was refused: then it does nothing. Else empty."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What was rolled back from: it is not rolled out again before the source changes
    (``plan.generation.rollback``)."""

    generation: str
    fingerprint: str
    """Of its source."""
    content: str
    """``DatasetSpec.content_hash()`` of the spec it was built to."""


@dataclass(frozen=True, slots=True)
class LostGeneration:
    """The last generation that servers could not fetch as it was published (``plan.generation.losses``)."""

    generation: str
    reason: str
    """One of ``plan.reasons.DAMAGE_REASONS``."""
    message: str
    count: int
    """How many were lost in a row: soon after they were built, with no build between that something else asked for."""
    retry_at: str = ""
    """From when on it is built again. Empty: the store has it again."""
