"""One dataset's turn to build or to roll out. A dataset has its turn while its status holds a build, or a rollout with
servers that no routing table references. It waits while its ticket has a moment (``Ticket.since``). A turn that does
not get on has a ``Stall``, and may be given up: its ticket then says when the next one may come.

``turn_queues`` knows all datasets and decides whose turn it is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator.model import Trouble, Turn
from lookupdb_operator.plan import clock, reasons
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import DatasetStatus, RolloutStatus, Stall, Ticket

PATIENCE: Final = 180.0
"""Seconds that a stall may last before its turn may be given up. A cluster that adds nodes has added one by then."""
STORE_PATIENCE: Final = 600.0
"""The same while the store does not answer, or refuses the credentials. Mostly nobody could do more with the turn then,
but one namespace alone may be unable to reach it."""
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
    """Whether the turn is here, and was not given up in this very pass."""
    return turn.is_granted and (ticket is None or ticket.since <= clock.format_moment(now))


def wait_for_turn(ticket: Ticket | None, digest: str, now: datetime) -> Ticket:
    """The ticket of a dataset that waits to begin with ``digest``. It keeps the place that it has; after a turn with
    something else was given up it does not back off."""
    if ticket is None or (ticket.given_up and ticket.digest != digest):
        return Ticket(since=clock.format_moment(now))
    return ticket if ticket.since else replace(ticket, since=clock.format_moment(now))


def take_turn(ticket: Ticket | None) -> Ticket | None:
    """The ticket of a dataset that has its turn: it remembers how often it gave one up."""
    return replace(ticket, since="") if ticket is not None and ticket.given_up else None


def give_turn_up(
    ticket: Ticket | None, trouble: Trouble, digest: str, now: datetime, *, shares_store: bool = True
) -> Ticket:
    """The ticket of a dataset that gives up its turn with ``digest``, on account of ``trouble``. A store that does not
    answer makes nobody wait longer each time: all would wait once it answers again. Not so one that is the dataset's
    own."""
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
    """Seconds between the turn that was given up as the ``given_up``-th in a row and the next one."""
    return clock.doubling_delay(given_up, FIRST_BACKOFF, LONGEST_BACKOFF)


def note_stall(
    stall: Stall | None, trouble: Trouble | None, now: datetime, *, shares_store: bool = True
) -> Stall | None:
    """The stall on account of ``trouble``, dated when something first kept the turn from getting on; None when nothing
    does. What is wrong with a store of the dataset's own is noted as a shard that cannot be fetched: others, whose
    store answers, could do something with the turn."""
    if trouble is None:
        return None
    is_own = not shares_store and trouble.reason in reasons.SHARED_REASONS
    reason = reasons.FETCH_FAILED if is_own else trouble.reason
    return Stall(reason, stall.since if stall is not None else clock.format_moment(now))


def patience_seconds(stall: Stall) -> float:
    """Seconds after which a turn with ``stall`` may have to be given up."""
    return STORE_PATIENCE if stall.reason in reasons.SHARED_REASONS else PATIENCE


def is_long_stall(stall: Stall, now: datetime) -> bool:
    """Whether a turn with ``stall`` may have to be given up."""
    return clock.seconds_until(stall.since, patience_seconds(stall), now) == 0


def find_candidate(status: DatasetStatus) -> RolloutStatus | None:
    """The rollout that has a turn: servers of it start, and no routing table references them."""
    return next((rollout for rollout in reversed(status.rollouts) if rollout.is_starting), None)


def next_turn_in(status: DatasetStatus, now: datetime) -> float | None:
    """Seconds until a back-off ends, or a turn may have to be given up; None for neither. A dataset whose turn comes is
    woken without this."""
    ends = (ticket.since for ticket in (status.build_ticket, status.rollout_ticket) if ticket and ticket.given_up)
    waits = [clock.seconds_until(since, 0, now) for since in ends if since]
    holders = (status.build, find_candidate(status))
    stalls = [holder.stall for holder in holders if holder is not None and holder.stall is not None]
    waits += [clock.seconds_until(stall.since, patience_seconds(stall), now) or YIELD_EVERY for stall in stalls]
    return min((wait for wait in waits if wait > 0), default=None)


def clamp_ticket(ticket: Ticket | None, now: datetime) -> Ticket | None:
    """``ticket`` without a moment that lies further ahead than it can: the clock was set back."""
    if ticket is None or not ticket.since:
        return ticket
    ahead = backoff_seconds(ticket.given_up) if ticket.given_up else 0.0
    return replace(ticket, since=clock.clamp_moment(ticket.since, now + timedelta(seconds=ahead)))


def is_waiting(ticket: Ticket | None) -> bool:
    """Whether ``ticket`` waits for a turn, or for the end of its back-off."""
    return ticket is not None and bool(ticket.since)


def describe_wait(ticket: Ticket | None, turn: Turn) -> str:
    """The end of a sentence about what waits for its turn: since when, and behind how many."""
    assert ticket is not None, "who waits has a ticket"
    when = f"not before {ticket.since}" if ticket.given_up else f"since {ticket.since}"
    return f" waits for its turn {when}, {_describe_ahead(turn.ahead)} before it."


def _describe_ahead(count: int) -> str:
    if count <= _EXACT_PLACES:
        return str(count)
    return f"more than {next(step for step in _COARSE_PLACES if count > step)}"


def diagnose_ticket(ticket: Ticket | None) -> Trouble | None:
    """Why a turn was given up, as long as the next one has not come."""
    if ticket is None or not ticket.since or not ticket.given_up:
        return None
    return Trouble(ticket.reason, f"It gave its turn up to others, since it did not get on: {ticket.message}")
