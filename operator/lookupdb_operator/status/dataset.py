"""All of the status, and its JSON."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lookupdb import schema
from lookupdb.manifest import GENERATION
from lookupdb_operator import names, status_json
from lookupdb_operator.status.builds import BuildFailure, BuildRecord, BuildStatus, ScheduleStatus
from lookupdb_operator.status.conditions import Condition
from lookupdb_operator.status.generations import GenerationStatus, LostGeneration, RefusedGeneration, RolledBack
from lookupdb_operator.status.rollouts import CandidateStatus, RolloutStatus
from lookupdb_operator.status.tables import AnnouncedStatus, TableStatus
from lookupdb_operator.status.turns import Ticket


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """All of ``.status``."""

    observed_generation: int = 0
    operator: str = ""
    """Identity of the operator that acts on this dataset."""
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    """The same in one word, for people (``plan.phase``)."""
    endpoint: str = ""
    generation: str = ""
    """The active one: what routers answer from; while a rollout goes on shard by shard, the last one that they all
    answered from."""
    records: int = 0
    bytes: int = 0
    built_at: str = ""
    """When the active generation was built."""
    last_refreshed: str = ""
    """When the oldest data that serve were last known to be as their source: how old the data are."""
    shards: str = ""
    """Of the active rollout, for people: ``3/4`` shards with a ready server."""
    synced_nodes: str = ""
    """Of spec.sync, for people: on ``3/4`` nodes there is a generation."""
    replicas: int = 0
    """Servers of each shard, for the scale subresource."""
    selector: str = ""
    """Of the active rollout's pods, for the scale subresource."""
    generations: tuple[GenerationStatus, ...] = ()
    """Those in the store, oldest first, at most keepGenerations and what is active or rolled out."""
    refused: RefusedGeneration | None = None
    """The newest generation that a gate has refused, until a newer one is built."""
    rolled_back: tuple[RolledBack, ...] = ()
    """By number, oldest first; at most ``plan.generation.rollback.MOST_MARKS``."""
    rejected: tuple[RolledBack, ...] = ()
    """The same of what was rejected before it took effect (``plan.generation.promotion``)."""
    last_generation: int = 0
    """The highest number claimed; also by builds that failed."""
    last_rollout: int = 0
    last_table: int = 0
    """The highest version claimed for a routing table, also when ``table`` is not known any more."""
    refreshed: str = ""
    """The last value of the refresh annotation that was answered."""
    refreshed_by: int = 0
    """The number of the build that was the first to answer it: what was read before that is older than the answer."""
    build_ticket: Ticket | None = None
    rollout_ticket: Ticket | None = None
    build: BuildStatus | None = None
    failure: BuildFailure | None = None
    lost: LostGeneration | None = None
    builds: tuple[BuildRecord, ...] = ()
    """The last ones that ended, newest last."""
    last_checked: str = ""
    """When a builder last said how the source is."""
    next_check: str = ""
    """When the next check of the schedule is due."""
    schedule: ScheduleStatus | None = None
    rollouts: tuple[RolloutStatus, ...] = ()
    """Oldest first; those not yet gone are here."""
    table: TableStatus | None = None
    candidate: CandidateStatus | None = None
    announced: AnnouncedStatus | None = None
    store_digest: str = ""
    """Of the store's address and credentials, as last written to the dataset's Secret."""
    store_written_at: str = ""
    """When that was."""
    password_key: str = ""
    """Fingerprint of the key of shard servers' passwords whose Secret was last made; empty: none."""
    password_key_written_at: str = ""
    """When that was."""

    def to_json(self) -> dict[str, Any]:
        """camelCase; what is empty is left out, conditions and counters stay."""
        return status_json.to_json(self)

    @classmethod
    def from_json(cls, members: Mapping[str, Any] | None) -> Self:
        """What the API server holds. Unknown members are ignored. Raises ValueError when a member is not what it
        must be, so that nothing is claimed again by mistake."""
        members = members or {}
        try:
            status = typing.cast(Self, status_json.from_json(cls, members))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"status cannot be read: {type(error).__name__}: {error}") from error
        status_json.check_bounds(members, schema.resource_schema()["properties"]["status"])
        return status

    def condition(self, kind: str) -> Condition | None:
        """The condition of type ``kind``."""
        for condition in self.conditions:
            if condition.type == kind:
                return condition
        return None

    def find_generation(self, name: str) -> GenerationStatus | None:
        """The whole generation ``name``."""
        for generation in self.generations:
            if generation.generation == name:
                return generation
        return None

    @property
    def has_nothing_of_its_own(self) -> bool:
        """Whether the dataset has never had a generation that could serve, as far as this and its objects tell; its
        builder looks into the store, too. Adopting would go back to older data else."""
        return not (self.generations or self.rollouts or self.generation or self.table or self.last_table)

    def protected_generations(self, pinned: str = "") -> frozenset[str]:
        """The generations that something serves, fetches or writes, and those that this refers to; and the one that the
        spec pins, if that is older. No generation older than the newest of these is safe, so a pin alone, of a status
        that tells nothing, or of a number yet to come must not be the newest."""
        found = {generation.generation for generation in self.generations}
        found.update(rollout.generation for rollout in self.rollouts)
        if self.refused:
            found.add(self.refused.generation)
        found.add(self.generation)
        if self.table:
            found.add(self.table.generation)
        if self.build:
            found.update((self.build.generation, self.build.active))
        found.discard("")
        newest = max(map(names.read_number, found), default=0)
        is_older = GENERATION.fullmatch(pinned) and names.read_number(pinned) < newest
        return frozenset(found | {pinned} if is_older else found)

    def find_rollout(self, name: str) -> RolloutStatus | None:
        """The rollout ``name``."""
        for rollout in self.rollouts:
            if rollout.rollout == name:
                return rollout
        return None
