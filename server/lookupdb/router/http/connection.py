"""One HTTP client connection: its reader cuts bytes into requests, and answers leave in the order of the requests.

Every buffer is bounded. At most ``MAX_PIPELINE`` requests are looked up at once; a batch is looked up alone. Further
requests of the same read wait, and nothing more is read until they have begun. None begins while the client does not
read its answers. The worker's budget counts everything beyond the fixed cost of a connection. When it is used up,
incomplete requests and requests behind unanswered ones are refused.

``clients`` has the phases of a connection and everything that ends it.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
from collections import deque
from functools import partial
from time import monotonic_ns
from typing import Final

from lookupdb.credentials import NO_ACCESS_DATA, Denial, Denied
from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.router.clients import (
    FINISHING,
    LINGERING,
    READING,
    RECEIVING,
    Answer,
    ClientFront,
    ConnectionLife,
    ConnectionRefusal,
)
from lookupdb.router.counters import INDEX
from lookupdb.router.http import problems
from lookupdb.router.http import request as target
from lookupdb.router.http.exchanges import (
    NOT_COUNTED,
    BatchExchange,
    ClientConnection,
    Exchange,
    HttpService,
    ImmediateExchange,
    LookupExchange,
    make_exchange,
    make_refusal,
)
from lookupdb.router.http.problems import CLOSE, PERSISTENT, SLICE_BYTES, HttpProblem
from lookupdb.router.http.request import PLAIN_FIELDS, Request, RequestReader, parse_batch
from lookupdb.router.lookups import OVERLOADED

_COUNTERS: Final = {
    Denial.UNAUTHENTICATED: INDEX["requests_unauthenticated"],
    Denial.FORBIDDEN: INDEX["requests_forbidden"],
}


_REQUESTS_REFUSED: Final = INDEX["requests_refused"]
_REFUSALS: Final = {
    ConnectionRefusal.MALFORMED: problems.MALFORMED,
    ConnectionRefusal.LATE: problems.TIMEOUT,
    ConnectionRefusal.OVERLOADED: problems.UNAVAILABLE,
    ConnectionRefusal.TOO_MANY_CONNECTIONS: problems.TOO_MANY_CONNECTIONS,
}


# Requests that repeat an earlier one skip the parser. A client sends the same head with each request: only the key
# changes in a lookup; the body and its length change in a batch. A parser reads from the left. So bytes accepted after
# one target mean the same after any other target of plain characters. The same holds for the bytes after a length. An
# Authorization stays accepted until ``HttpConnection.forget_access``.

_GET: Final = b"GET "
_BEGINNING: Final = _GET + target.LOOKUP_KEY
_BEGINNING_END: Final = _BEGINNING[:-1] + bytes((_BEGINNING[-1] + 1,))
"""The smallest bytes greater than all with this prefix: two comparisons cost half of ``startswith``."""
_REPEATED_KEY_AT: Final = len(_BEGINNING)
_END: Final = b"\r\n\r\n"
_PLAIN: Final = bytes(byte if 0x21 <= byte < 0x7F and byte not in b"%?#" else 0xFF ^ byte for byte in range(256))
"""Maps each character that needs no escape in a path to itself, and all others to something else."""

_POST: Final = b"POST "
_BATCH_FIELDS: Final = PLAIN_FIELDS | {target.CONTENT_TYPE, target.CONTENT_LENGTH}
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)[ \t]*\r\n", re.IGNORECASE)
_MAX_DIGITS: Final = len(str(SLICE_BYTES))
"""Digits of the longest length that is matched: a repeat fits in a slice."""

EAGER_ATTEMPTS: Final = 16
ATTEMPT_EVERY: Final = 256
"""After ``EAGER_ATTEMPTS`` requests in a row without a repeat, only one in this many is remembered."""


class RepeatedLookup:
    """Lookups that share the bytes after the key, and their meaning."""

    __slots__ = ("_connection_field", "_fields", "_key", "_tail")

    def __init__(self, tail: bytes, lookup: LookupExchange) -> None:
        self._tail = tail
        self._key = slice(_REPEATED_KEY_AT, -len(tail))
        self._connection_field = lookup.connection_field
        self._fields = lookup.fields

    def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
        """Return the lookup that ``data`` requests, or None."""
        if data < _BEGINNING or data >= _BEGINNING_END or not data.endswith(self._tail):
            return None
        key = data[self._key]
        if not 0 < len(key) <= MAX_KEY_BYTES or key.translate(_PLAIN) != key:
            return None
        return LookupExchange(connection, self._connection_field, key.decode(), self._fields)


class RepeatedBatch:
    """Consecutive batches whose heads differ only in the Content-Length. Keeps nothing of their bodies."""

    __slots__ = ("_beginning", "_connection_field", "_digits_at", "_digits_end", "_fields", "_tail")

    def __init__(self, beginning: bytes, tail: bytes, batch: BatchExchange) -> None:
        self._beginning = beginning
        self._tail = tail
        self._digits_at = len(beginning)
        self._digits_end = self._digits_at + _MAX_DIGITS + len(tail)
        """The latest place at which the tail can end."""
        self._connection_field = batch.connection_field
        self._fields = batch.fields

    def match(self, data: bytes, connection: ClientConnection) -> BatchExchange | None:
        """Return the batch that ``data`` requests, or None."""
        if not data.startswith(self._beginning):
            return None
        tail_at = data.find(self._tail, self._digits_at, self._digits_end)
        if tail_at < 0:
            return None
        body = data[tail_at + len(self._tail) :]
        limits = connection.limits
        # The parser handles any other way to write the length.
        if data[self._digits_at : tail_at] != b"%d" % len(body) or len(body) > limits.max_body_bytes:
            return None
        try:
            keys, partial = parse_batch(body, limits.max_keys, connection.service.keys_type)
        except HttpProblem:
            return None
        return BatchExchange(
            connection, self._connection_field, keys, self._fields, partial=partial, body_bytes=len(body)
        )


RepeatedRequest = RepeatedLookup | RepeatedBatch
"""``match`` returns an exchange for bytes that are a valid repeat of the request, else None."""


def _recognise_repeats(data: bytes, request: Request, exchange: Exchange, unmatched: int) -> RepeatedRequest | None:
    """Return a recogniser of ``request``, after ``unmatched`` requests without a repeat. None unless it is a lookup or
    batch that keeps the connection open, and all of ``data``. Recognising costs a tenth of a batch."""
    is_worth_it = unmatched <= EAGER_ATTEMPTS or unmatched % ATTEMPT_EVERY == 0
    if request.connection_field is CLOSE or not is_worth_it or exchange.lookups is not exchange.connection.lookups:
        return None
    if isinstance(exchange, LookupExchange):
        if len(data) > problems.MAX_REPEATED_HEAD_BYTES or request.method != b"GET":
            return None
        head = _GET + request.target
        tail = data[len(head) :]
        whole = data.startswith(_BEGINNING) and data.startswith(head) and tail.find(_END) == len(tail) - len(_END)
        return RepeatedLookup(tail, exchange) if whole and PLAIN_FIELDS.issuperset(request.fields) else None
    if isinstance(exchange, BatchExchange):
        head_end = data.find(_END, 0, problems.MAX_REPEATED_HEAD_BYTES)
        if head_end < 0 or not data.startswith(_POST) or not _BATCH_FIELDS.issuperset(request.fields):
            return None
        body_at = head_end + len(_END)
        length = _LENGTH.search(data, 0, body_at)
        if length is not None and body_at + int(length[1]) == len(data):
            return RepeatedBatch(data[: length.start(1)], data[length.end(1) : body_at], exchange)
    return None


class HttpConnection(ConnectionLife):
    """One client connection, which is in ``registry`` until it is lost."""

    __slots__ = (
        "_admitted",
        "_admitted_until",
        "_answered_at_once",
        "_is_advancing",
        "_last_request",
        "_pending",
        "_reader",
        "_repeated",
        "_unmatched",
        "_unread",
        "_waiting",
        "_waiting_answer_bytes",
        "answers",
        "arrived",
        "limits",
        "lookups",
        "service",
    )

    def __init__(self, service: HttpService, registry: ClientFront) -> None:
        super().__init__(service, registry)
        self.service: HttpService = service
        self._pending: deque[Exchange] = deque()
        """Exchanges that have begun, in the order of their answers."""
        self._waiting: deque[Exchange] = deque()
        """Exchanges that were read and have not begun."""
        self._unread = b""
        """Bytes to read once nothing waits."""
        self._waiting_answer_bytes = 0
        """Counted bytes of answers that wait for an earlier one."""
        self.lookups = service.lookups
        self.answers = service.answers
        self.limits = service.limits
        self._reader = RequestReader(
            service.limits.max_body_bytes,
            self._on_request,
            self._on_continue,
            None if service.gatekeeper is None else self._authorize,
            is_traced=service.begin_trace is not None,
        )
        self._admitted: bytes | None = None
        """The last accepted Authorization field; equal ones are accepted without the gatekeeper."""
        self._admitted_until = math.inf
        self._repeated: RepeatedRequest | None = None
        self._unmatched = 0
        """Number of requests since the last repeat."""
        self._last_request: tuple[Request, Exchange] | None = None
        """The request read from the current bytes."""
        self._is_advancing = False
        """True if ``_advance`` is running: what it begins may be answered at once."""
        self._answered_at_once = 0
        """Requests answered on arrival since other connections had their turn."""
        self.arrived = monotonic_ns()
        """When the first byte of the next request arrived. Bytes that wait unread keep that time."""

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed or broken."""
        super().connection_lost(error)
        self._forget_admitted()
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self.phase is not READING and self.phase >= FINISHING:
            return
        is_partial = self._reader.is_partial
        if not (is_partial or self._unread):
            self.arrived = monotonic_ns()
        if len(data) > SLICE_BYTES or self._unread:
            self._read_slices(self._unread + data)
        elif is_partial:
            self._read(data)
            self._last_request = None
        elif (repeated := self._repeated) is not None and (exchange := repeated.match(data, self)) is not None:
            self._unmatched = 0
            if self._pending or self._waiting or self.is_blocked or self.service.draining:
                self._enqueue(exchange)
            else:  # inlines _begin, because nearly all requests come here
                self._pending.append(exchange)
                try:
                    exchange.start()
                except Exception as error:
                    self._fail(exchange, error)
        else:
            self._read(data)
            if self._last_request is not None and not self.service.samples_roots and not self._reader.is_partial:
                self._unmatched += 1
                self._repeated = _recognise_repeats(data, *self._last_request, self._unmatched)
            self._last_request = None
        if self._waiting:
            self._advance()

    def _read(self, data: bytes) -> None:
        """Parse ``data``, and start the clock of an incomplete request."""
        reader = self._reader
        is_new_request = not reader.is_partial
        try:
            reader.feed(data)
        except HttpProblem as problem:
            if self.phase < FINISHING:
                self.counters[_REQUESTS_REFUSED] += 1
                self.refuse(problem)
            return
        if is_new_request and reader.is_partial and not data.strip(b"\r\n"):
            reader.is_partial, reader.held_bytes = False, 0  # empty lines between requests are ignored
        if reader.is_partial and self.phase is READING:
            self._enter(RECEIVING)
            if not self.is_blocked:
                self.deadline = self.service.header_deadline
        if reader.is_partial or self._input_bytes:
            self._count_input()

    def _read_slices(self, data: bytes) -> None:
        self._unread = b""
        at = 0
        while at < len(data) and self.phase < FINISHING and not self._waiting:
            self._read(data[at : at + SLICE_BYTES])
            at += SLICE_BYTES
        self._last_request = None
        if at < len(data) and self.phase < FINISHING:
            self._unread = data[at:]
            self._transport.pause_reading()
        self._count_input()

    def _measure_input(self) -> int:
        return len(self._unread) + (self._reader.held_bytes if self._reader.is_partial else 0)

    def _authorize(self, field: bytes | None) -> HttpProblem | None:
        """Return the problem of a request with this Authorization field, or None if the request is allowed."""
        if field is not None and self._admitted is not None and hmac.compare_digest(field, self._admitted):
            return None
        gatekeeper = self.service.gatekeeper
        assert gatekeeper is not None
        verdict = gatekeeper.judge(field)
        if isinstance(verdict, Denied):
            if verdict.denial is Denial.UNDECIDED:
                return HttpProblem(problems.UNAVAILABLE, verdict.detail, members={"reason": NO_ACCESS_DATA})
            self.counters[_COUNTERS[verdict.denial]] += 1
            if verdict.denial is Denial.FORBIDDEN:
                return HttpProblem(problems.FORBIDDEN, verdict.detail)
            challenge = 'Bearer error="invalid_token"' if verdict.has_token else "Bearer"
            return HttpProblem(problems.UNAUTHENTICATED, verdict.detail, fields={"WWW-Authenticate": challenge})
        self._forget_admitted()  # this also forgets the repeated request, which relied on the previous field
        assert field is not None, "no client is admitted without a token"
        self._admitted, self._admitted_until = field, verdict.until
        self.budget.take(len(field))
        return None

    def forget_access(self, now: float) -> None:
        """Judge the next request again if the access granted may have ended by ``now`` (seconds since 1970).
        ``math.inf`` always forgets."""
        if self._admitted_until <= now:
            self._forget_admitted()

    def _forget_admitted(self) -> None:
        if self._admitted is not None:
            self.budget.release(len(self._admitted))
        self._admitted = self._repeated = None
        self._admitted_until = math.inf

    def _on_request(self, request: Request) -> None:
        if self.phase >= FINISHING:
            return
        is_continued = self.phase is RECEIVING
        if is_continued:
            self._enter(READING)
        if request.connection_field is CLOSE:
            self._end_requests()
        exchange = make_exchange(request, self)
        if is_continued:
            self.arrived = monotonic_ns()  # the requests behind this one arrive now
        if self.service.begin_trace is not None:
            self.service.begin_trace(exchange, request)
        self._last_request = request, exchange
        self._submit(exchange)

    def _on_continue(self) -> None:
        # 100 Continue precedes the answer to the same request.
        answer = partial(self.answer, answer=problems.CONTINUE)
        self._submit(ImmediateExchange(self, PERSISTENT, answer, bodyless=True, histogram=NOT_COUNTED))

    def _submit(self, exchange: Exchange) -> None:
        at_once = self._answered_at_once < problems.MAX_PIPELINE
        if self._pending or self._waiting or self.is_blocked or self.service.draining or not at_once:
            self._enqueue(exchange)
        else:
            self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        pending = self._pending
        pending.append(exchange)
        try:
            exchange.start()
        except Exception as error:
            self._fail(exchange, error)
        if not pending:
            self._answered_at_once += 1
            if self._answered_at_once == problems.MAX_PIPELINE:
                asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Continue after other connections had their turn."""
        self._answered_at_once = 0
        if self._waiting:
            self._advance()

    def _enqueue(self, exchange: Exchange) -> None:
        """Begin ``exchange`` beside unanswered ones, or queue it."""
        if self.budget.used > self.budget.limit and self.phase < FINISHING:
            self._refuse_overloaded()
            return
        self.charge(exchange)
        # While draining, nothing begins before all bytes are read: only the last answer may say that it closes.
        if self._waiting or self.service.draining or not self._may_begin(exchange):
            self._waiting.append(exchange)
            self._transport.pause_reading()
        else:
            self._begin(exchange)

    def charge(self, exchange: Exchange) -> None:
        """Count what ``exchange`` holds until it is answered."""
        if not exchange.charge:
            exchange.charge = exchange.cost()
            self.budget.take(exchange.charge)

    def _may_begin(self, exchange: Exchange) -> bool:
        """Return whether the limits allow ``exchange`` beside the pending ones."""
        pending = self._pending
        if self.is_blocked or self._waiting_answer_bytes > problems.MAX_HELD_ANSWERS_BYTES:
            return False
        if self._answered_at_once >= problems.MAX_PIPELINE:
            return False
        if not pending:
            return True
        most = problems.MAX_PIPELINE if self.budget.used <= self.budget.batch_mark else 1
        return not (len(pending) >= most or exchange.is_alone or pending[-1].is_alone)

    def answer(self, exchange: Exchange, answer: Answer, counter: int | None = None) -> None:
        """Send ``answer`` to ``exchange``, after the answers to earlier requests. ``counter`` counts its status."""
        if exchange.charge:
            self.budget.release(exchange.charge)
            exchange.charge = 0
        pending = self._pending
        if not pending or pending[0] is not exchange:
            if pending:
                exchange.answer, exchange.counter = answer, counter
                self._count_waiting_answer(_size(answer))
            return
        pending.popleft()
        if type(answer) is bytes and not self.is_blocked:
            self._transport.write(answer)  # inlines _write: this is the hot path
            if self.is_blocked:
                self._count_unsent()
        else:
            self._write(answer)
        if exchange.histogram:
            exchange.lookups.observe(exchange.histogram, exchange.arrived, 1, counter)
        if pending or self._waiting or exchange.connection_field is not PERSISTENT or self.phase is not READING:
            self._continue_after(exchange)
        elif not self.is_blocked:
            self.deadline = self.service.idle_deadline

    def _count_waiting_answer(self, size: int) -> None:
        self._waiting_answer_bytes += size
        self.budget.take(size)

    def _continue_after(self, exchange: Exchange) -> None:
        """After the answer to ``exchange``, send those that are ready, begin waiting requests, and close after the
        last."""
        pending = self._pending
        while exchange.connection_field is not CLOSE and pending and (answer := pending[0].answer) is not None:
            exchange = pending.popleft()
            # Do not keep the answer: the lookup core may hold the exchange until its deadline.
            exchange.answer = None
            self._count_waiting_answer(-_size(answer))
            self._write(answer)
            if exchange.histogram:
                exchange.lookups.observe(exchange.histogram, exchange.arrived, 1, exchange.counter)
        if exchange.connection_field is CLOSE:
            self._end_answers()
            return
        self._advance()
        if pending or self._waiting:
            return
        if FINISHING <= self.phase < LINGERING:
            self._end_answers()
        elif self.phase is READING and not self.is_blocked:
            self.deadline = self.service.idle_deadline

    def _advance(self) -> None:
        """Begin waiting requests within the limits; read on once nothing waits."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while True:
                waiting = self._waiting
                while waiting and self.phase < LINGERING and self._may_begin(waiting[0]):
                    self._begin(waiting.popleft())
                if waiting or self.is_blocked or self.phase >= LINGERING:
                    return
                if not self._unread:
                    break
                self._read_slices(self._unread)
        finally:
            self._is_advancing = False
        if not self.is_half_closed:
            self._transport.resume_reading()
        elif not self._finish_input():
            self._end_answers()

    def choose_connection_field(self, exchange: Exchange) -> bytes:
        """Return the ``Connection`` field for ``exchange``. While draining, the last answer closes the connection."""
        if (
            self.service.draining
            and not self._waiting
            and not self._unread
            and not self._reader.is_partial
            and len(self._pending) == 1
            and self._pending[0] is exchange
        ):
            exchange.connection_field = CLOSE
        return exchange.connection_field

    def refuse(self, problem: HttpProblem) -> None:
        """Answer with ``problem`` in order, and close."""
        if self.phase < FINISHING:
            self._end_requests()
        self._submit(make_refusal(self, CLOSE, problem, bodyless=False))
        self._advance()

    def refuse_input(self, refusal: ConnectionRefusal, detail: str) -> None:
        """Answer with a problem in order, and close."""
        members: dict[str, object] = {"reason": OVERLOADED.reason} if refusal is ConnectionRefusal.OVERLOADED else {}
        self.refuse(HttpProblem(_REFUSALS[refusal], detail, members=members))

    def encode_tls_refusal(self) -> bytes:
        """Return the answer to a client that does not use TLS."""
        problem = HttpProblem(problems.MALFORMED, "this port speaks TLS: use https")
        return b"".join(self.answers.encode_problem(problem, CLOSE))

    def _is_due(self) -> bool:
        return bool(self._pending or self._waiting)

    def _has_unread(self) -> bool:
        return bool(self._unread)

    def _has_part(self) -> bool:
        return self._reader.is_partial

    def _is_held_up(self) -> bool:
        return bool(self._waiting)

    def _drop(self) -> None:
        """Drop pending and waiting requests. Lookups that have begun stay counted until they are answered."""
        for exchange in self._pending:
            exchange.answer = None
            exchange.abandon()
        self._pending.clear()
        for exchange in self._waiting:
            self.budget.release(exchange.charge)
            exchange.charge = 0
        self._waiting.clear()
        self._unread = b""
        self.budget.release(self._waiting_answer_bytes + self._input_bytes)
        self._waiting_answer_bytes = self._input_bytes = 0


def _size(answer: Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else sum(map(len, answer))
