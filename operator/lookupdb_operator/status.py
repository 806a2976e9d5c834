"""All of the status, and its JSON."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from lookupdb.dataset import schema
from lookupdb.dataset.schema import to_camel_case
from lookupdb.manifest import GENERATION
from lookupdb_operator import names

# The conditions of a LookupDataset: what people and `kubectl wait` read.


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


# Generations, as the status remembers them: in the store, refused, rolled back from, lost.


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


# The routing table that was last written, and what the store was told of it.


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


# What waits for a turn to build or to roll out, and what keeps it from getting on when it has one.


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


# The schedule, the build under way, and how the last ones ended.


BuildOutcome = Literal["built", "adopted", "unchanged", "waiting", "gateClosed", "failed", "overridden"]


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


# Shards as ranges of text in a status: ``0-3,8`` is five of them. So a thousand shards need no thousand members.


ALL: Final = ""
"""The text for all shards, however many there are."""
MAX_SHARDS: Final = 1024
"""Of a dataset: no shard has a higher number."""


@functools.lru_cache(maxsize=4096)
def parse_shards(text: str) -> frozenset[int]:
    """The shards that ``text`` names: none for an empty one. Raises ValueError when it is not as ``format_shards``
    writes it."""
    shards = frozenset(shard for part in text.split(",") for shard in _parse_range(part)) if text else frozenset()
    if format_shards(shards) != text:
        raise ValueError(f"expected ranges of shards such as 0-3,8, found {text[:40]!r}")
    return shards


def _parse_range(part: str) -> range:
    first, _, last = part.partition("-")
    numbers = (first, last or first)
    if not all(number.isascii() and number.isdigit() and int(number) < MAX_SHARDS for number in numbers):
        raise ValueError(f"expected shards below {MAX_SHARDS} such as 0-3, found {part[:40]!r}")
    return range(int(numbers[0]), int(numbers[1]) + 1)


def format_shards(shards: Iterable[int]) -> str:
    """``shards`` as text, in order of number; empty for none."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in _list_ranges(shards))


def _list_ranges(shards: Iterable[int]) -> Iterator[tuple[int, int]]:
    ordered = sorted(shards)
    begin = 0
    for i, shard in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != shard + 1:
            yield ordered[begin], shard
            begin = i + 1


def select_shards(text: str, count: int) -> tuple[int, ...]:
    """Those of ``count`` shards that ``text`` names, or all (``ALL``), in order."""
    if text == ALL:
        return tuple(range(count))
    return tuple(shard for shard in sorted(parse_shards(text)) if shard < count)


def shorten_shards(shards: Iterable[int], count: int) -> str:
    """``shards`` as text; ``ALL`` when they are all of ``count``."""
    chosen = frozenset(shards)
    return ALL if len(chosen) == count else format_shards(chosen)


# Sets of shard servers, and the one that waits for promotion.


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
class CandidateStatus:
    """The rollout that waits for promotion: its servers were ready."""

    generation: str
    rollout: str
    since: str


# The dataclasses of a status as JSON, and back: names in camelCase, what is empty left out, each of its type.


MOMENTS: Final = frozenset(
    {
        *("built_at", "confirmed_at", "finished_at", "refreshed_at", "retry_at", "started_at", "written_at"),
        *(
            "store_written_at",
            "password_key_written_at",
            "last_checked",
            "last_refreshed",
            "next_check",
            "since",
            "kept_since",
        ),
        *("slot", "due", "skipped"),
    }
)
"""Members that hold a moment, or nothing."""
_SHARDS: Final = frozenset({"shard_ranges", "window"})
"""Members that hold ranges of shards, or nothing."""
_YEARS: Final = range(1970, 9000)
"""Of moments: those from which every duration of a spec leads to another moment."""
_KEPT: Final = frozenset(
    {"observed_generation", "conditions", "count", "version", "replicas", "records", "bytes", "seconds"}
)
"""Members that are written even when they are zero or empty."""

_BOUNDS: Final = {int: ("minimum", "maximum"), str: ("minLength", "maxLength")}
"""By type, where the CRD says how large or how long."""


def to_json(record: Any) -> dict[str, Any]:
    """The members of the dataclass ``record``, but for empty ones that may be left out."""
    members: dict[str, Any] = {}
    for member in dataclasses.fields(record):
        value = getattr(record, member.name)
        if value in (None, "", (), 0) and member.name not in _KEPT and member.default is not dataclasses.MISSING:
            continue
        members[json_name(member)] = _json(value)
    return members


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return value


def from_json(kind: type, members: Mapping[str, Any]) -> Any:
    """The dataclass ``kind`` that ``members`` are of. Raises KeyError, TypeError, AttributeError or ValueError when a
    member is not what it must be."""
    values = {
        member.name: _parse(member.hint, members[member.json])
        for member in _members(kind)
        if member.json in members or member.is_required
    }
    for member in _members(kind):
        if member.is_moment and (found := values.get(member.name)) and not is_moment(found):
            raise TypeError(f"expected a moment as {member.json}, found {found!r}")
        if member.name in _SHARDS:
            parse_shards(values.get(member.name, ALL))
    return kind(**values)


def is_moment(text: str) -> bool:
    """Whether ``text`` is one that can be calculated with: ISO 8601."""
    try:
        return datetime.fromisoformat(text).year in _YEARS
    except ValueError:
        return False


def check_bounds(value: Any, fields: Mapping[str, Any], name: str = "status") -> None:
    """Raises ValueError when ``value``, whose types are right, is beyond what ``fields``, its part of the CRD, allows:
    a number of shards is the size of sets, and nobody can calculate with an empty moment. An API server checks what is
    written, not what it has from before."""
    if isinstance(value, Mapping):
        properties = fields.get("properties", {})
        for member, inner in value.items():
            if inner is not None and member in properties:
                check_bounds(inner, properties[member], member)
        return
    size = value if isinstance(value, int) else len(value)
    least, most = (fields.get(bound) for bound in _BOUNDS.get(type(value), ("minItems", "maxItems")))
    if (least is not None and size < least) or (most is not None and size > most):
        raise ValueError(f"expected {least or 0} to {most} as the size of {name}, found {size}")
    if "pattern" in fields and not re.fullmatch(fields["pattern"], value):
        raise ValueError(f"expected {fields['pattern']} as {name}, found {value!r}")
    if isinstance(value, list | tuple):
        for item in value:
            check_bounds(item, fields.get("items", {}), name)


@dataclass(frozen=True, slots=True)
class _Member:
    """What JSON must hold for one field of a dataclass."""

    name: str
    json: str
    hint: Any
    is_required: bool
    is_moment: bool


@functools.cache
def _members(kind: type) -> tuple[_Member, ...]:
    """Of the dataclass ``kind``, once: to evaluate its hints takes longer than to read a status."""
    hints = typing.get_type_hints(kind)
    return tuple(
        _Member(
            name=member.name,
            json=json_name(member),
            hint=hints[member.name],
            is_required=member.default is dataclasses.MISSING,
            is_moment=member.name in MOMENTS,
        )
        for member in dataclasses.fields(kind)
    )


def _parse(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        return None if value is None else _parse(hint, value)
    if typing.get_origin(hint) is tuple:
        return tuple(_parse(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value)
    expected = str if typing.get_origin(hint) is Literal else hint
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError(f"expected {expected.__name__}, found {value!r}")
    return value


def json_name(member: dataclasses.Field[Any]) -> str:
    """What ``member`` is called in JSON."""
    return str(member.metadata.get("json") or to_camel_case(member.name))


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
        return to_json(self)

    @classmethod
    def from_json(cls, members: Mapping[str, Any] | None) -> Self:
        """What the API server holds. Unknown members are ignored. Raises ValueError when a member is not what it
        must be, so that nothing is claimed again by mistake."""
        members = members or {}
        try:
            status = typing.cast(Self, from_json(cls, members))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"status cannot be read: {type(error).__name__}: {error}") from error
        check_bounds(members, schema.resource_schema()["properties"]["status"])
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
