"""Who knows all client connections of a worker, and makes those of one protocol."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from typing import Final, Protocol

from lookupdb.router.access import Gatekeeper
from lookupdb.router.budget import RouterLimits
from lookupdb.router.counters import INDEX
from lookupdb.router.lookup_core import LookupCore

# The bounds of clients' connections that no dataset sets, in whichever protocol. In bytes.


HIGH_WATER_BYTES: Final = 4 * 1024
"""Answers that the kernel does not take. More: no further request of the connection is begun or read, and what is not
sent is counted in the worker's budget. Less is not counted: so much is part of what a connection costs."""

JOINED_BYTES: Final = 256 * 1024
"""An answer to a batch up to this size is sent as one piece; a larger one value by value, and never copied."""

TLS_PIECE_BYTES: Final = 128 * 1024
"""An answer is encrypted and written in pieces of this size and a record's: what is encrypted is a copy."""

LINGER_SECONDS: Final = 2.0
"""How long after a closing answer what the client still sends is read and dropped, so that it can read the answer:
closing with unread bytes resets the connection."""

MAX_LINGERING_REFUSED: Final = 48
"""Connections beyond the limit that stay open until their clients have read the refusal. Further ones are closed right
after it, and a client that has sent something already may see a reset instead. ``capacity.RESERVED_DESCRIPTORS`` counts
them."""

SWEEP_SECONDS: Final = 0.25
"""How often connections are looked through for timeouts: every timeout is kept to within this."""


# What all client connections of one worker share, in whichever protocol.


class ClientService:
    """The lookup core, the worker's counters and bounds, and the deadlines that begin now."""

    __slots__ = (
        "budget",
        "counts",
        "draining",
        "gatekeeper",
        "header_deadline",
        "idle_deadline",
        "limits",
        "linger_deadline",
        "lookups",
        "write_deadline",
    )

    def __init__(
        self, lookups: LookupCore, limits: RouterLimits, counts: memoryview, gatekeeper: Gatekeeper | None = None
    ) -> None:
        self.lookups = lookups
        self.budget = lookups.budget
        self.limits = limits
        self.counts = counts
        self.gatekeeper = gatekeeper
        """Who may ask; None: anybody."""
        self.draining = False
        """Every answer from now on ends its connection."""
        self.idle_deadline = self.header_deadline = self.write_deadline = self.linger_deadline = math.inf
        """What a deadline that begins now is set to: as exact as the sweep that calls ``tick``."""

    def tick(self, now: float) -> None:
        """It is ``now`` by the event loop: deadlines follow."""
        limits = self.limits
        self.idle_deadline = now + limits.idle_timeout_seconds
        self.header_deadline = now + limits.header_timeout_seconds
        self.write_deadline = now + limits.write_timeout_seconds
        self.linger_deadline = now + LINGER_SECONDS


# The life of a client connection: its phases, what leads from one to the next, and what ends it.
#
# Its ``ClientPhase`` and ``is_blocked``, whether the client has ceased to take its answers, are the state of a
# connection. A client may cease to take its answers in any phase but CLOSED. A connection has one deadline, which the
# front's sweep looks at. The state says what the deadline means, and what happens once it has passed:
#
# | state | seconds | once they have passed |
# | --- | --- | --- |
# | blocked | `write_timeout_seconds` | cut off |
# | RECEIVING | `header_timeout_seconds` | refused, or once more as long if what has come waits to be read |
# | LINGERING, CLOSING | `LINGER_SECONDS`: 2 | cut off, or blocked from now on if the client has answers to take |
# | READING, nothing due | `idle_timeout_seconds` | closed |
# | else | | nothing: the lookups that are due have deadlines of their own |
#
# A dataset sets the timeouts (``RouterLimits``), ``clients.limits`` the rest. The sweep keeps each to within
# SWEEP_SECONDS.
#
# A connection also ends after its answer to a client that asked to close, and after a refusal:
#
# | who refuses                        | when                                       | HTTP              | RESP        |
# | ---------------------------------- | ------------------------------------------ | ----------------- | ----------- |
# | the reader of requests             | the bytes are no request, or out of bounds | 400 and others    | ERR         |
# | the budget, ``_refuse_overloaded`` | it is used up, and more comes              | 503 `unavailable` | UNAVAILABLE |
# | the front, ``ClientFront.admit``   | there are too many connections             | 503 `too-many-…`  | ERR         |
# | ``_finish_input``                  | the stream ends in the middle of a request | 400               | ERR         |
# | ``handle_deadline``                | the request is not whole in time           | 408               | ERR         |
#
# What refuses one request ends nothing. A connection also ends when the front says so (``finish``, ``close``,
# ``abort``) and when it breaks.


_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_CLIENTS_TIMED_OUT: Final = INDEX["clients_timed_out"]


class ClientPhase(enum.IntEnum):
    """The phases of a connection. But for READING and RECEIVING a connection only goes forward."""

    READING = 0
    """Requests are read and answered. At rest none has come in part."""
    RECEIVING = 1
    """As READING, and a request has begun and is not whole."""
    READING_HALF_CLOSED = 2
    """The client sends no more. Part of what it has sent is unread."""
    FINISHING = 3
    """No further request is read. Answers are due."""
    FINISHING_HALF_CLOSED = 4
    """As FINISHING, and the client sends no more."""
    LINGERING = 5
    """The last answer is sent, and that it was the last. What the client still sends is dropped until it closes, too:
    closing with unread bytes would reset the connection, and could take the answer from it."""
    CLOSING = 6
    """The connection closes once the client has taken what it was sent."""
    CLOSED = 7
    """Cut off, or lost."""


# Names of this module are found faster than members of an enum.
READING: Final = ClientPhase.READING
RECEIVING: Final = ClientPhase.RECEIVING
READING_HALF_CLOSED: Final = ClientPhase.READING_HALF_CLOSED
FINISHING: Final = ClientPhase.FINISHING
FINISHING_HALF_CLOSED: Final = ClientPhase.FINISHING_HALF_CLOSED
LINGERING: Final = ClientPhase.LINGERING
CLOSING: Final = ClientPhase.CLOSING
CLOSED: Final = ClientPhase.CLOSED

_LAST_REQUEST: Final = "the client asked to close, or the reader, the budget or the front refused it"
_LAST_ANSWER: Final = "the last answer is sent"
_END: Final = "the client sends no more"
_BROKEN: Final = "the connection broke, or was cut off"

TRANSITIONS: Final[dict[ClientPhase, dict[ClientPhase, str]]] = {
    READING: {
        RECEIVING: "a part of a request came",
        READING_HALF_CLOSED: _END,
        FINISHING: _LAST_REQUEST,
        LINGERING: "the front drains, and the last answer due is sent",
        CLOSING: "nothing is due, and the connection was idle for too long, or the front closes",
        CLOSED: _BROKEN,
    },
    RECEIVING: {
        READING: "the request is whole",
        READING_HALF_CLOSED: _END,
        FINISHING: _LAST_REQUEST + "; or the request did not come whole in time",
        CLOSED: _BROKEN,
    },
    READING_HALF_CLOSED: {
        FINISHING_HALF_CLOSED: "all is read, and answers are due; or its end came within a request; or "
        + _LAST_REQUEST,
        CLOSING: "all is read and answered",
        CLOSED: _BROKEN,
    },
    FINISHING: {
        FINISHING_HALF_CLOSED: _END,
        LINGERING: _LAST_ANSWER,
        CLOSED: _BROKEN,
    },
    FINISHING_HALF_CLOSED: {
        CLOSING: _LAST_ANSWER,
        CLOSED: _BROKEN,
    },
    LINGERING: {
        CLOSING: _END + ", or others linger already that came beyond the limit",
        CLOSED: _BROKEN,
    },
    CLOSING: {
        CLOSED: "the client has taken what it was sent; or " + _BROKEN,
    },
    CLOSED: {},
}
"""From, to, and what leads there. There are no others."""


class ConnectionLife(asyncio.Protocol):
    """The phases of a connection, and all that ends it. What it is asked and answers is its protocol's."""

    __slots__ = (
        "_input_bytes",
        "_transport",
        "_unsent_bytes",
        "budget",
        "counts",
        "deadline",
        "is_blocked",
        "phase",
    )
    _transport: asyncio.Transport
    service: ClientService

    def __init__(self, service: ClientService) -> None:
        self.budget = service.budget
        self.counts = service.counts
        self.phase = READING
        self.is_blocked = False
        """The client does not take its answers."""
        self.deadline = math.inf
        self._input_bytes = 0
        """Bytes counted for what has come and is no whole request."""
        self._unsent_bytes = 0
        """Bytes counted for answers that the client does not take."""

    # What each protocol does in its own way

    def _is_due(self) -> bool:
        """Whether an answer is."""
        raise NotImplementedError

    def _has_unread(self) -> bool:
        """Whether something has come that is read later."""
        raise NotImplementedError

    def _has_part(self) -> bool:
        """Whether a request has come in part."""
        raise NotImplementedError

    def _is_held_up(self) -> bool:
        """Whether a request that has come waits for another: none is read meanwhile."""
        raise NotImplementedError

    def _refuse_end(self) -> None:
        """Refuse what has come in part: the client sends no more."""
        raise NotImplementedError

    def _refuse_delay(self, seconds: float) -> None:
        """Refuse what has come in part: it was not whole within ``seconds``."""
        raise NotImplementedError

    def refuse_connection(self, limit: int) -> None:
        """Refuse the connection: there are ``limit`` of them."""
        raise NotImplementedError

    def encode_tls_refusal(self) -> bytes:
        """What a client is told that speaks no TLS, as it would understand."""
        raise NotImplementedError

    def forget_access(self, now: float) -> None:
        """Judge the next request anew if who was let in may not be good any more, ``now`` in seconds since 1970.
        ``math.inf``: in any case."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Begin what waits, and read on, as far as the bounds allow."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Forget what is due, and what has come."""
        raise NotImplementedError

    # Phases

    def _enter(self, phase: ClientPhase) -> None:
        """Begin ``phase``. The table must have the transition."""
        if phase not in TRANSITIONS[self.phase]:
            raise AssertionError(f"a connection cannot pass from {self.phase.name} to {phase.name}")
        self.phase = phase

    @property
    def is_half_closed(self) -> bool:
        """Whether the client sends no more, and answers are still due or may be."""
        return self.phase is READING_HALF_CLOSED or self.phase is FINISHING_HALF_CLOSED

    def _end_requests(self) -> None:
        """Read no further request."""
        self._enter(FINISHING_HALF_CLOSED if self.phase is READING_HALF_CLOSED else FINISHING)

    def _end_answers(self) -> None:
        """Send the end of the stream, and drop what the client still sends until it closes, too."""
        is_half_closed = self.is_half_closed
        self._enter(CLOSING if is_half_closed else LINGERING)
        self._drop()
        if not self.is_blocked:
            self.deadline = self.service.linger_deadline
        if is_half_closed:
            self._transport.close()
        else:
            self._transport.resume_reading()
            self._transport.write_eof()

    def eof_received(self) -> bool:
        """The client sends no more, and may still wait for answers: it gets them before the connection closes."""
        if self.phase >= LINGERING:
            if self.phase is LINGERING:
                self._enter(CLOSING)
            return False
        self._enter(FINISHING_HALF_CLOSED if self.phase is FINISHING else READING_HALF_CLOSED)
        if self._has_unread() or self._finish_input():
            return True
        self._enter(CLOSING)
        return False

    def _finish_input(self) -> bool:
        """All that the client sent is read, and it sends no more. Whether answers were due: they still come."""
        if self.phase is READING_HALF_CLOSED and self._has_part():
            self.counts[_REQUESTS_REFUSED] += 1
            self._refuse_end()
            return True
        if not self._is_due():
            return False
        if self.phase is READING_HALF_CLOSED:
            self._end_requests()
        return True

    # A client that does not take its answers

    def pause_writing(self) -> None:
        """The client has ceased to take what it is sent."""
        self.is_blocked = True
        self._count_unsent()
        self.deadline = self.service.write_deadline
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has taken most of what it was sent."""
        self.is_blocked = False
        self.budget.release(self._unsent_bytes)
        self._unsent_bytes = 0
        service = self.service
        if self.phase >= LINGERING:
            self.deadline = service.linger_deadline
        else:
            self.deadline = service.header_deadline if self.phase is RECEIVING else service.idle_deadline
        self._advance()

    def _count_unsent(self) -> None:
        size = self._transport.get_write_buffer_size()
        self.budget.take(size - self._unsent_bytes)
        self._unsent_bytes = size

    # Ends

    def handle_deadline(self) -> None:
        """Do what the table above says of a deadline that has passed."""
        if self.is_blocked:
            self.counts[_CLIENTS_TIMED_OUT] += 1
            self.abort()
        elif self.phase >= LINGERING:
            if self._transport.get_write_buffer_size():
                self.is_blocked = True
                self.deadline = self.service.write_deadline
            else:
                self.abort()
        elif self.phase is RECEIVING:
            if self._is_held_up():
                self.deadline = self.service.header_deadline
                return
            self.counts[_CLIENTS_TIMED_OUT] += 1
            self._refuse_delay(self.service.limits.header_timeout_seconds)
        elif self._is_idle():
            self._leave()

    def finish(self) -> None:
        """Close if the connection is idle. Otherwise its last answer will, while the service is draining."""
        if self._is_idle():
            self._leave()

    def _is_idle(self) -> bool:
        """Whether nothing is due and nothing is coming."""
        return self.phase is READING and not (self._is_due() or self._has_unread())

    def _leave(self) -> None:
        self._enter(CLOSING)
        self.deadline = self.service.linger_deadline
        self._transport.close()

    def close(self) -> None:
        """Close once the client has taken what it was sent, whatever it still sends."""
        if self.phase is LINGERING:
            self._enter(CLOSING)
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection off, whatever is due."""
        self._close_for_good()
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed, or broken: answers that are still due have nowhere to go."""
        self._close_for_good()
        self.budget.release(self._unsent_bytes)
        self._unsent_bytes = 0

    def _close_for_good(self) -> None:
        if self.phase is not CLOSED:
            self._enter(CLOSED)
        self._drop()


INVARIANTS: Final[dict[str, Callable[[ConnectionLife], bool]]] = {
    "READING: no request has come in part": lambda connection: (
        connection.phase is not READING or not connection._has_part()
    ),
    "RECEIVING: a request has come in part": lambda connection: (
        connection.phase is not RECEIVING or connection._has_part()
    ),
    "READING_HALF_CLOSED: something is unread, or the client blocked": lambda connection: (
        connection.phase is not READING_HALF_CLOSED or connection._has_unread() or connection.is_blocked
    ),
    "FINISHING: answers are due": lambda connection: (
        not FINISHING <= connection.phase < LINGERING or connection._is_due()
    ),
    "from LINGERING on: nothing is due or kept": lambda connection: (
        connection.phase < LINGERING
        or not (connection._is_due() or connection._has_unread() or connection._input_bytes)
    ),
    "bytes are unsent only while the client is blocked": lambda connection: (
        not connection._unsent_bytes or connection.is_blocked
    ),
}
"""What is true of every connection between two events, in whichever protocol."""


class ConnectionRegistry(Protocol):
    """Who knows all connections."""

    def admit(self, connection: ConnectionLife) -> None:
        """Count ``connection``, or refuse it because there are too many."""

    def forget(self, connection: ConnectionLife) -> None:
        """``connection`` is lost."""


class ClientProtocol(Protocol):
    """What clients speak on one port."""

    @property
    def service(self) -> ClientService:
        """What its connections share."""

    def make_connection(self, registry: ConnectionRegistry) -> ConnectionLife:
        """A connection that a client is about to make, which ``registry`` knows until it is lost."""
