"""The life of a client connection: its phases, what leads from one to the next, and what ends it.

Its ``HttpPhase`` and ``is_blocked``, whether the client has ceased to take its answers, are the state of a connection.
A client may cease to take its answers in any phase but CLOSED. A connection has one deadline, which the front's sweep
looks at. The state says what the deadline means, and what happens once it has passed:

| state                    | deadline | once it has passed                                                     |
| ------------------------ | -------- | ---------------------------------------------------------------------- |
| blocked                  | write    | cut off                                                                |
| RECEIVING                | header   | 408, or once more as long if what has come waits to be read            |
| LINGERING, CLOSING       | linger   | cut off, or blocked from now on if the client has answers left to take |
| READING, nothing due     | idle     | closed                                                                 |
| else                     |          | nothing: the lookups that are due have deadlines of their own          |

A connection also ends when the front says so (``finish``, ``close``, ``abort``) and when it breaks.
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

_LAST_REQUEST: Final = "the client asked to close, or was refused"
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
        FINISHING: _LAST_REQUEST + "; the request did not come whole in time",
        CLOSED: _BROKEN,
    },
    READING_HALF_CLOSED: {
        FINISHING_HALF_CLOSED: "all is read, and answers are due; or " + _LAST_REQUEST,
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
        self.budget.give(self._unsent_bytes)
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

    def overdue(self) -> None:
        """The deadline has passed: the table above says what follows."""
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
        self.budget.give(self._unsent_bytes)
        self._unsent_bytes = 0

    def _close_for_good(self) -> None:
        if self.phase is not CLOSED:
            self._enter(CLOSED)
        self._drop()


def _holds_nothing(connection: ConnectionLife) -> bool:
    return not (
        _is_owing(connection) or connection._unread or connection._waiting_answer_bytes or connection._input_bytes
    )


def _is_owing(connection: ConnectionLife) -> bool:
    return bool(connection._pending or connection._waiting)


INVARIANTS: Final[dict[str, Callable[[ConnectionLife], bool]]] = {
    "READING: no request has come in part": lambda it: it.phase is not READING or not it._reader.is_partial,
    "RECEIVING: a request has come in part": lambda it: it.phase is not RECEIVING or it._reader.is_partial,
    "READING_HALF_CLOSED: something is unread, or the client blocked": lambda it: (
        it.phase is not READING_HALF_CLOSED or bool(it._unread) or it.is_blocked
    ),
    "FINISHING: answers are due": lambda it: not FINISHING <= it.phase < LINGERING or _is_owing(it),
    "from LINGERING on: nothing is due or kept": lambda it: it.phase < LINGERING or _holds_nothing(it),
    "a request waits only for another, or for the client": lambda it: (
        not it._waiting or bool(it._pending) or it.is_blocked
    ),
    "bytes are unread only while a request waits": lambda it: not it._unread or bool(it._waiting),
    "an answer is kept only behind one that is due": lambda it: not it._waiting_answer_bytes or bool(it._pending),
    "bytes are unsent only while the client is blocked": lambda it: not it._unsent_bytes or it.is_blocked,
}
"""What is true of every connection between two events."""
