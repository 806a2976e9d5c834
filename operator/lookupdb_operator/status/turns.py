"""What waits for a turn to build or to roll out, and what keeps it from getting on when it has one."""

from __future__ import annotations

from dataclasses import dataclass


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
