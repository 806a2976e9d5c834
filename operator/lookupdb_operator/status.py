"""The status of a LookupDataset: the operator's memory. Frozen dataclasses and their JSON, no decisions.

Numbers of generations, rollouts and routing tables are claimed here before anything carries them, in a write that
fails if somebody else wrote meanwhile: no two things are ever called the same.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from lookupdb import schema
from lookupdb.manifest import GENERATION
from lookupdb_operator import names, status_json
from lookupdb_operator.shard_ranges import ALL

READY: Final = "Ready"
BUILT: Final = "Built"
ROLLED_OUT: Final = "RolledOut"
DEGRADED: Final = "Degraded"
CONDITIONS: Final = (READY, BUILT, ROLLED_OUT, DEGRADED)
"""Always present, in this order."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One of CONDITIONS, as KEP-1623 has them."""

    type: str
    status: Truth
    reason: str
    """CamelCase, of ``plan.reasons``."""
    message: str
    """A sentence for people, with what to do when there is something."""
    observed_generation: int = 0
    last_transition_time: str = ""
    """When ``status`` last changed."""


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
class BuildFailure:
    """How the last attempt to build ended, when it is to be repeated: it failed, or the success file was not there."""

    reason: str
    message: str
    generation: str
    content: str
    """Of the spec that failed: another one is acted on at once."""
    refresh: str
    count: int
    """In a row, for this very content and refresh."""
    retry_at: str
    digest: str = ""
    """Of everything that its Job was made from: another one is acted on at once, too."""


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


BuildOutcome = Literal["built", "adopted", "unchanged", "waiting", "gateClosed", "failed", "overridden"]


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """How a build ended, or that somebody has let through what its gates had refused, for people; of several that ended
    alike one after the other, the last one."""

    generation: str
    """The number that it had claimed."""
    outcome: BuildOutcome
    reason: str
    """One of ``plan.reasons`` if it failed, else the builder's word."""
    started_at: str
    finished_at: str
    """When its end was seen."""
    records: int = 0
    seconds: int = 0
    message: str = ""
    count: int = 1
    """How many in a row have ended so."""


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """Where the dataset is in its schedule."""

    expression: str
    """The schedule and its time zone, to which ``nextCheck`` belongs."""
    slot: str
    """The last slot that passed; at first the moment from which on slots count."""
    due: str = ""
    """The slot whose check is asked for; empty once it was made."""
    skipped: str = ""
    """The last slot that was missed by more than startingDeadlineSeconds."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What keeps a build or a rollout that has its turn from getting on."""

    reason: str
    """One of ``plan.reasons``."""
    since: str
    """Since when something has, whatever it was at first."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The dataset's place in the queue for a turn to build, or to roll out. There is none while it asks for none."""

    since: str = ""
    """From when on it waits: a moment that is ahead while it backs off. Empty: it has its turn."""
    given_up: int = 0
    """How many turns in a row it gave up, because it did not get on and others waited."""
    reason: str = ""
    """Why it gave up the last one."""
    message: str = ""
    digest: str = ""
    """Of what it gave up: something else that is asked for does not back off."""


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """The build under way: its generation's number is claimed."""

    generation: str
    content: str
    refresh: str
    """The value of the refresh annotation that it answers; empty when there was none."""
    digest: str
    """Of everything that its Job is made from: another one holds from the next build on, or at once when this one does
    not get on."""
    started_at: str
    slot: str = ""
    """The slot of the schedule whose check it is; empty for none."""
    unless_fingerprint: str = ""
    """Of the source of the generation that it compares with: what finds it again verifies that one. Empty: none."""
    unless_success_file: str = ""
    active: str = ""
    """The generation that gates compare with; empty for none."""
    stall: Stall | None = None
    active_records: int = 0
    """How many the generation has that gates compare with."""
    unless_refused: str = ""
    """The generation that a gate has refused: what would come to the same is not built again. Empty for none."""
    adopt: str = ""
    """``uid`` or ``uid/gN`` of what an earlier dataset has left, which is adopted in place of a build; empty for
    none."""
    protect: tuple[str, ...] = ()
    """With a store of the dataset's own: the generations there that its builder does not remove."""


@dataclass(frozen=True, slots=True)
class PushStatus:
    """The last end of a push of a rollout's images that was seen: from it on runs the pause before another one
    (``plan.rollout.pushes``)."""

    job: str
    """The uid of the Job."""
    finished_at: str
    """When its end was seen: by the clock of the operator, as all moments that it compares."""
    count: int
    """How many in a row, up to this one, have failed for good or brought back nothing that servers miss."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """One set of shard servers that exists or is about to."""

    rollout: str
    generation: str
    template: str
    """Digest of the pod template and what else cannot change within a rollout."""
    started_at: str
    referenced_replicas: int = field(default=0, metadata={"json": "named"})
    """The most servers a shard that a routing table which may still be in effect somewhere references: so many stay.
    0: no table references this rollout."""
    stall: Stall | None = None
    workers: int = 0
    """Of each server; 0: nobody knows."""
    kept_since: str = ""
    """When it had drained: its servers stay for a while, to go back to. Empty: it is not kept for that."""
    offered_replicas: int = field(default=0, metadata={"json": "offered"})
    """The same of the tables that reference it beside an active one, for those who ask for its generation by name; at
    least 1 while it waits for promotion."""
    shard_ranges: str = ALL
    """The shards that it has servers of; empty: all."""
    window: str = ""
    """Those of them, as ranges, that no routing table has referenced since they were claimed; empty: none, or all of a
    candidate."""
    overtaken_by: str = ""
    """The generation that came before the rest of it, because a window of it was stuck: it keeps the shards that it
    has, and does not go on. Empty: none did."""
    password_key: str = ""
    """Fingerprint of the key from which the password of its servers is derived; empty: they ask for none."""
    lost_template: str = ""
    """The digest of the pod template from which its generation could not be rolled out anew, because the store has lost
    it: what waits for promotion does not wait for that as well. Empty: none."""
    push: PushStatus | None = None
    """None: no end of a push was seen."""

    @property
    def is_candidate(self) -> bool:
        """Whether no routing table has referenced it since it was claimed."""
        return not self.referenced_replicas and not self.offered_replicas and not self.kept_since

    @property
    def is_starting(self) -> bool:
        """Whether servers of it start that no routing table references."""
        return self.is_candidate or bool(self.window)

    @property
    def minimum_replicas(self) -> int:
        """How many servers a shard some router may send lookups to: so many stay."""
        return max(self.referenced_replicas, self.offered_replicas)


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


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """The rollout that waits for promotion: its servers were ready."""

    generation: str
    rollout: str
    since: str


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
