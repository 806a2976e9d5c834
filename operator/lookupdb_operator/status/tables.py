"""The routing table that was last written, and what the store was told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableCandidate:
    """What a routing table references beside its active generation, for those who ask for it by name."""

    rollout: str
    generation: str
    replicas: int
    workers: int
    password_key: str = ""
    """As its rollout has it."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Shards that another rollout than the table's serves."""

    rollout: str
    generation: str
    workers: int
    shard_ranges: str
    password_key: str = ""
    """As its rollout has it."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The routing table that was last written."""

    version: int
    rollout: str
    generation: str
    replicas: int
    """Endpoints of each shard that it names: pods 0 to replicas-1."""
    workers: int
    written_at: str
    """Or when a router was found that had come up with an older one, and is to take this one up."""
    confirmed_at: str = ""
    """When every router had confirmed it; from then on the drain time runs. Empty: not yet."""
    candidate: TableCandidate | None = None
    parts: tuple[TablePart, ...] = ()
    """Which shards other rollouts serve, while ``rollout`` replaces them shard by shard; by number of the rollout."""
    password_key: str = ""
    """As its rollout has it."""

    @property
    def is_mixed(self) -> bool:
        """Whether shards of several generations are routed to."""
        return any(part.generation != self.generation for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnnouncedStatus:
    """What the store was last seen to have been told of the active generation."""

    generation: str
    version: int
    """Of the routing table that every router had confirmed."""
