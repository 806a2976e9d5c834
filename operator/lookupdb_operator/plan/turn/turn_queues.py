"""The queues that decide whose turn it is to build, and to roll out. Without them an upgrade of the chart, which
changes all datasets, would begin everywhere at once, and leave each candidate half placed where only
some have room.

The queues are read from statuses (``turns``), after a restart too: nothing is remembered here alone. Datasets that
serve nothing yet come first, then those that have waited longest.

A dataset gives up a turn that has stalled for long when others wait, or stall, too. One dataset does so at a time, the
one that got its turn last: its room may be what others that are half placed lack. Its next turn comes behind those that
wait, later each time. No turn is granted while a dataset lacks room for long. A dataset that gave a turn up, or whose
build failed, has no precedence any more: many broken ones that serve nothing yet would take every turn.

Finding one dataset's turn costs a search among those that wait, never a pass over all.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator.model import Turn, Turns
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.plan.turn import turns
from lookupdb_operator.status import BuildStatus, DatasetStatus, RolloutStatus, Stall, Ticket

Key = tuple[str, str]
"""Namespace and name of a dataset."""
DEFAULT_LIMIT: Final = 4
"""Builds, and rollouts, at a time."""
POSTPONEMENT_SECONDS: Final = 60.0
"""Seconds for which others come before a dataset whose turn came and whose status could not be written."""


class TurnQueues:
    """The turns of all datasets, as their statuses say: each is noted when it is seen, and when it is about to be
    written."""

    def __init__(self, *, builds: int, rollouts: int) -> None:
        self._builds = _TurnQueue(builds)
        self._rollouts = _TurnQueue(rollouts)

    def note(self, key: Key, status: DatasetStatus, now: datetime) -> None:
        """Note what the status of ``key`` holds and waits for."""
        self._builds.note(key, status.build, status.build_ticket, _must_build_soon(status), now)
        self._rollouts.note(key, turns.find_candidate(status), status.rollout_ticket, _must_roll_out_soon(status), now)

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
        """What ``key``, whose status is noted, may do now."""
        return Turns(
            build=self._builds.find_turn(key, _must_build_soon(status), now),
            rollout=self._rollouts.find_turn(key, _must_roll_out_soon(status), now),
        )

    def list_granted(self, now: datetime) -> frozenset[Key]:
        """The datasets whose turn has come, and that have not taken it yet."""
        return frozenset((*self._builds.list_granted(now), *self._rollouts.list_granted(now)))


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """The place of a dataset that waits; places sort in the order in which turns come."""

    since: str
    key: Key


@dataclass(frozen=True, slots=True)
class _ActiveTurn:
    """The turn of a dataset that builds or rolls out now."""

    since: str
    stall: Stall | None


class _TurnQueue:
    """Turns of one kind."""

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
        """Let others come before ``key`` until then; should it have a turn, that counts for nothing meanwhile."""
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
        """Those that wait and whose turn it is."""
        free = self._count_free_turns(now)
        for is_urgent in (True, False):
            ready = min(free, self._count_eligible(is_urgent, now))
            yield from (waiting.key for waiting in self._waiting[is_urgent][:ready])
            free -= ready

    def _count_free_turns(self, now: datetime) -> int:
        usable = self._usable_turns(now)
        lacks_room = any(
            turn.stall is not None
            and turn.stall.reason in reasons.PLACEMENT_REASONS
            and turns.is_long_stall(turn.stall, now)
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
        if turn.stall is None or not turns.is_long_stall(turn.stall, now):
            return False
        if self._yielded_at and clock.seconds_until(self._yielded_at, turns.YIELD_EVERY, now) > 0:
            return False
        usable = self._usable_turns(now) | {key: turn}
        stalled = [
            (other.since, key_at)
            for key_at, other in usable.items()
            if other.stall and turns.is_long_stall(other.stall, now)
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
