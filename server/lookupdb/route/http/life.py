"""The life of a client connection: its phases, what leads from one to the next, and what ends it.

Its ``HttpPhase`` and ``is_blocked``, whether the client has ceased to take its answers, are the state of a connection.
A client may cease to take its answers in any phase but CLOSED. A connection has one deadline, which the front's sweep
looks at. The state says what the deadline means, and what happens once it has passed:

| state                | seconds                  | once they have passed                                              |
| -------------------- | ------------------------ | ------------------------------------------------------------------ |
| blocked              | `write_timeout_seconds`  | cut off                                                            |
| RECEIVING            | `header_timeout_seconds` | 408, or once more as long if what has come waits to be read        |
| LINGERING, CLOSING   | `LINGER_SECONDS`: 2      | cut off, or blocked from now on if the client has answers to take  |
| READING, nothing due | `idle_timeout_seconds`   | closed                                                             |
| else                 |                          | nothing: the lookups that are due have deadlines of their own      |

A dataset sets the timeouts (``RouterLimits``), ``http.limits`` the rest. The sweep keeps each to within SWEEP_SECONDS.

A connection also ends after its answer to a client that asked to close, and after a refusal:

| who refuses                        | when                                       | answer                            |
| ---------------------------------- | ------------------------------------------ | --------------------------------- |
| the reader, ``RequestReader``      | the bytes are no request, or out of bounds | 400, 413, 414, 417, 431, 500, 505 |
| the budget, ``_refuse_overloaded`` | it is used up, and more comes              | 503 `unavailable`, `Overloaded`   |
| the front, ``HttpFront.admit``     | there are too many connections             | 503 `too-many-connections`        |
| ``_finish_input``                  | the stream ends in the middle of a request | 400                               |
| ``handle_deadline``                | the request is not whole in time           | 408                               |

A refusal by ``routes`` answers one request and ends nothing. A connection also ends when the front says so (``finish``,
``close``, ``abort``) and when it breaks.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from lookupdb.route.counters import INDEX
from lookupdb.route.http import problems
from lookupdb.route.http.exchanges import Exchange
from lookupdb.route.http.problems import HttpProblem
from lookupdb.route.http.request import RequestReader
from lookupdb.route.http.service import HttpService

_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_CLIENTS_TIMED_OUT: Final = INDEX["clients_timed_out"]


class HttpPhase(enum.IntEnum):
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
READING: Final = HttpPhase.READING
RECEIVING: Final = HttpPhase.RECEIVING
READING_HALF_CLOSED: Final = HttpPhase.READING_HALF_CLOSED
FINISHING: Final = HttpPhase.FINISHING
FINISHING_HALF_CLOSED: Final = HttpPhase.FINISHING_HALF_CLOSED
LINGERING: Final = HttpPhase.LINGERING
CLOSING: Final = HttpPhase.CLOSING
CLOSED: Final = HttpPhase.CLOSED

_LAST_REQUEST: Final = "the client asked to close, or the reader, the budget or the front refused it"
_LAST_ANSWER: Final = "the last answer is sent"
_END: Final = "the client sends no more"
_BROKEN: Final = "the connection broke, or was cut off"

TRANSITIONS: Final[dict[HttpPhase, dict[HttpPhase, str]]] = {
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
    """The phases of a connection, and all that ends it. What it is asked and answers is ``HttpConnection``'s."""

    __slots__ = (
        "_input_bytes",
        "_pending",
        "_reader",
        "_transport",
        "_unread",
        "_unsent_bytes",
        "_waiting",
        "_waiting_answer_bytes",
        "budget",
        "counts",
        "deadline",
        "is_blocked",
        "phase",
        "service",
    )
    _transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, service: HttpService) -> None:
        self.service = service
        self.budget = service.budget
        self.counts = service.counts
        self.phase = READING
        self.is_blocked = False
        """The client does not take its answers."""
        self.deadline = math.inf
        self._pending: deque[Exchange] = deque()
        """Begun, in order; answered once all before them are."""
        self._waiting: deque[Exchange] = deque()
        """Read, not begun."""
        self._unread = b""
        """Has come, and is read once nothing waits."""
        self._input_bytes = 0
        """Bytes counted for what has come and is no whole request."""
        self._waiting_answer_bytes = 0
        """Bytes counted for answers that wait for an earlier one."""
        self._unsent_bytes = 0
        """Bytes counted for answers that the client does not take."""

    # Hooks for HttpConnection

    def _submit_problem(self, problem: HttpProblem) -> None:
        """Answer with ``problem`` in its turn, as the last answer."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Begin what waits, and read on, as far as the bounds allow."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Forget what is due, and what has come."""
        raise NotImplementedError

    # Phases

    def _enter(self, phase: HttpPhase) -> None:
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
        if self._unread or self._finish_input():
            return True
        self._enter(CLOSING)
        return False

    def _finish_input(self) -> bool:
        """All that the client sent is read, and it sends no more. Whether answers were due: they still come."""
        if self.phase is READING_HALF_CLOSED and self._reader.is_partial:
            self.counts[_REQUESTS_REFUSED] += 1
            self.refuse(HttpProblem(problems.MALFORMED, "the connection ended in the middle of a request"))
            return True
        if not self._pending and not self._waiting:
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

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem`` in its turn, and close."""
        if self.phase < FINISHING:
            self._end_requests()
        self._submit_problem(problem)
        self._advance()

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
            if self._waiting:
                self.deadline = self.service.header_deadline
                return
            self.counts[_CLIENTS_TIMED_OUT] += 1
            seconds = self.service.limits.header_timeout_seconds
            self.refuse(HttpProblem(problems.TIMEOUT, f"no whole request within {seconds:g} seconds"))
        elif self._is_idle():
            self._leave()

    def finish(self) -> None:
        """Close if the connection is idle. Otherwise its last answer will, while the service is draining."""
        if self._is_idle():
            self._leave()

    def _is_idle(self) -> bool:
        """Whether nothing is due and nothing is coming."""
        return self.phase is READING and not (self._pending or self._waiting or self._unread)

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
        self._reader.close()
        self.budget.release(self._unsent_bytes)
        self._unsent_bytes = 0

    def _close_for_good(self) -> None:
        if self.phase is not CLOSED:
            self._enter(CLOSED)
        self._drop()


def _holds_nothing(connection: ConnectionLife) -> bool:
    return not (
        _has_exchanges(connection) or connection._unread or connection._waiting_answer_bytes or connection._input_bytes
    )


def _has_exchanges(connection: ConnectionLife) -> bool:
    return bool(connection._pending or connection._waiting)


INVARIANTS: Final[dict[str, Callable[[ConnectionLife], bool]]] = {
    "READING: no request has come in part": lambda connection: (
        connection.phase is not READING or not connection._reader.is_partial
    ),
    "RECEIVING: a request has come in part": lambda connection: (
        connection.phase is not RECEIVING or connection._reader.is_partial
    ),
    "READING_HALF_CLOSED: something is unread, or the client blocked": lambda connection: (
        connection.phase is not READING_HALF_CLOSED or bool(connection._unread) or connection.is_blocked
    ),
    "FINISHING: answers are due": lambda connection: (
        not FINISHING <= connection.phase < LINGERING or _has_exchanges(connection)
    ),
    "from LINGERING on: nothing is due or kept": lambda connection: (
        connection.phase < LINGERING or _holds_nothing(connection)
    ),
    "a request waits only for another, or for the client": lambda connection: (
        not connection._waiting or bool(connection._pending) or connection.is_blocked
    ),
    "bytes are unread only while a request waits": lambda connection: (
        not connection._unread or bool(connection._waiting)
    ),
    "an answer is kept only behind one that is due": lambda connection: (
        not connection._waiting_answer_bytes or bool(connection._pending)
    ),
    "bytes are unsent only while the client is blocked": lambda connection: (
        not connection._unsent_bytes or connection.is_blocked
    ),
}
"""What is true of every connection between two events."""
