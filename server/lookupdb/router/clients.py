"""The common part of both client protocols: the public ports, and the life of a connection.

``ClientFront`` accepts connections, closes those past their deadline, and drains. No request or connection has a timer
of its own: a few times a second, one sweep checks every connection. ``ClientService`` holds what the connections of a
worker share. ``ConnectionLife`` is the base of HTTP and RESP connections. ``TRANSITIONS`` and the tables below say when
a connection changes its phase and ends.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from lookupdb.disk import raise_limit
from lookupdb.process.listeners import BACKLOG, max_client_connections
from lookupdb.router.access import Gatekeeper
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.counters import INDEX
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import OVERLOADED
from lookupdb.router.replicas import CONNECTIONS_AN_ENDPOINT

log = logging.getLogger(__name__)

# Limits of client connections that no dataset sets, in bytes.

HIGH_WATER_BYTES: Final = 4 * 1024
"""Limit of unsent answers. Beyond it, no request of the connection begins or is read, and unsent bytes are counted in
the worker's budget. Below it, they are part of a connection's fixed cost."""

Answer = bytes | list[bytes]
"""One piece, or consecutive pieces."""

JOINED_BYTES: Final = 256 * 1024
"""A batch answer up to this size is sent as one piece; a larger one value by value, without copies."""

TLS_PIECE_BYTES: Final = 128 * 1024
"""An answer is encrypted and written in pieces of about this size, because encryption makes a copy."""

LINGER_SECONDS: Final = 2.0
"""Time after a closing answer in which the client's bytes are read and dropped, so that it can read the answer. Closing
with unread bytes would reset the connection."""

MAX_LINGERING_REFUSED: Final = 48
"""Connections beyond the limit that stay open until the client has read the refusal. Further ones are closed at once,
and their clients may see a reset. ``process.listeners.RESERVED_DESCRIPTORS`` includes them."""

SWEEP_SECONDS: Final = 0.25
"""Interval of the sweep over connections, and so the accuracy of their timeouts."""


class ClientService:
    """The shared state of all client connections of a worker, with deadlines for what begins now."""

    def __init__(self, lookups: LookupCore, limits: RouterLimits, gatekeeper: Gatekeeper | None = None) -> None:
        self.lookups = lookups
        self.budget = lookups.budget
        self.limits = limits
        self.counters = lookups.counters
        self.observe = lookups.observe
        self.gatekeeper = gatekeeper
        """None if every client may look up."""
        self.draining = False
        """True if every answer closes its connection."""
        self.idle_deadline = self.header_deadline = self.write_deadline = self.linger_deadline = math.inf
        """The deadlines of what begins now; each ``tick`` moves them."""

    def tick(self, now: float) -> None:
        """Update the deadlines for ``now``, event loop time."""
        limits = self.limits
        self.idle_deadline = now + limits.idle_timeout_seconds
        self.header_deadline = now + limits.header_timeout_seconds
        self.write_deadline = now + limits.write_timeout_seconds
        self.linger_deadline = now + LINGER_SECONDS


# The state of a connection is its ``ClientPhase`` and ``is_blocked``: whether the client has stopped reading answers.
# That may happen in any phase but CLOSED. A connection has one deadline, which the front's sweep checks:
#
# | state | seconds | after that |
# | --- | --- | --- |
# | blocked | `write_timeout_seconds` | aborted |
# | RECEIVING | `header_timeout_seconds` | refused; given the same time again if its bytes wait to be read |
# | LINGERING, CLOSING | `LINGER_SECONDS`: 2 | aborted, or blocked if answers are unsent |
# | READING, nothing due | `idle_timeout_seconds` | closed |
# | else | | nothing: pending lookups have their own deadlines |
#
# A dataset sets the timeouts (``RouterLimits``), except LINGER_SECONDS.
#
# A connection also ends after its answer to a client that asked to close, and after these refusals:
#
# | source                             | condition                                  | HTTP              | RESP        |
# | ---------------------------------- | ------------------------------------------ | ----------------- | ----------- |
# | the reader of requests             | invalid bytes, or a limit is exceeded      | 400 and others    | ERR         |
# | the budget, ``_refuse_overloaded`` | the budget is used up, and more arrives    | 503 `unavailable` | UNAVAILABLE |
# | the front, ``ClientFront.admit``   | there are too many connections             | 503 `too-many-…`  | ERR         |
# | ``_finish_input``                  | the stream ends in the middle of a request | 400               | ERR         |
# | ``handle_deadline``                | the request is incomplete after the time   | 408               | ERR         |
#
# Other refusals do not end a connection. It also ends when the front says so (``finish``, ``close``, ``abort``) and
# when it breaks.


_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_CLIENTS_TIMED_OUT: Final = INDEX["clients_timed_out"]
_OVERLOADED: Final = INDEX["requests_overloaded"]


class ClientPhase(enum.IntEnum):
    """The phases of a connection. Only READING and RECEIVING alternate; all others go forward."""

    READING = 0
    """Requests are read and answered. At rest, no partial request has arrived."""
    RECEIVING = 1
    """Like READING, but a request is incomplete."""
    READING_HALF_CLOSED = 2
    """The client sends no more, but some bytes are unread."""
    FINISHING = 3
    """No further request is read. Answers are due."""
    FINISHING_HALF_CLOSED = 4
    """Like FINISHING, and the client sends no more."""
    LINGERING = 5
    """The last answer and the end of the stream are sent. The client's bytes are dropped until it closes: closing with
    unread bytes would reset the connection, and the client could lose the answer."""
    CLOSING = 6
    """The connection closes once the client has received everything."""
    CLOSED = 7


# Module names are faster than enum members.
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
        READING: "the request is complete",
        READING_HALF_CLOSED: _END,
        FINISHING: _LAST_REQUEST + "; or the request was incomplete after the time",
        CLOSED: _BROKEN,
    },
    READING_HALF_CLOSED: {
        FINISHING_HALF_CLOSED: "all is read, and answers are due; or the stream ended within a request; or "
        + _LAST_REQUEST,
        CLOSING: "all is read and answered",
        CLOSED: _BROKEN,
    },
    FINISHING: {FINISHING_HALF_CLOSED: _END, LINGERING: _LAST_ANSWER, CLOSED: _BROKEN},
    FINISHING_HALF_CLOSED: {CLOSING: _LAST_ANSWER, CLOSED: _BROKEN},
    LINGERING: {CLOSING: _END + ", or too many connections beyond the limit linger", CLOSED: _BROKEN},
    CLOSING: {CLOSED: "the client has read everything sent; or " + _BROKEN},
    CLOSED: {},
}
"""From, to and cause of each transition. There are no others."""


class ConnectionRefusal(enum.Enum):
    """Why a connection refuses its client's bytes in either protocol."""

    MALFORMED = enum.auto()
    LATE = enum.auto()
    OVERLOADED = enum.auto()
    TOO_MANY_CONNECTIONS = enum.auto()


class ConnectionLife(asyncio.Protocol):
    """The phases of a connection and everything that ends it. Subclasses handle requests and answers."""

    __slots__ = (
        "_input_bytes",
        "_registry",
        "_transport",
        "_unsent_bytes",
        "budget",
        "counters",
        "deadline",
        "is_blocked",
        "observe",
        "phase",
    )
    _transport: asyncio.Transport
    service: ClientService

    def __init__(self, service: ClientService, registry: ClientFront) -> None:
        self._registry = registry
        self.budget = service.budget
        self.counters = service.counters
        self.observe = service.observe
        self.phase = READING
        self.is_blocked = False
        """True if the client has stopped reading answers."""
        self.deadline = math.inf
        self._input_bytes = 0
        self._unsent_bytes = 0

    # For subclasses.

    def _is_due(self) -> bool:
        raise NotImplementedError

    def _has_unread(self) -> bool:
        """Return whether bytes wait to be read."""
        raise NotImplementedError

    def _has_part(self) -> bool:
        """Return whether an incomplete request has arrived."""
        raise NotImplementedError

    def _is_held_up(self) -> bool:
        """Return whether a request waits for an earlier one; nothing is read meanwhile."""
        return False

    def refuse_input(self, refusal: ConnectionRefusal, detail: str) -> None:
        """Refuse the next request, and close."""
        raise NotImplementedError

    def encode_tls_refusal(self) -> bytes:
        """Return an answer that a client without TLS understands."""
        raise NotImplementedError

    def forget_access(self, now: float) -> None:
        """Judge the next request again if the access granted may have ended by ``now`` (seconds since 1970).
        ``math.inf`` always forgets."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Begin waiting requests and read on, within the limits."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Drop unanswered requests and received bytes."""
        raise NotImplementedError

    def _measure_input(self) -> int:
        """Return the bytes of input that is kept."""
        raise NotImplementedError

    def _refuse_overloaded(self) -> None:
        """Refuse the request and read no more, because the budget is used up."""
        self.counters[_OVERLOADED] += 1
        self.refuse_input(ConnectionRefusal.OVERLOADED, OVERLOADED.detail)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.deadline = self.service.idle_deadline
        self._registry.admit(self)

    def _enter(self, phase: ClientPhase) -> None:
        """Begin ``phase``, to which the table must have a transition."""
        if phase not in TRANSITIONS[self.phase]:
            raise AssertionError(f"a connection cannot pass from {self.phase.name} to {phase.name}")
        self.phase = phase

    @property
    def is_half_closed(self) -> bool:
        """Return whether the client has ended its stream, and answers are or may be due."""
        return self.phase is READING_HALF_CLOSED or self.phase is FINISHING_HALF_CLOSED

    def _end_requests(self) -> None:
        self._enter(FINISHING_HALF_CLOSED if self.phase is READING_HALF_CLOSED else FINISHING)

    def _end_answers(self) -> None:
        """Send the end of the stream, and drop the client's bytes until it closes."""
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
        """Handle the end of the client's stream. The client still gets the answers that are due."""
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
        """If all bytes are read and the client sends no more, finish. Return whether anything is still to be sent."""
        if self.phase is READING_HALF_CLOSED and self._has_part():
            self.counters[_REQUESTS_REFUSED] += 1
            self.refuse_input(ConnectionRefusal.MALFORMED, "the connection ended in the middle of a request")
            return True
        if not self._is_due():
            return False
        if self.phase is READING_HALF_CLOSED:
            self._end_requests()
        return True

    def pause_writing(self) -> None:
        """Stop reading, because the client has stopped reading answers."""
        self.is_blocked = True
        self._count_unsent()
        self.deadline = self.service.write_deadline
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue, because the client has read most answers."""
        self.is_blocked = False
        self.budget.release(self._unsent_bytes)
        self._unsent_bytes = 0
        service = self.service
        if self.phase >= LINGERING:
            self.deadline = service.linger_deadline
        else:
            self.deadline = service.header_deadline if self.phase is RECEIVING else service.idle_deadline
        self._advance()

    def _write(self, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self._transport.write(answer)
        else:
            self._transport.writelines(answer)
        if self.is_blocked:
            self._count_unsent()

    def _count_unsent(self) -> None:
        size = self._transport.get_write_buffer_size()
        self.budget.take(size - self._unsent_bytes)
        self._unsent_bytes = size

    def _count_input(self) -> None:
        """Count the input that is kept. Refuse it if the budget is used up."""
        if self.phase >= LINGERING:
            return  # nothing is kept
        size = self._measure_input()
        more = size - self._input_bytes
        self.budget.take(more)
        self._input_bytes = size
        if more > 0 and self.budget.used > self.budget.limit and self.phase < FINISHING:
            self._refuse_overloaded()

    def _fail(self, exchange: Any, error: Exception) -> None:
        """Close the connection, because ``exchange`` could not begin: a bug, or memory is short."""
        log.error("a request could not begin", exc_info=error)
        self.budget.release(exchange.charge)
        exchange.charge = 0
        self.abort()

    def handle_deadline(self) -> None:
        """Handle an expired deadline according to the table above."""
        if self.is_blocked:
            self.counters[_CLIENTS_TIMED_OUT] += 1
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
            self.counters[_CLIENTS_TIMED_OUT] += 1
            seconds = self.service.limits.header_timeout_seconds
            self.refuse_input(ConnectionRefusal.LATE, f"no complete request within {seconds:g} seconds")
        elif self._is_idle():
            self._leave()

    def finish(self) -> None:
        """Close an idle connection. A busy one closes with its last answer while the service drains."""
        if self._is_idle():
            self._leave()

    def _is_idle(self) -> bool:
        """Return whether nothing is due or arriving."""
        return self.phase is READING and not (self._is_due() or self._has_unread())

    def _leave(self) -> None:
        self._enter(CLOSING)
        self.deadline = self.service.linger_deadline
        self._transport.close()

    def close(self) -> None:
        """Close once everything is sent, whatever the client still sends."""
        if self.phase is LINGERING:
            self._enter(CLOSING)
        self._transport.close()

    def abort(self) -> None:
        """Abort the connection, whatever is due."""
        self._close_for_good()
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed or broken."""
        self._registry.forget(self)
        self._close_for_good()
        self.budget.release(self._unsent_bytes)
        self._unsent_bytes = 0

    def _close_for_good(self) -> None:
        if self.phase is not CLOSED:
            self._enter(CLOSED)
        self._drop()


# The public ports.

ServiceT = TypeVar("ServiceT", bound=ClientService)
Encrypt = Callable[[Callable[[], ConnectionLife]], Callable[[], asyncio.Protocol]]
"""Takes a factory of connections, and returns one that wraps them in TLS."""

_ACCEPTED: Final = INDEX["connections_accepted"]
_REFUSED: Final = INDEX["connections_refused"]
_OPEN: Final = INDEX["connections"]
_ENDPOINTS: Final = tuple(
    INDEX[f"{prefix}endpoints_{state}"] for prefix in ("", "candidate_") for state in ("ready", "unready")
)
_BUDGET: Final = INDEX["budget_bytes"]
_USED: Final = INDEX["budget_used_bytes"]


class ClientFront:
    """All client connections of one worker, counted in ``counters``."""

    def __init__(
        self,
        budget: RouterBudget,
        limits: RouterLimits,
        counters: memoryview,
        gatekeeper: Gatekeeper | None = None,
        encrypt: Encrypt | None = None,
        dataset_counters: Sequence[memoryview] = (),
    ) -> None:
        """Without ``gatekeeper`` every client may look up; without ``encrypt`` clients connect without TLS.
        ``dataset_counters`` count endpoints; without them, ``counters`` do."""
        self._budget = budget
        self._limits = limits
        self._gatekeeper = gatekeeper
        self._encrypt = encrypt
        self._access_version = 0
        self._services: list[ClientService] = []
        self._counters = counters
        self._dataset_counters = dataset_counters or (counters,)
        self._descriptors = raise_limit()
        self._connections: set[ConnectionLife] = set()
        self._refused: set[ConnectionLife] = set()
        """Connections beyond the limit, open only until their clients have read the refusal."""
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(
        self,
        listener: socket.socket,
        service: ServiceT,
        make_connection: Callable[[ServiceT, ClientFront], ConnectionLife],
    ) -> None:
        """Accept connections on ``listener``, which is already bound, to ``service``."""
        if service not in self._services:
            self._services.append(service)
            service.tick(self._loop.time())
        if self._sweeping is None:
            self._sweep()

        accept_plain = partial(make_connection, service, self)
        accept = accept_plain if self._encrypt is None else self._encrypt(accept_plain)
        # asyncio would lower the backlog to 100.
        server = await self._loop.create_server(accept, sock=listener, backlog=BACKLOG)
        self._servers.append(server)

    def drain(self) -> None:
        """Keep answering, but close each connection with its next answer."""
        for service in self._services:
            service.draining = True

    async def close(self, seconds: float) -> None:
        """Stop accepting, close idle connections and finish requests within ``seconds``; then abort the rest."""
        self.drain()
        for server in self._servers:
            server.close()
        deadline = self._loop.time() + seconds
        while self._connections and self._loop.time() < deadline:
            for connection in tuple(self._connections):
                connection.finish()
            await asyncio.sleep(0.02)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._connections, *self._refused):
            connection.abort()

    def admit(self, connection: ConnectionLife) -> None:
        """Count ``connection``, or refuse it if there are too many."""
        endpoints = CONNECTIONS_AN_ENDPOINT * sum(
            counters[gauge] for counters in self._dataset_counters for gauge in _ENDPOINTS
        )
        # Lower than configured if endpoints leave too few descriptors.
        limit = min(self._limits.max_connections, max_client_connections(self._descriptors, endpoints))
        if len(self._connections) < limit:
            self._connections.add(connection)
            self._counters[_ACCEPTED] += 1
            self._counters[_OPEN] = len(self._connections)
            return
        self._counters[_REFUSED] += 1
        self._refused.add(connection)
        detail = f"there are {limit} connections already, which is the limit"
        connection.refuse_input(ConnectionRefusal.TOO_MANY_CONNECTIONS, detail)
        if len(self._refused) > MAX_LINGERING_REFUSED:
            connection.close()

    def forget(self, connection: ConnectionLife) -> None:
        """Remove a lost connection."""
        self._refused.discard(connection)
        self._connections.discard(connection)
        self._counters[_OPEN] = len(self._connections)

    def _sweep(self) -> None:
        now = self._loop.time()
        for service in self._services:
            service.tick(now)
        budget = self._budget
        self._counters[_BUDGET] = budget.limit
        self._counters[_USED] = max(budget.used, 0)
        overdue = [connection for connection in self._connections if connection.deadline < now]
        overdue += [connection for connection in self._refused if connection.deadline < now]
        for connection in overdue:
            connection.handle_deadline()
        gatekeeper = self._gatekeeper
        if gatekeeper is not None:  # after a change, all are judged again; otherwise those whose time is over
            ended_before = time.time() if gatekeeper.version == self._access_version else math.inf
            self._access_version = gatekeeper.version
            for connection in self._connections:
                connection.forget_access(ended_before)
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
