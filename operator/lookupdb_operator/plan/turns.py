"""Build slots and rollout slots, and the queues for them. Without them an upgrade of the chart, which changes all
datasets, would begin everywhere at once. Each candidate would be half placed, in a cluster that has room for a few.

The queues are read from statuses, after a restart too; nothing is remembered here alone. Datasets that serve nothing
yet come first, then those that have waited longest.

A dataset gives up a slot that has stalled for long if others wait, or stall, too. One dataset does so at a time, the
one that got its slot last: its room may be what the others lack. It is then queued behind those that wait, for longer
each time. No slot is granted while a dataset lacks room for long. A dataset that gave a slot up, or whose build failed,
has no precedence any more. Otherwise many broken datasets that serve nothing yet would take every slot.

Finding one dataset's place costs a search among those that wait, never a pass over all.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lookupdb.backoff import delay_after
from lookupdb_operator.model import Trouble, Turn, Turns
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus, DatasetStatus, RolloutStatus, Stall, Ticket

# One dataset's slot. A dataset has it while its status holds a build, or a rollout with servers that no routing table
# references. It waits while its ticket has a time (``Ticket.since``). A slot that makes no progress has a ``Stall``,
# and may be given up: its ticket then says when the next one may come.
#
# ``TurnQueues`` knows all datasets and grants the slots.


PATIENCE: Final = 180.0
"""Seconds that a stall may last before its turn may be given up. A cluster that adds nodes has added one by then."""
STORE_PATIENCE: Final = 600.0
"""The same while the store does not answer, or refuses the credentials. Usually other datasets could not use the
slot either, but the network of one namespace may be at fault."""
YIELD_EVERY: Final = 30.0
"""Seconds between two that give up: pods are placed meanwhile where the first one's were."""
FIRST_BACKOFF: Final = 60.0
LONGEST_BACKOFF: Final = 1800.0
_MAX_MESSAGE_CHARACTERS: Final = 1000
_EXACT_PLACES: Final = 10
_COARSE_PLACES: Final = (500, 200, 100, 50, 20, 10)
"""With many before it, a dataset's place changes whenever a turn ends: the message gives it coarsely, so that a queue
of a thousand does not write a thousand statuses each time."""


def may_take_turn(turn: Turn, ticket: Ticket | None, now: datetime) -> bool:
    """Whether a slot is granted, and was not given up in this very pass."""
    return turn.is_granted and (ticket is None or ticket.since <= clock.format_moment(now))


def wait_for_turn(ticket: Ticket | None, digest: str, now: datetime) -> Ticket:
    """The ticket of a dataset that is queued to begin with ``digest``. It keeps its place. If the last slot was
    given up for another digest, it does not back off."""
    if ticket is None or (ticket.given_up and ticket.digest != digest):
        return Ticket(since=clock.format_moment(now))
    return ticket if ticket.since else replace(ticket, since=clock.format_moment(now))


def take_turn(ticket: Ticket | None) -> Ticket | None:
    """The ticket of a dataset that has its slot: it remembers how many were given up in a row."""
    return replace(ticket, since="") if ticket is not None and ticket.given_up else None


def give_turn_up(
    ticket: Ticket | None, trouble: Trouble, digest: str, now: datetime, *, shares_store: bool = True
) -> Ticket:
    """The ticket of a dataset that gives up its slot for ``digest`` because of ``trouble``. If the shared store does
    not answer, the wait does not grow, or every dataset would still wait when it answers again. A store of the
    dataset's own makes it grow."""
    before = ticket.given_up if ticket is not None and ticket.digest == digest else 0
    count = max(1, before) if shares_store and trouble.reason in reasons.SHARED_REASONS else before + 1
    return Ticket(
        since=clock.add_seconds(now, backoff_seconds(count)),
        given_up=count,
        reason=trouble.reason,
        message=reasons.shorten(trouble.message, _MAX_MESSAGE_CHARACTERS),
        digest=digest,
    )


def backoff_seconds(given_up: int) -> float:
    """Seconds between a slot that was given up, the ``given_up``-th in a row, and the next one."""
    return delay_after(given_up, FIRST_BACKOFF, LONGEST_BACKOFF)


def note_stall(
    stall: Stall | None, trouble: Trouble | None, now: datetime, *, shares_store: bool = True
) -> Stall | None:
    """The stall because of ``trouble``, dated when progress first stopped; None without trouble. Trouble with the
    dataset's own store is noted as a failed fetch: other datasets, whose store answers, could use the slot."""
    if trouble is None:
        return None
    is_own = not shares_store and trouble.reason in reasons.SHARED_REASONS
    reason = reasons.FETCH_FAILED if is_own else trouble.reason
    return Stall(reason, stall.since if stall is not None else clock.format_moment(now))


def patience_seconds(stall: Stall) -> float:
    """Seconds after which a slot with ``stall`` may have to be given up."""
    return STORE_PATIENCE if stall.reason in reasons.SHARED_REASONS else PATIENCE


def is_long_stall(stall: Stall, now: datetime) -> bool:
    """Whether a slot with ``stall`` may have to be given up."""
    return clock.seconds_until(stall.since, patience_seconds(stall), now) == 0


def find_candidate(status: DatasetStatus) -> RolloutStatus | None:
    """The rollout that has a slot: its servers start, and no routing table references them."""
    return next((rollout for rollout in reversed(status.rollouts) if rollout.is_starting), None)


def next_turn_in(status: DatasetStatus, now: datetime) -> float | None:
    """Seconds until a backoff ends, or a slot may have to be given up; None for neither. A dataset that gets a slot
    is woken without this."""
    ends = (ticket.since for ticket in (status.build_ticket, status.rollout_ticket) if ticket and ticket.given_up)
    waits = [clock.seconds_until(since, 0, now) for since in ends if since]
    holders = (status.build, find_candidate(status))
    stalls = [holder.stall for holder in holders if holder is not None and holder.stall is not None]
    waits += [clock.seconds_until(stall.since, patience_seconds(stall), now) or YIELD_EVERY for stall in stalls]
    return min((wait for wait in waits if wait > 0), default=None)


def clamp_ticket(ticket: Ticket | None, now: datetime) -> Ticket | None:
    """``ticket`` without a time that lies further ahead than it can: the clock was set back."""
    if ticket is None or not ticket.since:
        return ticket
    ahead = backoff_seconds(ticket.given_up) if ticket.given_up else 0.0
    return replace(ticket, since=clock.clamp_moment(ticket.since, now + timedelta(seconds=ahead)))


def is_waiting(ticket: Ticket | None) -> bool:
    """Whether ``ticket`` waits for a slot, or for the end of its backoff."""
    return ticket is not None and bool(ticket.since)


def describe_wait(ticket: Ticket | None, turn: Turn) -> str:
    """The end of a sentence about a queued build or rollout: since when it waits, and the number before it."""
    assert ticket is not None, "who waits has a ticket"
    when = f"not before {ticket.since}" if ticket.given_up else f"since {ticket.since}"
    return f" waits for its turn {when}, {_describe_ahead(turn.ahead)} before it."


def _describe_ahead(count: int) -> str:
    if count <= _EXACT_PLACES:
        return str(count)
    return f"more than {next(step for step in _COARSE_PLACES if count > step)}"


def diagnose_ticket(ticket: Ticket | None) -> Trouble | None:
    """Why a slot was given up, until the next one is granted."""
    if ticket is None or not ticket.since or not ticket.given_up:
        return None
    return Trouble(ticket.reason, f"It gave its turn up to others, since it did not get on: {ticket.message}")


Key = tuple[str, str]
"""Namespace and name of a dataset."""
DEFAULT_LIMIT: Final = 4
"""Number of build slots, and of rollout slots."""
POSTPONEMENT_SECONDS: Final = 60.0
"""Seconds for which others come before a dataset that had a slot and whose status could not be written."""


class TurnQueues:
    """The slots of all datasets, as their statuses say: each status is noted when it is seen, and when it is about
    to be written."""

    def __init__(self, *, builds: int, rollouts: int) -> None:
        self._builds = _TurnQueue(builds)
        self._rollouts = _TurnQueue(rollouts)

    def note(self, key: Key, status: DatasetStatus, now: datetime) -> None:
        """Note what the status of ``key`` holds and waits for."""
        self._builds.note(key, status.build, status.build_ticket, _must_build_soon(status), now)
        self._rollouts.note(key, find_candidate(status), status.rollout_ticket, _must_roll_out_soon(status), now)

    def forget(self, key: Key) -> None:
        """Forget ``key``, which is gone, or not ours to act on."""
        self._builds.remove(key)
        self._rollouts.remove(key)

    def postpone(self, key: Key, now: datetime) -> None:
        """Let others come before ``key`` for a while: its status cannot be written."""
        until = clock.add_seconds(now, POSTPONEMENT_SECONDS)
        self._builds.postpone(key, until)
        self._rollouts.postpone(key, until)

    def find_turns(self, key: Key, status: DatasetStatus, now: datetime) -> Turns:
        """Return whether ``key``, whose status is noted, has a slot now, and how many are before it."""
        return Turns(
            build=self._builds.find_turn(key, _must_build_soon(status), now),
            rollout=self._rollouts.find_turn(key, _must_roll_out_soon(status), now),
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
        """Sorted: those of datasets that serve nothing, and the others."""
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
        self._clamp_moments(key, now)
        if holder is not None:
            self._turns[key] = _ActiveTurn(holder.started_at, holder.stall)
            self._postponed.pop(key, None)
        elif ticket is not None and ticket.since:
            self._enter(key, ticket.since, is_urgent)
            if before is not None and ticket.given_up:
                self._yielded_at = clock.format_moment(now)

    def remove(self, key: Key) -> None:
        """Forget ``key``."""
        self._turns.pop(key, None)
        self._postponed.pop(key, None)
        self._leave(key)

    def postpone(self, key: Key, until: str) -> None:
        """Let others come before ``key`` until then; a slot that it has does not count meanwhile."""
        place = self._places.get(key)
        if key in self._turns:
            self._postponed[key] = until
        elif place is not None:
            self._postponed[key] = until
            self._leave(key)
            self._enter(key, place[1].since, place[0])

    def find_turn(self, key: Key, is_urgent: bool, now: datetime) -> Turn:
        """Whether it is the turn of ``key``; one that is not known yet comes last."""
        turn = self._turns.get(key)
        if turn is not None:
            return Turn(must_yield=self._must_yield(key, turn, now))
        ahead, moment = self._count_ahead(key, is_urgent, now), clock.format_moment(now)
        place = self._places.get(key)
        is_backing_off = place is not None and place[1].since > moment
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
        """The turns without those of datasets that could not be written lately, which can neither end nor be given
        up."""
        moment = clock.format_moment(now)
        return {key: turn for key, turn in self._turns.items() if self._postponed.get(key, "") <= moment}

    def _count_ahead(self, key: Key, is_urgent: bool, now: datetime) -> int:
        place = self._places.get(key)
        eligible = self._count_eligible(is_urgent, now)
        before = eligible if place is None else min(eligible, bisect.bisect_left(self._waiting[place[0]], place[1]))
        return before if is_urgent else before + self._count_eligible(True, now)

    def _count_eligible(self, is_urgent: bool, now: datetime) -> int:
        """How many that wait do not back off."""
        return bisect.bisect_right(
            self._waiting[is_urgent], clock.format_moment(now), key=lambda waiting: waiting.since
        )

    def _must_yield(self, key: Key, turn: _ActiveTurn, now: datetime) -> bool:
        if turn.stall is None or not is_long_stall(turn.stall, now):
            return False
        if self._yielded_at and clock.seconds_until(self._yielded_at, YIELD_EVERY, now) > 0:
            return False
        usable = self._usable_turns(now) | {key: turn}
        stalled = [
            (other.since, key_at) for key_at, other in usable.items() if other.stall and is_long_stall(other.stall, now)
        ]
        has_waiting = any(self._count_eligible(is_urgent, now) for is_urgent in (True, False))
        return (turn.since, key) == max(stalled) and (has_waiting or len(stalled) > 1)

    def _clamp_moments(self, key: Key, now: datetime) -> None:
        """The clock was set back, perhaps: nothing waits until it is where it was."""
        self._yielded_at = clock.clamp_to_now(self._yielded_at, now)
        if key in self._postponed:
            self._postponed[key] = clock.clamp_moment(
                self._postponed[key], now + timedelta(seconds=POSTPONEMENT_SECONDS)
            )

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
    return not status.generation and status.failure is None and not _gave_up(status.build_ticket)


def _must_roll_out_soon(status: DatasetStatus) -> bool:
    return not status.generation and not _gave_up(status.rollout_ticket)


def _gave_up(ticket: Ticket | None) -> bool:
    return ticket is not None and ticket.given_up > 0
