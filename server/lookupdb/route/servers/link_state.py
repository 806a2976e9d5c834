"""The life of a link as a table: which event leads from which state to which. No I/O.

| event | what happens | where |
| --- | --- | --- |
| START | a routing table names the endpoint | ``Endpoint.start`` |
| START | the first slice of large work comes | ``Endpoint._lane_for`` |
| PROOF | the server is connected to, and proves what it serves | ``Link._use`` |
| FAILURE | it does not within 2 s (``CONNECT_SECONDS``), or there is an OSError | ``Link._connect`` |
| FAILURE | it serves something else, refuses the password, says too much | ``NotProven``, raised in ``proof`` |
| FAILURE | the key of its password is not there | ``UnknownKey``, raised in ``Passwords.find`` |
| LOSS | the other end closes or resets, or TCP keepalive gives it up | ``ServerConnection.connection_lost`` |
| LOSS | it sends what is not RESP, or more than was asked | ``ServerConnection.data_received``, ``_keep`` |
| LOSS | it sends a reply that was not asked for, or of the wrong shape | ``Lane._on_reply`` |
| LOSS | it is busy and stalls: too little of a batch comes for a deadline | ``StallWatch`` → ``Lane._close_stalled`` |
| SILENCE | it is idle and does not answer a PING within 2 s | ``Heartbeat`` → ``Link._on_silence`` |
| RETRY | the backoff has passed: 2 s at most (``MAX_BACKOFF_SECONDS``) | ``Link._live`` |
| CLOSE | no routing table names the endpoint, or the worker ends | ``EndpointPool.close_unused``, by way of |
| | | ``Endpoint.close``, ``Lane.close``, ``Link.close`` |

What is in flight fails its try either way. A lookup that then finds no ready replica is parked after a LOSS
(``ShardReplicas._park``), until its deadline at most: a server that was restarted is back in a moment, and one that
stalled gets a smaller batch next. After a SILENCE it is given up at once: an idle server that does not answer stands
still, and nobody knows for how long. Large work that is queued waits in its lane for the next connection after both,
while the endpoint is ready.

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
