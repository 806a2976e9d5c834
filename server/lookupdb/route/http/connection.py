"""One client connection: what comes in goes to the reader, answers go out in the order of the requests.

Every buffer is bounded: at most ``MAX_PIPELINE`` requests are looked up at once, a batch alone; those that came in the
same read wait, and nothing more is read until they have begun; none begins while the client does not take its answers.
What is kept beyond what every connection costs is counted in the worker's budget; where that is used up, a request that
has not come whole, or that came before an earlier one was answered, is refused.

A connection has one deadline, which the front's sweep looks at; what is overdue follows from the state it is in.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from lookupdb.route.counters import INDEX
from lookupdb.route.http import problems
from lookupdb.route.http.answers import CLOSE, STAY
from lookupdb.route.http.exchanges import Answer, Exchange, Interim, Refusal
from lookupdb.route.http.limits import HIGH_WATER_BYTES, MAX_HELD_ANSWERS_BYTES, MAX_PIPELINE, SLICE_BYTES
from lookupdb.route.http.problems import HttpProblem
from lookupdb.route.http.repeated import RepeatedRequest, recognise_repeats
from lookupdb.route.http.request import Request, RequestReader
from lookupdb.route.http.routes import exchange_for
from lookupdb.route.lookups.waiters import OVERLOADED

if TYPE_CHECKING:
    from lookupdb.route.http.front import HttpFront

_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_CLIENTS_TIMED_OUT: Final = INDEX["clients_timed_out"]
_OVERLOADED: Final = INDEX["requests_overloaded"]


class HttpConnection(asyncio.Protocol):
    """One client connection of ``front``, which makes it and knows it until it is lost."""

    __slots__ = (
        "_advancing",
        "_blocked",
        "_closing",
        "_ended",
        "_half_closed",
        "_held",
        "_input",
        "_last",
        "_pending",
        "_reader",
        "_receiving",
        "_repeated",
        "_transport",
        "_unread",
        "_unsent",
        "_waiting",
        "answers",
        "budget",
        "counts",
        "deadline",
        "front",
        "limits",
        "lookups",
    )

    def __init__(self, front: HttpFront) -> None:
        self.front = front
        self.lookups = front.lookups
        self.budget = front.budget
        self.answers = front.answers
        self.counts = front.counts
        self.limits = front.limits
        self.deadline = math.inf
        self._reader = RequestReader(front.limits.max_body_bytes, self._received, self._continue)
        self._pending: deque[Exchange] = deque()
        """Begun, in order; answered once all before them are."""
        self._waiting: deque[Exchange] = deque()
        """Read, not begun."""
        self._repeated: RepeatedRequest | None = None
        """The last request, should it come again for another key."""
        self._last: tuple[Request, Exchange] | None = None
        """Read, while the reader is at it."""
        self._receiving = False
        """A request has begun and is not whole: ``deadline`` is when it must be."""
        self._blocked = False
        """The client does not take its answers: ``deadline`` is when it must have."""
        self._ended = False
        """No further request will be read."""
        self._closing = False
        """The last answer is sent: ``deadline`` is when the connection is cut off."""
        self._half_closed = False
        """The client sends no more."""
        self._advancing = False
        self._unread = b""
        """Has come, and is read once nothing waits."""
        self._input = 0
        """Bytes counted for what has come and is no whole request."""
        self._held = 0
        """Bytes counted for answers that wait for an earlier one."""
        self._unsent = 0
        """Bytes counted for answers that the client does not take."""

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.deadline = self.front.idle_deadline
        self.front.admit(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed, or broken: answers that are still due have nowhere to go."""
        self.front.forget(self)
        self._reader.close()
        self._ended = self._closing = True
        self._drop()
        self.budget.give(self._unsent)
        self._unsent = 0

    def data_received(self, data: bytes) -> None:
        """The client sent something."""
        if self._ended:
            return
        if len(data) > SLICE_BYTES or self._unread:
            self._read_slices(self._unread + data)
            if self._waiting:
                self._advance()
            return
        reader = self._reader
        begins = not reader.partial
        if begins and self._repeated is not None:
            lookup = self._repeated.lookup(data, self)
            if lookup is not None:
                self._submit(lookup)
                if self._waiting:
                    self._advance()
                return
        self._read(data)
        if begins and self._last is not None and not reader.partial and not self._receiving:
            self._repeated = recognise_repeats(data, *self._last)
        self._last = None
        if self._waiting:
            self._advance()

    def _read(self, data: bytes) -> None:
        """Have the reader read ``data``."""
        reader = self._reader
        try:
            reader.feed(data)
        except HttpProblem as problem:
            self.counts[_REQUESTS_REFUSED] += 1
            self.refuse(problem)
            return
        if reader.partial:
            self._time_request(data)
        if reader.partial or self._input:
            self._count_input()

    def _read_slices(self, data: bytes) -> None:
        """Read ``data`` until requests wait; the rest is kept unread until they have begun."""
        self._unread = b""
        at = 0
        while at < len(data) and not self._ended and not self._waiting:
            self._read(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._last = None
        if at < len(data) and not self._ended:
            self._unread = data[at:]
            self._transport.pause_reading()
        self._count_input()

    def _count_input(self) -> None:
        """Count what has come and is no whole request; refuse it when the budget is used up."""
        size = len(self._unread) + (self._reader.held if self._reader.partial else 0)
        self.budget.take(size - self._input)
        more = size > self._input
        self._input = size
        if more and self.budget.used > self.budget.limit and not self._ended:
            self._refuse_overloaded()

    def eof_received(self) -> bool:
        """The client sends no more, and may still wait for answers: it gets them before the connection closes."""
        self._half_closed = True
        if self._closing:
            return False
        return bool(self._unread) or self._end_requests()

    def _end_requests(self) -> bool:
        """All that the client sent is read; whether answers are due."""
        if self._reader.partial and not self._ended:
            self.counts[_REQUESTS_REFUSED] += 1
            self.refuse(HttpProblem(problems.MALFORMED, "the connection ended in the middle of a request"))
        elif not self._pending and not self._waiting:
            return False
        self._ended = True
        return True

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._blocked = True
        self._count_unsent()
        self.deadline = self.front.write_deadline
        self._transport.pause_reading()

    def _count_unsent(self) -> None:
        size = self._transport.get_write_buffer_size()
        self.budget.take(size - self._unsent)
        self._unsent = size

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._blocked = False
        self.budget.give(self._unsent)
        self._unsent = 0
        front = self.front
        if self._closing:
            self.deadline = front.linger_deadline
        else:
            self.deadline = front.header_deadline if self._receiving else front.idle_deadline
        self._advance()

    # What the reader calls

    def _received(self, request: Request) -> None:
        if self._ended:
            return
        self._receiving = False
        if request.line is CLOSE:
            self._ended = True
        exchange = exchange_for(request, self)
        self._last = request, exchange
        self._submit(exchange)

    def _continue(self) -> None:
        self._submit(Interim(self, STAY, bodyless=True))

    # Requests in, answers out

    def _submit(self, exchange: Exchange) -> None:
        if self._pending or self._waiting or self._blocked or self.front.draining:
            self._enqueue(exchange)
        else:
            self._pending.append(exchange)
            exchange.start()

    def _enqueue(self, exchange: Exchange) -> None:
        """``exchange`` came before an earlier one was answered: begin it beside that, or have it wait."""
        if self.budget.used > self.budget.limit and not self._ended:
            self._refuse_overloaded()
            return
        self.charge(exchange)
        # While draining nothing begins before all that came with it is read: the last answer is to say so.
        if self._waiting or self.front.draining or not self._may_begin(exchange):
            self._waiting.append(exchange)
            self._transport.pause_reading()
        else:
            self._pending.append(exchange)
            exchange.start()

    def charge(self, exchange: Exchange) -> None:
        """Count what ``exchange`` holds until it is answered."""
        if not exchange.charge:
            exchange.charge = exchange.cost()
            self.budget.take(exchange.charge)

    def _may_begin(self, exchange: Exchange) -> bool:
        """Whether the bounds allow ``exchange`` to be looked up beside those that are."""
        pending = self._pending
        if self._blocked or self._held > MAX_HELD_ANSWERS_BYTES:
            return False
        return not pending or not (len(pending) >= MAX_PIPELINE or exchange.is_alone or pending[-1].is_alone)

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """``answer`` is the one to ``exchange``: send it when it is its turn."""
        if exchange.charge:
            self.budget.give(exchange.charge)
            exchange.charge = 0
        pending = self._pending
        if not pending or pending[0] is not exchange:
            if pending:
                exchange.answer = answer
                self._hold(_size(answer))
            return
        pending.popleft()
        if type(answer) is bytes and not self._blocked:
            self._transport.write(answer)  # as _write does: this is the hot path
            if self._blocked:
                self._count_unsent()
        else:
            self._write(answer)
        if pending or self._waiting or exchange.line is not STAY or self._ended:
            self._after(exchange)
        elif not self._receiving and not self._blocked:
            self.deadline = self.front.idle_deadline

    def _write(self, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self._transport.write(answer)
        else:
            self._transport.writelines(answer)
        if self._blocked:
            self._count_unsent()

    def _hold(self, size: int) -> None:
        """``size`` bytes more of answers wait for an earlier one."""
        self._held += size
        self.budget.take(size)

    def _after(self, exchange: Exchange) -> None:
        """``exchange``'s answer is sent, and there is more to do."""
        pending = self._pending
        while exchange.line is not CLOSE and pending and (answer := pending[0].answer) is not None:
            exchange = pending.popleft()
            # Not kept beyond this: the lookup core may know the exchange for as long as a deadline.
            exchange.answer = None
            self._hold(-_size(answer))
            self._write(answer)
        if exchange.line is CLOSE:
            self._close()
            return
        self._advance()
        if pending or self._waiting:
            return
        if self._ended:
            self._close()
        elif not self._receiving and not self._blocked:
            self.deadline = self.front.idle_deadline

    def _advance(self) -> None:
        """Begin what waits, as far as the bounds allow; read on once nothing waits."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while True:
                self._begin_waiting()
                if self._waiting or self._blocked or self._closing:
                    return
                if not self._unread:
                    break
                self._read_slices(self._unread)
        finally:
            self._advancing = False
        if not self._half_closed:
            self._transport.resume_reading()
        elif not self._end_requests():
            self._close()

    def _begin_waiting(self) -> None:
        waiting = self._waiting
        while waiting and not self._closing and self._may_begin(waiting[0]):
            exchange = waiting.popleft()
            self._pending.append(exchange)
            exchange.start()

    def line_of(self, exchange: Exchange) -> bytes:
        """The ``Connection`` field of ``exchange``'s answer; while draining, the last answer due closes."""
        if (
            self.front.draining
            and not self._waiting
            and not self._unread
            and not self._reader.partial
            and len(self._pending) == 1
            and self._pending[0] is exchange
        ):
            exchange.line = CLOSE
        return exchange.line

    # Ends

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem`` in its turn, and close."""
        self._ended = True
        self._receiving = False
        self._submit(Refusal(self, CLOSE, problem, bodyless=False))
        self._advance()

    def _refuse_overloaded(self) -> None:
        """The budget is used up: no further request of this connection is read."""
        self.counts[_OVERLOADED] += 1
        self.refuse(HttpProblem(problems.UNAVAILABLE, OVERLOADED.detail, members={"reason": OVERLOADED.reason}))

    def _drop(self) -> None:
        """Forget what is due, and what has come. Lookups that have begun are counted until they are answered."""
        for exchange in self._pending:
            exchange.answer = None
            exchange.abandon()
        for exchange in self._waiting:
            self.budget.give(exchange.charge)
            exchange.charge = 0
        self._pending.clear()
        self._waiting.clear()
        self._unread = b""
        self.budget.give(self._held + self._input)
        self._held = self._input = 0

    def _close(self) -> None:
        """Say that nothing more will be sent, and drop what the client still sends until it closes too."""
        self._ended = self._closing = True
        self._drop()
        if not self._blocked:
            self.deadline = self.front.linger_deadline
        if self._half_closed:
            self._transport.close()
        else:
            self._transport.resume_reading()
            self._transport.write_eof()

    def _time_request(self, data: bytes) -> None:
        """Start or stop the clock of a request that has not come whole."""
        reader = self._reader
        if not self._receiving and not data.strip(b"\r\n"):
            reader.partial = False
        if reader.partial and not self._receiving and not self._blocked:
            self.deadline = self.front.header_deadline
        self._receiving = reader.partial

    def overdue(self) -> None:
        """The deadline has passed: end the connection, unless what it waits for is a lookup."""
        if self._blocked:
            self.counts[_CLIENTS_TIMED_OUT] += 1
            self.abort()
        elif self._closing and self._transport.get_write_buffer_size():
            self._blocked = True
            self.deadline = self.front.write_deadline
        elif self._closing:
            self.abort()
        elif self._receiving and not self._ended and self._waiting:
            self.deadline = self.front.header_deadline  # what has come is not read yet
        elif self._receiving and not self._ended:
            self.counts[_CLIENTS_TIMED_OUT] += 1
            seconds = self.limits.header_timeout_seconds
            self.refuse(HttpProblem(problems.TIMEOUT, f"no whole request within {seconds:g} seconds"))
        elif not self._pending and not self._waiting:
            self._leave()

    def finish(self) -> None:
        """Close if the connection is idle. Otherwise its last answer will, while the front is draining."""
        if not (self._pending or self._waiting or self._reader.partial or self._unread or self._closing):
            self._leave()

    def _leave(self) -> None:
        """Close an idle connection, on which nothing is due and nothing is coming."""
        self._ended = self._closing = True
        self.deadline = self.front.linger_deadline
        self._transport.close()

    def close(self) -> None:
        """Close as soon as what is answered is sent, whatever the client still sends."""
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection off, whatever is due."""
        self._ended = self._closing = True
        self._drop()
        self._transport.abort()


def _size(answer: Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else sum(map(len, answer))
