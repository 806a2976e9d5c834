"""When a build or a rollout may begin: slots with their queues, and the checks of a schedule.

Without slots an upgrade of the chart, which changes all datasets, would begin everywhere at once. In a cluster with
room for a few, each new rollout would get only a part of its servers.

The queues are read from statuses, also after a restart. Nothing is remembered only here. Datasets that serve nothing
yet come first, then those that have waited longest.

A dataset that has stalled for long gives up its slot if others wait or have stalled too. Only one at a time does so:
the one that got its slot last, because its room may be what the others lack. It is then queued behind those that wait,
for longer each time. No slot is granted while a dataset has long lacked room. A dataset that gave a slot up, or whose
build failed, has no precedence any more. Otherwise many broken datasets that serve nothing yet would take every slot.

Finding one dataset's place costs a search among those that wait, never a pass over all.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar, cast
from zoneinfo import ZoneInfo

from lookupdb.backoff import delay_after
from lookupdb.dataset.schedule import Schedule
from lookupdb.dataset.spec import DatasetSpec, Refresh
from lookupdb_operator import manifests
from lookupdb_operator.model import (
    Config,
    Manifest,
    Observed,
    ObservedDataset,
    Trouble,
    Turn,
    Turns,
    add_seconds,
    clamp_moment,
    clamp_to_now,
    format_moment,
    parse_duration,
    parse_moment,
    remaining_seconds,
    seconds_until,
)
from lookupdb_operator.plan import reasons
from lookupdb_operator.status import (
    BuildStatus,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    ScheduleStatus,
    Stall,
    TableStatus,
    Ticket,
    replace,
)

# The situation that all decisions share: what is observed, what is desired, and the time. Nothing is decided here.
#
# This module also keeps the digests of what a spec renders to. A dataset may have a thousand shards, and most passes
# find that nothing has changed. The digests are kept with the dataset (``ObservedDataset.renderings``) from one pass to
# the next, and dropped with its spec.


T = TypeVar("T")
Stamp = tuple[str, str, str]
"""Kind, name and digest."""
_MAX_RENDERINGS: Final = 64
"""The most digests kept of one dataset, more than its rollouts and generations need. Beyond that, all are dropped."""
_INGREDIENTS: Final = "ingredients"


@dataclass(frozen=True, slots=True)
class Situation:
    """One dataset as every decision of a pass sees it."""

    observed: Observed
    config: Config
    now: datetime
    desired: Desired

    @classmethod
    def from_observed(cls, observed: Observed, config: Config, now: datetime) -> Self:
        """The situation of a dataset whose spec can be used."""
        dataset = observed.dataset
        assert dataset.parsed is not None, "nothing is made from an unusable spec"
        return cls(observed, config, now, Desired.from_spec(dataset, dataset.parsed, config))

    @property
    def dataset(self) -> ObservedDataset:
        """The dataset as observed."""
        return self.observed.dataset

    @property
    def shares_store(self) -> bool:
        """Return whether its generations are in the store of the release."""
        return self.observed.dataset.own_store is None

    def render_once(self, name: Hashable, render: Callable[[], T]) -> T:
        """Return what ``render`` returned for ``name`` the first time, from the same spec and settings."""
        return _render_once(self.observed.dataset, self.config, name, render)

    def template_for(self, generation: GenerationStatus) -> str:
        """Digest of everything from which a rollout of ``generation`` would now be made."""
        return self.render_once(
            ("template digest", generation),
            lambda: manifests.template_digest(self.observed.dataset, generation, self.config),
        )


@dataclass(frozen=True, slots=True)
class Desired:
    """The user's wishes, as far as decisions depend on them."""

    content_hash: str
    """``DatasetSpec.content_hash()``, which identifies the shard files."""
    refresh: str
    """The refresh annotation; empty for none."""
    spec: DatasetSpec
    """The part of the spec for builder, server and router."""
    build_digest: str
    """Digest of everything from which a builder's Job would now be made."""
    replicas: int
    is_suspended: bool
    """``spec.suspend``: only the active generation is desired."""
    pinned_generation: str
    """``spec.generation``: the one generation to serve; empty for none."""
    adopt: str
    """``spec.adopt``: the earlier dataset whose data is adopted, as ``uid`` or ``uid/gN``; empty for none."""
    strategy: str
    """``Atomic`` or ``PerShard``."""
    max_surge_shards: int
    """Number of shards whose servers are created at a time, with ``PerShard``."""
    promotion: str
    """``Auto`` or ``Manual``."""
    promote: str
    """The promote annotation: the generation that may take effect; empty for none."""
    reject: str
    """The reject annotation: the generation that is not to be served; empty for none."""
    drain_seconds: float
    """Time for which unreferenced servers stay: the drain time and a lookup's deadline."""
    router_drain_seconds: float
    """Seconds that servers stay for lookups that come in through a router that is being stopped."""
    keep_previous_seconds: float
    """Time for which the previous generation's servers stay after they have drained."""
    progress_deadline_seconds: float
    """Time in which the servers of a rollout should get ready; then the time in which routers should take up its
    table."""

    @classmethod
    def from_spec(cls, dataset: ObservedDataset, spec: DatasetSpec, config: Config) -> Self:
        """Return what ``dataset``, whose usable spec is ``spec``, asks for."""
        deadline, table = spec.router.deadline_milliseconds / 1000, dataset.status.table
        is_suspended = dataset.spec["suspend"]
        return cls(
            content_hash=_render_once(dataset, config, "content hash", spec.content_hash),
            refresh=dataset.refresh,
            spec=spec,
            build_digest=_render_once(dataset, config, "build digest", lambda: manifests.build_digest(dataset, config)),
            replicas=table.replicas if is_suspended and table is not None else spec.replicas,
            is_suspended=is_suspended,
            pinned_generation=dataset.spec.get("generation", ""),
            adopt=manifests.adopted_address(dataset),
            strategy=dataset.spec["rollout"]["strategy"],
            max_surge_shards=dataset.spec["rollout"]["maxSurgeShards"],
            promotion=dataset.spec["rollout"]["promotion"],
            promote=dataset.promote,
            reject=dataset.reject,
            drain_seconds=dataset.spec["rollout"]["drainSeconds"] + deadline,
            keep_previous_seconds=parse_duration(dataset.spec["rollout"]["keepPrevious"]),
            progress_deadline_seconds=dataset.spec["rollout"]["progressDeadlineSeconds"],
            router_drain_seconds=spec.router.drain_seconds + deadline,
        )


def render_table(
    situation: Situation, table: TableStatus, generations: Mapping[str, GenerationStatus]
) -> tuple[Stamp, str]:
    """Return the stamp of what ``manifests.render_routing_table`` renders, and a digest of its content; the manifest
    is not kept."""

    def render() -> tuple[Stamp, str]:
        manifest = manifests.render_routing_table(situation.dataset, table, generations)
        (stamp,) = read_stamps((manifest,))
        return stamp, manifests.content_mark(manifest)

    return situation.render_once(("routing table", table, tuple(generations.values())), render)


def read_stamps(rendered: Iterable[Manifest]) -> frozenset[Stamp]:
    """The stamps of ``rendered``."""
    return frozenset(
        (manifest["kind"], manifest["metadata"]["name"], manifests.read_digest(manifest)) for manifest in rendered
    )


def _render_once(dataset: ObservedDataset, config: Config, name: Hashable, render: Callable[[], T]) -> T:
    """Return what ``render`` returned for ``name`` the first time. Specs are compared by identity: comparing two takes
    longer than rendering."""
    renderings: dict[Any, Any] = dataset.renderings
    # Everything that rendering uses, without the dataset's status, which changes all the time.
    sources = dataset.spec, dataset.parsed, config
    identity = dataset.namespace, dataset.name, dataset.uid
    *sources_before, identity_before = renderings.get(_INGREDIENTS) or (None, None, None, None)
    is_same = identity == identity_before and all(map(operator.is_, sources, sources_before))
    if not is_same or len(renderings) > _MAX_RENDERINGS:
        renderings.clear()
        renderings[_INGREDIENTS] = *sources, identity
    if name not in renderings:
        renderings[name] = render()
    return cast(T, renderings[name])


# One dataset's slot. A dataset has it while its status holds a build, or a rollout with servers that no routing table
# references. It waits while its ticket has a time (``Ticket.since``). A slot that makes no progress has a ``Stall``,
# and may be given up: its ticket then says when the next one may come.
#
# ``TurnQueues`` knows all datasets and grants the slots.


PATIENCE: Final = 180.0
"""Seconds that a stall may last before its slot may be given up. A cluster that adds nodes has added one by then."""
STORE_PATIENCE: Final = 600.0
"""The same while the store does not answer, or refuses the credentials. Usually other datasets could not use the slot
either, but the network of one namespace may be at fault."""
YIELD_EVERY: Final = 30.0
"""Seconds between two datasets that give up their slots, so that other pods can use the first one's room."""
FIRST_BACKOFF: Final = 60.0
LONGEST_BACKOFF: Final = 1800.0
_MAX_MESSAGE_CHARACTERS: Final = 1000
_EXACT_PLACES: Final = 10
_COARSE_PLACES: Final = (500, 200, 100, 50, 20, 10)
"""In a long queue, a dataset's place changes whenever a slot is freed. The message gives it coarsely, so that a queue
of a thousand does not cause a thousand status writes each time."""


def may_take_turn(turn: Turn, ticket: Ticket | None, now: datetime) -> bool:
    """Return whether a slot is granted, and was not given up in this very pass."""
    return turn.is_granted and (ticket is None or ticket.since <= format_moment(now))


def wait_for_turn(ticket: Ticket | None, digest: str, now: datetime) -> Ticket:
    """The ticket of a dataset that is queued to begin with ``digest``. It keeps its place, but not the backoff of
    another digest."""
    if ticket is None or (ticket.given_up and ticket.digest != digest):
        return Ticket(since=format_moment(now))
    return ticket if ticket.since else replace(ticket, since=format_moment(now))


def take_turn(ticket: Ticket | None) -> Ticket | None:
    """Return the record of a dataset that has its slot: the number of successive slots that it gave up."""
    return replace(ticket, since="") if ticket is not None and ticket.given_up else None


def give_turn_up(
    ticket: Ticket | None, trouble: Trouble, digest: str, now: datetime, *, shares_store: bool = True
) -> Ticket:
    """The ticket of a dataset that gives up its slot for ``digest`` because of ``trouble``. The wait does not grow
    while the shared store is down, or every dataset would still wait when it answers again."""
    before = ticket.given_up if ticket is not None and ticket.digest == digest else 0
    count = max(1, before) if shares_store and trouble.reason in reasons.SHARED_REASONS else before + 1
    return Ticket(
        since=add_seconds(now, backoff_seconds(count)),
        given_up=count,
        reason=trouble.reason,
        message=reasons.shorten(trouble.message, _MAX_MESSAGE_CHARACTERS),
        digest=digest,
    )


def backoff_seconds(given_up: int) -> float:
    """Seconds to wait for the next slot after ``given_up`` slots in a row were given up."""
    return delay_after(given_up, FIRST_BACKOFF, LONGEST_BACKOFF)


def note_stall(
    stall: Stall | None, trouble: Trouble | None, now: datetime, *, shares_store: bool = True
) -> Stall | None:
    """The stall because of ``trouble``, dated when progress first stopped. Trouble with the dataset's own store is
    noted as a failed fetch: other datasets could use the slot."""
    if trouble is None:
        return None
    is_own = not shares_store and trouble.reason in reasons.SHARED_REASONS
    reason = reasons.FETCH_FAILED if is_own else trouble.reason
    return Stall(reason, stall.since if stall is not None else format_moment(now))


def patience_seconds(stall: Stall) -> float:
    """Seconds after which a slot with ``stall`` may have to be given up."""
    return STORE_PATIENCE if stall.reason in reasons.SHARED_REASONS else PATIENCE


def is_long_stall(stall: Stall, now: datetime) -> bool:
    """Return whether a slot with ``stall`` may have to be given up."""
    return seconds_until(stall.since, patience_seconds(stall), now) == 0


def find_candidate(status: DatasetStatus) -> RolloutStatus | None:
    """The rollout that has a slot: its servers start, and no routing table references them."""
    return next((rollout for rollout in reversed(status.rollouts) if rollout.is_starting), None)


def next_turn_in(status: DatasetStatus, now: datetime) -> float | None:
    """Seconds until a backoff ends, or a slot may have to be given up. A granted slot wakes the dataset without
    this."""
    ends = (ticket.since for ticket in (status.build_ticket, status.rollout_ticket) if ticket and ticket.given_up)
    waits = [seconds_until(since, 0, now) for since in ends if since]
    holders = (status.build, find_candidate(status))
    stalls = [holder.stall for holder in holders if holder is not None and holder.stall is not None]
    waits += [seconds_until(stall.since, patience_seconds(stall), now) or YIELD_EVERY for stall in stalls]
    return reasons.find_earliest(waits)


def clamp_ticket(ticket: Ticket | None, now: datetime) -> Ticket | None:
    """``ticket`` with its time capped: it is too far ahead if the clock was set back."""
    if ticket is None or not ticket.since:
        return ticket
    ahead = backoff_seconds(ticket.given_up) if ticket.given_up else 0.0
    return replace(ticket, since=clamp_moment(ticket.since, now + timedelta(seconds=ahead)))


def is_waiting(ticket: Ticket | None) -> bool:
    """Return whether ``ticket`` waits for a slot, or for the end of its backoff."""
    return ticket is not None and bool(ticket.since)


def describe_wait(ticket: Ticket | None, turn: Turn) -> str:
    """The end of a sentence about a queued build or rollout: since when it waits, and its place in the queue."""
    assert ticket is not None, "a queued dataset has a ticket"
    since = ticket.since
    waits = f"waits for a slot, until {since} at least" if ticket.given_up else f"has waited for a slot since {since}"
    coarse = next((step for step in _COARSE_PLACES if turn.ahead > step), 0)
    ahead = str(turn.ahead) if turn.ahead <= _EXACT_PLACES else f"more than {coarse}"
    return f" {waits}, {ahead} before it."


def diagnose_ticket(ticket: Ticket | None) -> Trouble | None:
    """Why a slot was given up, until the next one is granted."""
    if ticket is None or not ticket.since or not ticket.given_up:
        return None
    return Trouble(ticket.reason, f"It gave its slot up to others because it made no progress: {ticket.message}")


Key = tuple[str, str]
"""Namespace and name of a dataset."""
DEFAULT_LIMIT: Final = 4
"""Number of build slots, and of rollout slots."""
POSTPONEMENT_SECONDS: Final = 60.0
"""Seconds for which other datasets go first after a dataset got a slot but its status could not be written."""


class TurnQueues:
    """The slots of all datasets. Each status is noted when it is seen, and when it is about to be written."""

    def __init__(self, *, builds: int, rollouts: int) -> None:
        self._builds = _TurnQueue(builds)
        self._rollouts = _TurnQueue(rollouts)

    def note(self, key: Key, status: DatasetStatus, now: datetime) -> None:
        """Note the slots that ``key`` has and waits for, by its status."""
        self._builds.note(key, status.build, status.build_ticket, _must_build_soon(status), now)
        is_urgent = _serves_nothing_yet(status, status.rollout_ticket)
        self._rollouts.note(key, find_candidate(status), status.rollout_ticket, is_urgent, now)

    def forget(self, key: Key) -> None:
        """Forget ``key``, which is gone, or not ours to act on."""
        self._builds.remove(key)
        self._rollouts.remove(key)

    def postpone(self, key: Key, now: datetime) -> None:
        """Let others come before ``key`` for a while: its status cannot be written."""
        until = add_seconds(now, POSTPONEMENT_SECONDS)
        self._builds.postpone(key, until)
        self._rollouts.postpone(key, until)

    def find_turns(self, key: Key, status: DatasetStatus, now: datetime) -> Turns:
        """Return whether ``key`` has its slots now, and how many datasets are before it. Call ``note`` first."""
        return Turns(
            build=self._builds.find_turn(key, _must_build_soon(status), now),
            rollout=self._rollouts.find_turn(key, _serves_nothing_yet(status, status.rollout_ticket), now),
        )

    def list_granted(self, now: datetime) -> frozenset[Key]:
        """The datasets that are granted a slot and have not taken it yet."""
        return frozenset((*self._builds.list_granted(now), *self._rollouts.list_granted(now)))


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """The place of a queued dataset; places sort in the order in which slots are granted."""

    since: str
    key: Key


@dataclass(frozen=True, slots=True)
class _ActiveTurn:
    """The slot of a dataset that builds or rolls out now."""

    since: str
    stall: Stall | None


class _TurnQueue:
    """Slots of one kind."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: dict[Key, _ActiveTurn] = {}
        self._waiting: dict[bool, list[_Place]] = {True: [], False: []}
        """Sorted places: True for datasets that serve nothing yet."""
        self._places: dict[Key, tuple[bool, _Place]] = {}
        self._postponed: dict[Key, str] = {}
        self._yielded_at = ""

    def note(
        self,
        key: Key,
        holder: BuildStatus | RolloutStatus | None,
        ticket: Ticket | None,
        is_urgent: bool,
        now: datetime,
    ) -> None:
        """Note what the status of ``key`` says."""
        before = self._turns.pop(key, None)
        self._leave(key)
        # The clock may have been set back: do not wait until it has caught up.
        self._yielded_at = clamp_to_now(self._yielded_at, now)
        if key in self._postponed:
            self._postponed[key] = clamp_moment(self._postponed[key], now + timedelta(seconds=POSTPONEMENT_SECONDS))
        if holder is not None:
            self._turns[key] = _ActiveTurn(holder.started_at, holder.stall)
            self._postponed.pop(key, None)
        elif ticket is not None and ticket.since:
            self._enter(key, ticket.since, is_urgent)
            if before is not None and ticket.given_up:
                self._yielded_at = format_moment(now)

    def remove(self, key: Key) -> None:
        """Forget ``key``."""
        self._turns.pop(key, None)
        self._postponed.pop(key, None)
        self._leave(key)

    def postpone(self, key: Key, until: str) -> None:
        """Let others come before ``key`` until ``until``; meanwhile, its slot does not count."""
        place = self._places.get(key)
        if key in self._turns:
            self._postponed[key] = until
        elif place is not None:
            self._postponed[key] = until
            self._leave(key)
            self._enter(key, place[1].since, place[0])

    def find_turn(self, key: Key, is_urgent: bool, now: datetime) -> Turn:
        """Return the turn of ``key``; that of an unknown key comes last."""
        turn = self._turns.get(key)
        if turn is not None:
            return Turn(must_yield=self._must_yield(key, turn, now))
        place = self._places.get(key)
        ahead = self._count_eligible(is_urgent, now)
        if place is not None:
            ahead = min(ahead, bisect.bisect_left(self._waiting[place[0]], place[1]))
        if not is_urgent:
            ahead += self._count_eligible(True, now)
        is_backing_off = place is not None and place[1].since > format_moment(now)
        return Turn(not is_backing_off and ahead < self._count_free_turns(now), ahead)

    def list_granted(self, now: datetime) -> Iterator[Key]:
        """The queued datasets that are granted a slot."""
        free = self._count_free_turns(now)
        for is_urgent in (True, False):
            ready = min(free, self._count_eligible(is_urgent, now))
            yield from (waiting.key for waiting in self._waiting[is_urgent][:ready])
            free -= ready

    def _count_free_turns(self, now: datetime) -> int:
        usable = self._usable_turns(now)
        lacks_room = any(
            turn.stall is not None and turn.stall.reason in reasons.PLACEMENT_REASONS and is_long_stall(turn.stall, now)
            for turn in usable.values()
        )
        return 0 if lacks_room else max(0, self._limit - len(usable))

    def _usable_turns(self, now: datetime) -> dict[Key, _ActiveTurn]:
        """Return the slots in use, except those that cannot be freed, because the dataset's status could not be written
        lately."""
        moment = format_moment(now)
        return {key: turn for key, turn in self._turns.items() if self._postponed.get(key, "") <= moment}

    def _count_eligible(self, is_urgent: bool, now: datetime) -> int:
        """Number of queued datasets that do not back off."""
        return bisect.bisect_right(self._waiting[is_urgent], format_moment(now), key=lambda waiting: waiting.since)

    def _must_yield(self, key: Key, turn: _ActiveTurn, now: datetime) -> bool:
        if turn.stall is None or not is_long_stall(turn.stall, now):
            return False
        if self._yielded_at and seconds_until(self._yielded_at, YIELD_EVERY, now) > 0:
            return False
        usable = self._usable_turns(now) | {key: turn}
        stalled = [
            (other.since, key_at) for key_at, other in usable.items() if other.stall and is_long_stall(other.stall, now)
        ]
        has_waiting = any(self._count_eligible(is_urgent, now) for is_urgent in (True, False))
        return (turn.since, key) == max(stalled) and (has_waiting or len(stalled) > 1)

    def _enter(self, key: Key, since: str, is_urgent: bool) -> None:
        waiting = _Place(max(since, self._postponed.get(key, "")), key)
        bisect.insort(self._waiting[is_urgent], waiting)
        self._places[key] = is_urgent, waiting

    def _leave(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            waiting = self._waiting[place[0]]
            del waiting[bisect.bisect_left(waiting, place[1])]


def _must_build_soon(status: DatasetStatus) -> bool:
    return status.failure is None and _serves_nothing_yet(status, status.build_ticket)


def _serves_nothing_yet(status: DatasetStatus, ticket: Ticket | None) -> bool:
    """Return whether the dataset serves nothing yet and gave no slot up: then it comes first."""
    return not status.generation and (ticket is None or not ticket.given_up)


# Checks: a builder checks the source when the schedule of ``spec.refresh`` is due. ``generations.is_build_needed``
# counts a due check like a refresh annotation that is not answered.
#
# A slot is a time of the schedule, and its check is due a little later (``due_moment``): each dataset has its own
# offset, so that five hundred datasets at two o'clock do not begin together.
#
#     event                                    effect
#     the next check is due                    the check of the newest slot is requested; earlier slots, missed while
#                                              no operator ran, are skipped
#     it is late by more than                  it is skipped, and the status and an event say so
#     startingDeadlineSeconds
#     a check is being made                    the newer one is made after it
#     a check waits to be made                 newer slots are not noted, and nothing is written; the newest one
#                                              replaces it when its build begins
#     the schedule or its zone changes         it starts again from now; a requested check stays
#     it is suspended or removed               no more checks; a build under way continues
#     the clock was set forward                as when no operator ran
#     the clock was set back                   a slot that has passed does not pass again; if more than one has, the
#                                              schedule starts again, so that nothing waits longer than an interval


def advance_schedule(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Return ``status`` with the requested check, if one is due, and with the time of the next one."""
    refresh = situation.desired.spec.refresh
    if refresh.schedule is None or refresh.suspend:
        schedule, build = status.schedule, status.build
        if schedule is not None:  # the check that is being made remains
            schedule = replace(schedule, due=build.slot) if build is not None and build.slot else None
        return replace(status, next_check="", schedule=schedule)
    timetable = Timetable.from_refresh(refresh, situation.dataset.uid)
    schedule = status.schedule
    if schedule is None or not status.next_check or schedule.expression != timetable.text:
        return _with_fresh_schedule(status, timetable, situation.now)
    passed = parse_moment(schedule.slot)
    if remaining_seconds(status.next_check, situation.now) > 0:
        if passed <= situation.now + timedelta(seconds=1) or passed <= timetable.next_slot(situation.now):
            return status
        return _with_fresh_schedule(status, timetable, situation.now)  # the clock was set back by too much
    if is_check_waiting(status):
        return status
    slot = timetable.newest_due_slot(passed, situation.now)
    lateness = (situation.now - timetable.due_moment(slot)).total_seconds()
    deadline = refresh.starting_deadline_seconds
    name = format_moment(slot)
    if deadline is not None and lateness > deadline:
        schedule = replace(schedule, slot=name, skipped=name)
    else:
        schedule = replace(schedule, slot=name, due=name)
    return replace(status, schedule=schedule, next_check=timetable.next_check(slot))


def is_check_waiting(status: DatasetStatus) -> bool:
    """Return whether a check is due and no build has begun for it, for example because it is queued."""
    schedule, build = status.schedule, status.build
    return schedule is not None and bool(schedule.due) and (build is None or build.slot != schedule.due)


def take_newest_slot(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """``status`` with the newest due slot in place of the one that waited: the build that is about to begin answers
    both. The newest one is never skipped, however late."""
    refresh, schedule = situation.desired.spec.refresh, status.schedule
    if schedule is None or not schedule.due or not status.next_check:
        return status
    timetable = Timetable.from_refresh(refresh, situation.dataset.uid)
    if schedule.expression != timetable.text or remaining_seconds(status.next_check, situation.now) > 0:
        return status
    slot = timetable.newest_due_slot(parse_moment(schedule.slot), situation.now)
    name = format_moment(slot)
    return replace(status, schedule=replace(schedule, slot=name, due=name), next_check=timetable.next_check(slot))


def _with_fresh_schedule(status: DatasetStatus, timetable: Timetable, now: datetime) -> DatasetStatus:
    """``status`` with a schedule that begins now. If the clock was set back, it begins after the slot that passes
    again."""
    before = status.schedule
    begin = now
    if before is not None:
        passed = parse_moment(before.slot)
        begin = passed if now < passed <= timetable.next_slot(now) else now
    schedule = ScheduleStatus(
        expression=timetable.text,
        slot=format_moment(begin),
        due=before.due if before is not None else "",
        skipped=before.skipped if before is not None else "",
    )
    return replace(status, schedule=schedule, next_check=timetable.next_check(begin))


def answer_requests(status: DatasetStatus, refresh: str, slot: str, read_by: int) -> DatasetStatus:
    """``status`` after build number ``read_by`` has read the source for ``refresh`` and ``slot``; either may be
    empty. A newer check stays requested."""
    schedule = status.schedule
    if schedule is not None and slot and schedule.due == slot:
        status = replace(status, schedule=replace(schedule, due=""))
    if refresh in ("", status.refreshed) and not slot:
        return status
    return replace(status, refreshed=refresh or status.refreshed, refreshed_by=read_by)


def next_check_in(status: DatasetStatus, now: datetime) -> float | None:
    """Seconds until the next check is due; None without a schedule, and while a due check waits."""
    return remaining_seconds(status.next_check, now) if status.next_check and not is_check_waiting(status) else None


@dataclass(frozen=True, slots=True)
class Timetable:
    """The slots of a dataset's schedule, and when their checks are due."""

    text: str
    schedule: Schedule
    uid: str

    @classmethod
    def from_refresh(cls, refresh: Refresh, uid: str) -> Timetable:
        """The timetable of the dataset ``uid``, which has a schedule."""
        assert refresh.schedule is not None, "checks are asked for by a schedule alone"
        text = f"{refresh.schedule} {refresh.time_zone}"
        return cls(text, Schedule(refresh.schedule, ZoneInfo(refresh.time_zone)), uid)

    def next_slot(self, after: datetime) -> datetime:
        """The first slot after ``after``."""
        slot = self.schedule.next_slot(after)
        assert slot is not None, "a schedule that does not fire in fifty years is refused"
        return slot

    def due_moment(self, slot: datetime) -> datetime:
        """When the check of ``slot`` is due, in whole seconds."""
        return self.schedule.due_moment(slot, self.uid)

    def next_check(self, after: datetime) -> str:
        """The time at which the check of the first slot after ``after`` is due, formatted for the status."""
        return format_moment(self.due_moment(self.next_slot(after)))

    def newest_due_slot(self, after: datetime, now: datetime) -> datetime:
        """The newest slot whose check is due, or the first one after ``after`` if that is later."""
        slot = self.schedule.last_slot(now)
        if slot is not None and self.due_moment(slot) > now:
            slot = self.schedule.last_slot(slot - timedelta(seconds=1))
        first = self.next_slot(after)
        return first if slot is None else max(first, slot)
