"""``python -m lookupdb.load.sender``: the open loop of one process. Requests are sent when they are due, however slowly
others are answered.

A request that is due takes an idle connection, or a new one while fewer than ``max_in_flight`` are open. Otherwise it
waits for one, while its latency counts from the intended time. After half of the timeout it counts as not sent: it
could hardly be answered in time, and would delay another request.

The plan arrives as a line on standard input. The sender opens connections, reports that it is ready, reads the instant
at which to begin, and reports every quarter of a second on standard output. It stops when standard input ends, so that
it never outlives its parent. It ignores Ctrl-C, which its parent handles.

An unavailable key is never counted as missing, and an ambiguous answer is invalid.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import signal
import ssl
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import httptools
import orjson
import uvloop

from lookupdb.load.plan import KeyChooser, SenderPlan, Tally, add_label, clean, intended_times, make_requests

MAX_KEPT_BYTES: Final = 256 << 20  # bytes of one sender's unfinished answers
READ_BYTES: Final = 256_000  # uvloop's read size: after a full piece, more may have arrived
QUANTUM_SECONDS: Final = 0.0001  # seconds between two wakes: requests due in between are sent together
SWEEP_SECONDS: Final = 0.05  # seconds between two searches for late requests
REPORT_SECONDS: Final = 0.25
STOP_SECONDS: Final = 2.0  # seconds for pending requests when the load is stopped early
_MAX_BURST: Final = 1000  # requests sent before answers are read
_FIRST_CONNECTIONS: Final = 16  # connections opened before the first request
_MAX_BACKLOG: Final = 1_000_000  # waiting requests; further ones count as unsent at once
_SENDABLE_SHARE: Final = 0.5  # share of the timeout for which a request may wait for a connection
_MAX_UNREAD_BYTES: Final = 64 << 20  # bytes of unread reports
_MAX_LABEL: Final = 60
_MICROSECONDS: Final = 1e6
_SURPLUS: Final = "unasked data"
_GENERATION_FIELD: Final = b"lookupdb-generation"
_CONNECT_ERRORS: Final[dict[type[Exception], str]] = {
    TimeoutError: "not connected in time",
    ConnectionRefusedError: "refused",
    ssl.SSLError: "no TLS",
    ConnectionError: "reset",
    Exception: "not connected",
}


class AnswerVerdict(NamedTuple):
    """The meaning of an answer: ``answered`` or one of ``FAILURE_KINDS``, its label, and its counts of keys."""

    kind: str
    label: str = ""
    found: int = 0
    missing: int = 0
    unavailable: int = 0


_FOUND: Final = AnswerVerdict("answered", found=1)
_MISSING: Final = AnswerVerdict("answered", missing=1)


def judge_single(status: int, generation: bytes, body: bytes, keys: int) -> AnswerVerdict:
    """Judge the answer to a GET. ``generation`` is its header field, empty if there is none."""
    if status == 404 and generation and b"/problems/missing" in body:
        return _MISSING
    if status != 200:
        return _judge_refusal(status, body, keys)
    return _FOUND if generation else AnswerVerdict("invalid", "200 without a generation")


def judge_batch(status: int, generation: bytes, body: bytes, keys: int) -> AnswerVerdict:
    """Judge the answer to a POST of ``keys`` different keys."""
    if status != 200:
        return _judge_refusal(status, body, keys)
    if not generation:
        return AnswerVerdict("invalid", "200 without a generation")
    try:
        answer = orjson.loads(body)
        found, missing, unavailable = map(len, (answer["found"], answer["missing"], answer.get("unavailable", ())))
    except (ValueError, KeyError, TypeError, AttributeError):
        return AnswerVerdict("invalid", "200 that is not a batch's answer")
    if found + missing + unavailable != keys:  # an omitted key is not a missing key
        return AnswerVerdict("invalid", "200 without all keys")
    if unavailable:
        return AnswerVerdict("unavailable", "Partial", found, missing, unavailable)
    return AnswerVerdict("answered", "", found, missing)


def _judge_refusal(status: int, body: bytes, keys: int) -> AnswerVerdict:
    try:
        problem = orjson.loads(body)
        name, reason = problem["type"].rpartition("/")[2], str(problem.get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        name = reason = ""
    if status == 503 and name == "unavailable":
        return AnswerVerdict("unavailable", clean(reason[:_MAX_LABEL]) or "Unsaid", unavailable=keys)
    return AnswerVerdict("httpErrors", f"{status} {clean(name[:_MAX_LABEL])}".rstrip())


class LoadConnection(asyncio.Protocol):
    """A kept-alive connection with one request at a time; ``intended`` and ``keys`` belong to its owner."""

    intended = 0.0
    keys = 0

    def __init__(self, owner: Sender) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: tuple[int, bytes, bytes] | None = None
        """The whole answer. It is passed on once all arrived bytes are read: the owner may then send its next request,
        which no earlier byte can answer."""
        self._generation = b""
        self._body: list[bytes] = []
        self._kept = 0
        self._why = ""
        self.is_open = self.is_busy = False

    def connection_made(self, transport: Any) -> None:
        """Take the open connection; called by asyncio."""
        self._transport, self._write = transport, transport.write
        self.is_open = True

    def send(self, request: bytes) -> None:
        """Send a request; no other may be pending."""
        self.is_busy = True
        self._write(request)

    def abort(self, why: str) -> None:
        """Close the connection at once. The owner gets ``why`` afterwards."""
        self.is_open = False
        self._answer = None
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if not self.is_busy or self._answer is not None:
            self.abort(_SURPLUS)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort("not HTTP")
        if self._answer is None:
            return
        if len(data) < READ_BYTES:
            self._hand_over()
        else:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._hand_over)  # the loop reads sockets in between

    def on_message_begin(self) -> None:  # noqa: D102
        if self._answer is not None:
            self.abort(_SURPLUS)

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: D102
        if len(name) == len(_GENERATION_FIELD) and name.lower() == _GENERATION_FIELD:
            self._generation = value

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._kept += len(body)
        self._owner.kept_bytes += len(body)
        self._body.append(body)
        if self._owner.kept_bytes > MAX_KEPT_BYTES:
            self.abort("an answer beyond the memory limit")

    def on_message_complete(self) -> None:  # noqa: D102
        if self._why or (status := self._parser.get_status_code()) < 200:
            return
        self._answer = status, self._generation, b"".join(self._body)
        self._generation = b""
        self._release()
        if not self._parser.should_keep_alive() and self._transport is not None:
            self.is_open = False
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: D102
        self.is_open = False
        self._release()
        self._hand_over()
        self._owner.lose(self, self._why or ("reset" if error else "closed"))

    def _hand_over(self) -> None:
        if (answer := self._answer) is not None:
            self._answer = None
            self.is_busy = False
            self._owner.take_answer(self, *answer)

    def _release(self) -> None:
        self._owner.kept_bytes -= self._kept
        self._kept = 0
        self._body = []


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "seconds", "nanoseconds")]


class ClockTimer:
    """Call ``wake`` at a set instant of time.monotonic(). An event loop's own timers are a millisecond late, which is
    longer than a lookup."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")
        self._loop, self._wake, self._setting = loop, wake, _Itimerspec()
        loop.add_reader(self._descriptor, self._expire)

    def set(self, instant: float) -> None:
        """Wake at ``instant``, or at once if it has passed. This replaces an earlier setting."""
        self._setting.seconds = int(instant)
        self._setting.nanoseconds = max(1, int(instant % 1 * 1e9))
        self._libc.timerfd_settime(self._descriptor, 1, ctypes.byref(self._setting), None)  # 1: an absolute time

    def close(self) -> None:
        """Close the timer."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _expire(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # set again meanwhile
            return
        self._wake()


class Sender:
    """Send the requests of a SenderPlan; owns the connections."""

    def __init__(self, plan: SenderPlan, context: ssl.SSLContext | None) -> None:
        load = plan.load
        source = random.Random(f"keys {load.seed} {plan.process}")  # noqa: S311 - not a secret
        chooser = KeyChooser(len(plan.keys), load.distribution, load.hit_ratio, source)
        self._plan, self._context = plan, context
        self._make = make_requests(plan.target, plan.keys, chooser, load.batch, partial=load.partial)
        self._times = intended_times(load.profile, load.arrivals, load.seed, plan.process, load.processes)
        self._judge = judge_single if load.batch == 1 else judge_batch
        self._timeout = load.timeout
        self.tally = Tally()
        self._start = self._measured = self._due = 0.0
        self._idle: deque[LoadConnection] = deque()
        self._all: dict[LoadConnection, None] = {}
        self._backlog: deque[float] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self.kept_bytes = 0
        self._is_over = False  # no more requests
        self._ended = asyncio.Event()

    async def open_first(self) -> None:
        """Open some connections for the first requests. A failure here shows again in the requests."""
        for _ in range(min(_FIRST_CONNECTIONS, self._plan.max_in_flight)):
            self._open()
        if self._opening:
            await asyncio.wait(self._opening)

    async def run(self, start: float) -> None:
        """Send everything from ``start`` on, by time.monotonic(), and return when all requests have ended."""
        self._start, self._measured = start, start + self._plan.load.warmup
        self._timer = ClockTimer(asyncio.get_running_loop(), self._send_due)
        sweeper = asyncio.ensure_future(self._sweep())
        try:
            self._advance()
            self._timer.set(self._due)
            await self._ended.wait()
        finally:
            self._timer.close()
            sweeper.cancel()
            for task in self._opening:
                task.cancel()
            for connection in list(self._all):
                connection.abort("")

    def stop(self, patience: float) -> None:
        """Stop sending. Pending requests get ``patience`` seconds."""
        self._is_over = True
        self._timeout = min(self._timeout, patience)
        now = time.monotonic()
        while self._backlog:
            intended = self._backlog.popleft()
            self._count_wait(intended, now - intended, "unsent")
        self._check_end()

    def _send_due(self) -> None:
        now = time.monotonic()
        for _ in range(_MAX_BURST):
            if self._is_over or self._due > now:
                break
            self._dispatch(self._due, now)
            self._advance()
        if not self._is_over:
            self._timer.set(max(self._due, now + QUANTUM_SECONDS))

    def _advance(self) -> None:
        instant = next(self._times, None)
        if instant is None:
            self._is_over = True
            self._check_end()
        else:
            self._due = self._start + instant

    def _dispatch(self, intended: float, now: float) -> None:
        is_measured = intended >= self._measured
        if is_measured:
            self.tally.scheduled += 1
            self.tally.lags.append(int((now - intended) * _MICROSECONDS))
        while self._idle:
            connection = self._idle.popleft()
            if connection.is_open:
                self._send(connection, intended)
                return
        if len(self._all) + len(self._opening) < self._plan.max_in_flight:
            self._open()
        elif is_measured:
            self.tally.held_back += 1
        if len(self._backlog) < _MAX_BACKLOG:
            self._backlog.append(intended)
        else:
            self._count_wait(intended, self._timeout, "unsent")

    def _send(self, connection: LoadConnection, intended: float) -> None:
        request, connection.keys = self._make()
        connection.intended = intended
        connection.send(request)

    def _open(self) -> None:
        task = asyncio.ensure_future(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        target, connection = self._plan.target, LoadConnection(self)
        name = target.host if self._context else None
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, target.host, target.port, ssl=self._context, server_hostname=name
                )
        except (OSError, TimeoutError) as error:
            if self._backlog:  # the longest-waiting request fails with it
                label = next(label for kind, label in _CONNECT_ERRORS.items() if isinstance(error, kind))
                self._count_failure(self._backlog.popleft(), "broken", label)
        task = asyncio.current_task()
        assert task is not None, "this is one"
        self._opening.discard(task)
        if connection.is_open:
            self._all[connection] = None
            self._use(connection)
        else:
            self._open_for_backlog()
            self._check_end()

    def _open_for_backlog(self) -> None:
        """Open connections for waiting requests, some at a time."""
        room = self._plan.max_in_flight - len(self._all) - len(self._opening)
        for _ in range(min(room, len(self._backlog) - len(self._opening), _FIRST_CONNECTIONS)):
            self._open()

    def _use(self, connection: LoadConnection) -> None:
        """Send the longest-waiting request, or keep ``connection`` idle."""
        if not connection.is_open:
            self._open_for_backlog()
        elif self._backlog:
            self._send(connection, self._backlog.popleft())
        else:
            self._idle.append(connection)

    def take_answer(self, connection: LoadConnection, status: int, generation: bytes, body: bytes) -> None:
        """Count the answer to the request of ``connection``, and reuse the connection if it ``is_open``."""
        now, tally = time.monotonic(), self.tally
        if connection.intended >= self._measured:
            verdict = self._judge(status, generation, body, connection.keys)
            tally.found += verdict.found
            tally.missing += verdict.missing
            tally.unavailable_keys += verdict.unavailable
            if verdict.kind == "answered":
                tally.answered += 1
                tally.latencies.append(int((now - connection.intended) * _MICROSECONDS))
            else:
                self._count_failure(connection.intended, verdict.kind, verdict.label)
            if generation and verdict.kind in ("answered", "unavailable"):
                tally.count_generation(generation.decode("latin-1")[:100], now - self._measured)
                tally.mixed += b"," in generation
        self._use(connection)
        if self._is_over:
            self._check_end()

    def lose(self, connection: LoadConnection, label: str) -> None:
        """Forget a closed ``connection``; a pending request counts as failed."""
        self._all.pop(connection, None)
        if connection.is_busy:
            connection.is_busy = False
            self._count_failure(connection.intended, "broken", label)
        self._open_for_backlog()
        self._check_end()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            while self._backlog and self._backlog[0] <= now - self._timeout * _SENDABLE_SHARE:
                self._count_wait(self._backlog.popleft(), self._timeout, "unsent")
            for connection in list(self._all):
                if connection.is_busy and connection.intended <= now - self._timeout:
                    connection.is_busy = False
                    self._count_wait(connection.intended, now - connection.intended, "timeouts")
                    connection.abort("timeout")
            self._check_end()

    def _count_wait(self, intended: float, seconds: float, kind: str) -> None:
        """Count a failed request, for which a user would have waited ``seconds``."""
        if intended >= self._measured:
            setattr(self.tally, kind, getattr(self.tally, kind) + 1)
            self.tally.latencies.append(int(seconds * _MICROSECONDS))

    def _count_failure(self, intended: float, kind: str, label: str) -> None:
        if intended >= self._measured:
            add_label(self.tally.failures[kind], label)
            self.tally.failure_latencies.append(int((time.monotonic() - intended) * _MICROSECONDS))

    def _check_end(self) -> None:
        if self._is_over and not self._backlog and not any(connection.is_busy for connection in self._all):
            self._ended.set()


async def _run() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_by_bug)
    orders = asyncio.StreamReader(limit=1 << 30)  # a plan holds all keys
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), os.fdopen(0, "rb", closefd=False))
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(1, "wb", closefd=False))
    if not (line := await orders.readline()):
        return
    plan = SenderPlan.from_line(line)
    sender = Sender(plan, ssl.create_default_context(cafile=plan.ca_file) if plan.target.is_encrypted else None)
    gc.freeze()
    gc.disable()  # requests make no reference cycles, and a collection over a million keys is a pause
    await sender.open_first()
    transport.write(b'{"ready":true}\n')
    if not (line := await orders.readline()):
        return
    measured = float(line) + plan.load.warmup
    running, stopping = asyncio.ensure_future(sender.run(float(line))), asyncio.ensure_future(orders.read())
    stopping.add_done_callback(lambda _: sender.stop(STOP_SECONDS))
    busy, begin = time.process_time(), time.monotonic() - measured
    while not running.done():
        await asyncio.wait((running,), timeout=REPORT_SECONDS - begin % REPORT_SECONDS)
        tally, sender.tally = sender.tally, Tally()
        tally.busy, busy = time.process_time() - busy, time.process_time()
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            raise BufferError("nobody reads the reports")
        transport.write(orjson.dumps({"begin": begin, "tally": tally}) + b"\n")
        begin = time.monotonic() - measured
    stopping.cancel()
    await running
    transport.write(b'{"ended":true}\n')
    transport.close()


def _end_by_bug(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> NoReturn:
    """Exit on an unhandled error, which would repeat with each request and lose requests."""
    print(context["message"], file=sys.stderr)
    if "exception" in context:
        traceback.print_exception(context["exception"])
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_run())
