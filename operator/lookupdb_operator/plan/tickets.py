"""A dataset's place in the queue for a turn to build or to roll out, as its status keeps it. Whose turn it is decides
``turns``, which knows all datasets; here is what one of them makes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from lookupdb_operator.model import Trouble, Turn
from lookupdb_operator.plan import clock, failures, reasons, turns
from lookupdb_operator.status import Stall, Ticket

_MAX_MESSAGE_CHARACTERS: Final = 1000


def may_begin(turn: Turn, ticket: Ticket | None, now: datetime) -> bool:
    """Whether the turn is here, and was not given up in this very pass."""
    return turn.is_granted and (ticket is None or ticket.since <= clock.written(now))


def wait(ticket: Ticket | None, digest: str, now: datetime) -> Ticket:
    """The ticket of who waits to begin with ``digest``. Who waits already keeps its place; who gave up a turn with
    something else does not back off."""
    if ticket is None or (ticket.given_up and ticket.digest != digest):
        return Ticket(since=clock.written(now))
    return ticket if ticket.since else replace(ticket, since=clock.written(now))


def take(ticket: Ticket | None) -> Ticket | None:
    """The ticket of who has its turn: what remembers how often it gave one up."""
    return replace(ticket, since="") if ticket is not None and ticket.given_up else None


def give_up(ticket: Ticket | None, trouble: Trouble, digest: str, now: datetime) -> Ticket:
    """The ticket of who gives up its turn with ``digest``, on account of ``trouble``. A store that does not answer
    makes nobody wait longer each time: all would wait once it answers again."""
    before = ticket.given_up if ticket is not None and ticket.digest == digest else 0
    count = max(1, before) if trouble.reason in reasons.OF_EVERYBODY else before + 1
    return Ticket(
        since=clock.later(now, turns.backoff(count)),
        given_up=count,
        reason=trouble.reason,
        message=failures.shortened(trouble.message, _MAX_MESSAGE_CHARACTERS),
        digest=digest,
    )


def clamp_ticket(ticket: Ticket | None, now: datetime) -> Ticket | None:
    """``ticket`` without a moment that lies further ahead than it can: the clock was set back."""
    if ticket is None or not ticket.since:
        return ticket
    ahead = turns.backoff(ticket.given_up) if ticket.given_up else 0.0
    return replace(ticket, since=clock.at_most(ticket.since, now + timedelta(seconds=ahead)))


def noted_stall(stall: Stall | None, trouble: Trouble | None, now: datetime) -> Stall | None:
    """What keeps somebody who has a turn from getting on."""
    if trouble is None:
        return None
    return Stall(trouble.reason, stall.since if stall is not None else clock.written(now))
