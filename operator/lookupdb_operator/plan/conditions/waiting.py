"""What is said of who waits for a turn, or gave one up."""

from __future__ import annotations

from typing import Final

from lookupdb_operator.model import Trouble, Turn
from lookupdb_operator.status import Ticket

_EXACT: Final = 10
_STEPS: Final = (500, 200, 100, 50, 20, 10)
"""With many before it, a dataset's place changes with each that ends: it is told coarsely, so that a queue of a
thousand does not write a thousand statuses each time."""


def is_waiting(ticket: Ticket | None) -> bool:
    """Whether ``ticket`` waits for a turn, or for the end of its back-off."""
    return ticket is not None and bool(ticket.since)


def describe_wait(ticket: Ticket | None, turn: Turn) -> str:
    """The end of a sentence: what waits for its turn, since when, behind how many."""
    assert ticket is not None, "who waits has a ticket"
    when = f"not before {ticket.since}" if ticket.given_up else f"since {ticket.since}"
    return f" waits for its turn {when}, {_describe_ahead(turn.ahead)} before it."


def diagnose_ticket(ticket: Ticket | None) -> Trouble | None:
    """Why a turn was given up, as long as the next one has not come."""
    if ticket is None or not ticket.since or not ticket.given_up:
        return None
    return Trouble(ticket.reason, f"It gave its turn up to others, since it did not get on: {ticket.message}")


def _describe_ahead(ahead: int) -> str:
    if ahead <= _EXACT:
        return str(ahead)
    return f"more than {next(step for step in _STEPS if ahead > step)}"
