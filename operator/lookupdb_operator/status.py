"""The status of a dataset, and its JSON."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from lookupdb.dataset import schema
from lookupdb.dataset.schema import to_camel_case
from lookupdb.manifest import GENERATION
from lookupdb_operator import names

# ``replace`` for decisions that mostly find that nothing has changed.


R = TypeVar("R")

if TYPE_CHECKING:
    from dataclasses import replace as replace  # so that members and their types are checked at each call
else:

    def replace(record: R, /, **members: Any) -> R:
        """``dataclasses.replace``, but return ``record`` itself if every member is unchanged.

        Only for speed: no code depends on which of two equal records it gets. A pass of ``plan()`` calls this some
        forty times, and most calls change nothing. With ``dataclasses.replace`` a pass takes 1.8 times as long.
        """
        for name, value in members.items():
            before = getattr(record, name)
            if before is not value and before != value:
                return dataclasses.replace(record, **members)
        return record


# Conditions of a LookupDataset, for people and `kubectl wait`.


READY: Final = "Ready"
BUILT: Final = "Built"
ROLLED_OUT: Final = "RolledOut"
DEGRADED: Final = "Degraded"
CONDITIONS: Final = (READY, BUILT, ROLLED_OUT, DEGRADED)
"""Always present, in this order."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One of CONDITIONS, in the form of KEP-1623."""

    type: str
    status: Truth
    reason: str
    """CamelCase; one of ``plan.reasons``."""
    message: str
    """A sentence for people, with advice if there is any."""
    observed_generation: int = 0
    last_transition_time: str = ""
    """When ``status`` last changed."""


# Generations in the status: in the store, rejected, rolled back, lost.


@dataclass(frozen=True, slots=True)
class BuiltGeneration:
    """A complete generation in the store, as its builder reported it, rejected or not."""

    generation: str
    content: str
    """``DatasetSpec.content_hash()`` of its spec."""
    fingerprint: str
    """Fingerprint of the source as it was read."""
    records: int
    bytes: int
    """Size of all shard files."""
    largest_shard_bytes: int
    shards: int
    normalize: tuple[str, ...]
    value_format: Literal["json", "raw"]
    built_at: str
    refresh: str = ""
    """The last refresh annotation for which it was built, or found up to date."""
    verified_by: int = 0
    """The number of the last build that found the source unchanged; 0 if none has."""
    success_file: str = ""
    """The identity of the success file before the source was last read; empty if the spec names none."""
    refreshed_at: str = ""
    """Start of the last build that read its source or found it unchanged."""
    premature_promotion: str = ""
    """The promote annotation if it named this generation before it was built, and so has no effect; else empty."""
    adopted_from: str = ""
    """``uid/gN`` of the earlier dataset that it was copied from; empty if it was built."""
    key_columns: tuple[str, ...] = ()
    """The columns of its keys. Empty if they are the names of an object's members."""
    separator: str = ""
    """What joins several columns."""
    source_modified_at: str = ""
    """When the newest file of its source was modified; empty if unknown."""


@dataclass(frozen=True, slots=True)
class GenerationStatus(BuiltGeneration):
    """A generation that may be rolled out."""

    overridden: str = ""
    """The failed gate that was overridden; empty if all passed."""
    served_by: int = 0
    """Version of the newest routing table with which every router served it; 0: it never took effect."""


@dataclass(frozen=True, slots=True)
class RefusedGeneration(BuiltGeneration):
    """A generation that a gate rejected."""

    message: str = ""
    """The gate that failed."""
    slot: str = ""
    """The schedule slot it was built for; empty if none."""
    premature_override: str = ""
    """The override annotation if it named this generation before it was rejected, and so has no effect; else empty."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A generation that was rolled back or rejected: it is not rolled out again until source or spec changes."""

    generation: str
    fingerprint: str
    """Fingerprint of its source."""
    content: str
    """``DatasetSpec.content_hash()`` of its spec."""


@dataclass(frozen=True, slots=True)
class LostGeneration:
    """The last generation that servers could not fetch as published."""

    generation: str
    reason: str
    """One of ``plan.reasons.DAMAGE_REASONS``."""
    message: str
    count: int
    """Number of generations lost in a row: each soon after its build, with no other build requested in between."""
    retry_at: str = ""
    """When it is built again. Empty: the store has it again."""


# The last routing table, and its announcement in the store.


@dataclass(frozen=True, slots=True)
class TableCandidate:
    """A generation in a routing table beside the active one, for clients that name it."""

    rollout: str
    generation: str
    replicas: int
    workers: int
    password_key: str = ""
    """Fingerprint of its rollout's password key."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Shards that are served by a rollout other than the table's."""

    rollout: str
    generation: str
    workers: int
    shard_ranges: str
    password_key: str = ""
    """Fingerprint of its rollout's password key."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The last routing table that was written."""

    version: int
    rollout: str
    generation: str
    replicas: int
    """Endpoints of each shard: pods 0 to replicas-1."""
    workers: int
    written_at: str
    """When it was written, or when a router was found that had started with an older table."""
    confirmed_at: str = ""
    """When every router had confirmed it, which starts the drain time. Empty: not yet."""
    candidate: TableCandidate | None = None
    parts: tuple[TablePart, ...] = ()
    """Shards that other rollouts serve while ``rollout`` replaces them one by one; by rollout number."""
    password_key: str = ""
    """Fingerprint of its rollout's password key."""

    @property
    def is_mixed(self) -> bool:
        """Return whether it routes to shards of several generations."""
        return any(part.generation != self.generation for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnnouncedStatus:
    """The last announcement of the active generation that the store is known to have."""

    generation: str
    version: int
    """Version of the routing table that every router had confirmed."""


# Queues for build and rollout slots, and what blocks a dataset that has one.


@dataclass(frozen=True, slots=True)
class Stall:
    """The obstacle of a build or rollout that has its slot."""

    reason: str
    """One of ``plan.reasons``."""
    since: str
    """The time since which it is blocked, even if the cause has changed."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The dataset's place in the queue for a build or rollout slot. None if it requests no slot."""

    since: str = ""
    """Waiting since; in the future while it backs off. Empty: it has its slot."""
    given_up: int = 0
    """Number of slots in a row that it gave up, because it was stuck and others waited."""
    reason: str = ""
    """Why it gave up the last slot."""
    message: str = ""
    digest: str = ""
    """Digest of what it gave up; a different request does not back off."""


# The schedule, the build under way, and the results of the last builds.


BuildOutcome = Literal["built", "adopted", "unchanged", "waiting", "gateClosed", "failed", "overridden"]


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """The dataset's position in its schedule."""

    expression: str
    """The schedule and its time zone, to which ``nextCheck`` belongs."""
    slot: str
    """The last slot that passed; at first the time from which slots count."""
    due: str = ""
    """The slot whose check is due; empty once it was made."""
    skipped: str = ""
    """The last slot that was missed by more than startingDeadlineSeconds."""


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """The running build. The number of its generation is claimed."""

    generation: str
    content: str
    refresh: str
    """The refresh annotation that it answers; empty if there was none."""
    digest: str
    """Digest of everything that its Job is made from. After a change, the build continues unless it is stuck."""
    started_at: str
    slot: str = ""
    """The schedule slot that it checks; empty if none."""
    unless_fingerprint: str = ""
    """Source fingerprint of the generation to compare with: if the source still has it, that generation is verified.
    Empty: none."""
    unless_success_file: str = ""
    active: str = ""
    """The generation that gates compare with; empty if none."""
    stall: Stall | None = None
    active_records: int = 0
    """Number of records of the generation that gates compare with."""
    unless_refused: str = ""
    """The generation that a gate rejected; an equal one is not built again. Empty if none."""
    adopt: str = ""
    """``uid`` or ``uid/gN`` of an earlier dataset's generation to adopt instead of building; empty if none."""
    protect: tuple[str, ...] = ()
    """With the dataset's own store: generations that the builder must keep."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The result of the last build attempt if it must be retried: it failed, or the success file was missing."""

    reason: str
    message: str
    generation: str
    content: str
    """Content hash of the spec that failed. A changed spec is tried at once."""
    refresh: str
    count: int
    """Failures in a row, for the same content and refresh."""
    retry_at: str
    digest: str = ""
    """Digest of everything that its Job was made from. If any of that changes, the next attempt is made at once."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """The result of a build, or the override of a failed gate, for people. Of several equal results in a row, the last
    one is kept."""

    generation: str
    """The number that it claimed."""
    outcome: BuildOutcome
    reason: str
    """One of ``plan.reasons`` if it failed; otherwise the builder's word, such as Built."""
    started_at: str
    finished_at: str
    """When the operator saw its end."""
    records: int = 0
    seconds: int = 0
    message: str = ""
    count: int = 1
    """Number of equal results in a row."""


# Shards as text, in ranges: ``0-3,8`` means five shards. So a thousand shards do not need a thousand members.


ALL: Final = ""
"""The text for all shards, whatever their number."""
MAX_SHARDS: Final = 1024
"""The largest number of shards of a dataset."""


@functools.lru_cache(maxsize=4096)
def parse_shards(text: str) -> frozenset[int]:
    """Return the shards in ``text``; none if it is empty. Raises ValueError if ``format_shards`` would write it
    differently."""
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
    """Return ``shards`` as text, in order; empty if there are none."""
    ordered, ranges, begin = sorted(shards), list[str](), 0
    for i, shard in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != shard + 1:
            ranges.append(f"{shard}" if begin == i else f"{ordered[begin]}-{shard}")
            begin = i + 1
    return ",".join(ranges)


def select_shards(text: str, count: int) -> tuple[int, ...]:
    """Return the shards in ``text``, or all ``count`` shards for ``ALL``, in order."""
    if text == ALL:
        return tuple(range(count))
    return tuple(shard for shard in sorted(parse_shards(text)) if shard < count)


def shorten_shards(shards: Iterable[int], count: int) -> str:
    """Return ``shards`` as text, or ``ALL`` if they are all of ``count``."""
    chosen = frozenset(shards)
    return ALL if len(chosen) == count else format_shards(chosen)


# Sets of shard servers, including the one that waits for promotion.


@dataclass(frozen=True, slots=True)
class PushStatus:
    """The last push of a rollout's images that was seen to end. The pause before the next push starts then."""

    job: str
    """The uid of the Job."""
    finished_at: str
    """When its end was seen, by the operator's clock."""
    count: int
    """Number of pushes in a row that failed for good, or after which servers still miss images."""


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """One set of shard servers that exists or is about to be created."""

    rollout: str
    generation: str
    template: str
    """Digest of the pod template and of everything else that cannot change within a rollout."""
    started_at: str
    referenced_replicas: int = field(default=0, metadata={"json": "named"})
    """The most servers per shard in any routing table that may still be in effect. That many servers stay. 0: no table
    references this rollout."""
    stall: Stall | None = None
    workers: int = 0
    """Workers of each server; 0: unknown."""
    kept_since: str = ""
    """When it had drained, if its servers are kept for a rollback; else empty."""
    offered_replicas: int = field(default=0, metadata={"json": "offered"})
    """Number of servers per shard in tables that only offer this rollout to clients that name its generation. At least
    1 while it waits for promotion."""
    shard_ranges: str = ALL
    """The shards for which it has servers; empty: all."""
    window: str = ""
    """The shards, as ranges, that no routing table has referenced since they were claimed; empty: none, or all of a
    candidate."""
    overtaken_by: str = ""
    """The generation that takes this rollout's place because a window was stuck. The rollout keeps the shards that it
    has, and goes no further. Empty: none.
    """
    password_key: str = ""
    """Fingerprint of the key that its servers' passwords are derived from; empty: no password."""
    push: PushStatus | None = None
    """None: no push was seen to end."""

    @property
    def is_candidate(self) -> bool:
        """Return whether no routing table has referenced it since it was claimed."""
        return not self.referenced_replicas and not self.offered_replicas and not self.kept_since

    @property
    def is_starting(self) -> bool:
        """Return whether servers are starting that no routing table references."""
        return self.is_candidate or bool(self.window)

    @property
    def minimum_replicas(self) -> int:
        """Servers per shard that must stay, because routers may send lookups to them."""
        return max(self.referenced_replicas, self.offered_replicas)


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """The rollout that waits for promotion; its servers were ready."""

    generation: str
    rollout: str
    since: str


# Status dataclasses to JSON and back: camelCase names, no empty members, checked types.


MOMENTS: Final = frozenset(
    {
        *("built_at", "confirmed_at", "finished_at", "refreshed_at", "retry_at", "source_modified_at", "started_at"),
        *("written_at", "store_written_at", "password_key_written_at", "last_checked", "last_refreshed", "next_check"),
        *("since", "kept_since", "slot", "due", "skipped"),
    }
)
"""Members that hold a time or nothing."""
_SHARDS: Final = frozenset({"shard_ranges", "window"})
"""Members that hold shard ranges or nothing."""
_YEARS: Final = range(1970, 9000)
"""Valid years of a time, so that adding any duration of a spec stays valid."""
_KEPT: Final = frozenset(
    {"observed_generation", "conditions", "count", "version", "replicas", "records", "bytes", "seconds"}
)
"""Members written even if zero or empty."""

_BOUNDS: Final = {int: ("minimum", "maximum"), str: ("minLength", "maxLength")}
"""By type: the CRD's limits of value or length."""


def to_json(value: Any) -> Any:
    """Return a member of a status as JSON; a dataclass without its optional empty members."""
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    members: dict[str, Any] = {}
    for member in dataclasses.fields(value):
        content = getattr(value, member.name)
        is_left_out = content in (None, "", (), 0) and member.name not in _KEPT
        if not is_left_out or member.default is dataclasses.MISSING:
            members[json_name(member)] = to_json(content)
    return members


def from_json(kind: type, members: Mapping[str, Any]) -> Any:
    """Return the dataclass ``kind`` made of ``members``. Raises KeyError, TypeError, AttributeError or ValueError if a
    member is invalid."""
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
    """Return whether ``text`` is an ISO 8601 time in the valid years."""
    try:
        return datetime.fromisoformat(text).year in _YEARS
    except ValueError:
        return False


def check_bounds(value: Any, fields: Mapping[str, Any], name: str = "status") -> None:
    """Check ``value``, whose types are right, against ``fields``, its part of the CRD. Raises ValueError if it is out
    of bounds. An API server checks only what is written, not what it stored before."""
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
    """The JSON form of one field of a dataclass."""

    name: str
    json: str
    hint: Any
    is_required: bool
    is_moment: bool


@functools.cache
def _members(kind: type) -> tuple[_Member, ...]:
    """Return the fields of the dataclass ``kind``, cached: evaluating type hints takes longer than reading a status."""
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
    """Return the JSON name of ``member``."""
    return str(member.metadata.get("json") or to_camel_case(member.name))


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """The dataset's ``.status``."""

    observed_generation: int = 0
    operator: str = ""
    """Identity of the operator that acts on this dataset."""
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    """A one-word summary for people (``plan.planner``)."""
    endpoint: str = ""
    generation: str = ""
    """The active generation, which routers serve. During a shard-by-shard rollout, the last one that they all
    served."""
    records: int = 0
    bytes: int = 0
    built_at: str = ""
    """When the active generation was built."""
    last_refreshed: str = ""
    """When the oldest served data were last known to match their source: their age counts from then."""
    shards: str = ""
    """For people: ``3/4`` shards of the active rollout have a ready server."""
    synced_nodes: str = ""
    """For people: ``3/4`` nodes of spec.sync have a generation."""
    replicas: int = 0
    """Servers of each shard, for the scale subresource."""
    selector: str = ""
    """Label selector of the active rollout's pods, for the scale subresource."""
    generations: tuple[GenerationStatus, ...] = ()
    """Generations in the store, oldest first: the newest ``keepGenerations``, and those in use."""
    refused: RefusedGeneration | None = None
    """The newest generation that a gate rejected, until a later build succeeds."""
    rolled_back: tuple[RolledBack, ...] = ()
    """Generations rolled back from, by number, oldest first; limited in number."""
    rejected: tuple[RolledBack, ...] = ()
    """Generations rejected before they took effect."""
    last_generation: int = 0
    """The highest number claimed, including failed builds."""
    last_rollout: int = 0
    last_table: int = 0
    """The highest version claimed for a routing table, even if ``table`` is lost."""
    refreshed: str = ""
    """The last refresh annotation that was answered."""
    refreshed_by: int = 0
    """The number of the build that last answered a refresh or a check; earlier ones read the source too early."""
    build_ticket: Ticket | None = None
    rollout_ticket: Ticket | None = None
    build: BuildStatus | None = None
    failure: BuildFailure | None = None
    lost: LostGeneration | None = None
    builds: tuple[BuildRecord, ...] = ()
    """The last builds that ended, newest last."""
    last_checked: str = ""
    """When a builder last checked the source."""
    next_check: str = ""
    """When the next scheduled check is due."""
    schedule: ScheduleStatus | None = None
    rollouts: tuple[RolloutStatus, ...] = ()
    """Rollouts that still exist, oldest first."""
    table: TableStatus | None = None
    candidate: CandidateStatus | None = None
    announced: AnnouncedStatus | None = None
    store_digest: str = ""
    """Digest of the store's address and credentials last written to the dataset's Secret."""
    store_written_at: str = ""
    """Time of that write."""
    password_key: str = ""
    """Fingerprint of the shard password key whose Secret was created last; empty: none."""
    password_key_written_at: str = ""
    """Time of that creation."""

    def to_json(self) -> dict[str, Any]:
        """Return camelCase JSON without empty members, except conditions and counters."""
        members: dict[str, Any] = to_json(self)
        return members

    @classmethod
    def from_json(cls, members: Mapping[str, Any] | None) -> Self:
        """Parse the status that the API server holds, ignoring unknown members. Raises ValueError if a member is
        invalid, so that nothing is claimed twice."""
        members = members or {}
        try:
            status = typing.cast(Self, from_json(cls, members))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"status cannot be read: {type(error).__name__}: {error}") from error
        check_bounds(members, schema.resource_schema()["properties"]["status"])
        return status

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of type ``kind``."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def find_generation(self, name: str) -> GenerationStatus | None:
        """Return the complete generation ``name``."""
        return next((generation for generation in self.generations if generation.generation == name), None)

    @property
    def has_nothing_of_its_own(self) -> bool:
        """Return whether the dataset never had a generation that could serve, as far as its status shows; otherwise
        adopting would go back to older data. The builder checks the store, too."""
        return not (self.generations or self.rollouts or self.generation or self.table or self.last_table)

    def protected_generations(self, pinned: str = "") -> frozenset[str]:
        """Return the generations that are served, fetched, written or referenced here, and the pinned one if it is
        older than the newest of these, because such generations may be removed."""
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
        """Return the rollout ``name``."""
        return next((rollout for rollout in self.rollouts if rollout.rollout == name), None)
