"""The life of a link as a table: which event leads from which state to which. No I/O.

Invariants: a link has a connection when it is READY, and then only. It is told to connect once, by START, and makes no
connection after CLOSE.
"""

from __future__ import annotations

import enum
from typing import Final


class LinkState(enum.StrEnum):
    """Only a READY link is used."""

    NEW = "new"
    CONNECTING = "connecting"
    """Until the server has proven what it serves."""
    READY = "ready"
    BROKEN = "broken"
    """Until the backoff has passed."""
    CLOSED = "closed"


class LinkEvent(enum.Enum):
    """What happens to a link."""

    START = enum.auto()
    PROOF = enum.auto()
    """The server is connected to and has proven itself."""
    FAILURE = enum.auto()
    """It could not be connected to, or proved to be something else."""
    LOSS = enum.auto()
    """The connection broke. The server may be back in a moment: one that is restarted is."""
    SILENCE = enum.auto()
    """The idle connection is dead: the server stands still, and nobody knows for how long."""
    RETRY = enum.auto()
    CLOSE = enum.auto()


TRANSITIONS: Final = {
    (LinkState.NEW, LinkEvent.START): LinkState.CONNECTING,
    (LinkState.CONNECTING, LinkEvent.PROOF): LinkState.READY,
    (LinkState.CONNECTING, LinkEvent.FAILURE): LinkState.BROKEN,
    (LinkState.READY, LinkEvent.LOSS): LinkState.BROKEN,
    (LinkState.READY, LinkEvent.SILENCE): LinkState.BROKEN,
    (LinkState.BROKEN, LinkEvent.RETRY): LinkState.CONNECTING,
    **{(state, LinkEvent.CLOSE): LinkState.CLOSED for state in LinkState},
}
"""What is not here cannot happen: a KeyError is a defect."""
