"""Batches and connections of a client for threads and greenlets.

A lookup of one key joins a ``Combiner``. It either leads a batch, and requests its own key or all waiting keys, or
waits for its part of another leader's answer. A leader sends its request by ``RouterLink.exchange``, which takes a
``RouterConnection`` from the ``ConnectionPool``, in turn, and returns it afterwards.

A caller may be interrupted anywhere, by Ctrl-C, a signal handler that raises, or a timeout of gevent. It leaves nothing
behind: its claim is in a ``WeakSet``, so it no longer counts once it is garbage-collected.

Locks to wait on are created for each wait, through their module, so that a client also works if gevent has replaced
them meanwhile.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from lookupdb.client import core
from lookupdb.client.core import ClientCore, SharedAnswer
from lookupdb.client.settings import MAX_ANSWER_BYTES, PROCESS, ClientSettings, TlsContexts
from lookupdb.client.wire import KeyAnswer, Render, Response, ResponseReader

if TYPE_CHECKING:
    import ssl

_RECORD_BYTES: Final = 1 << 14  # the largest TLS record, which is the most that one read returns
_IDLE_SECONDS: Final = 0.25
"""A connection that was idle for longer is checked before its use: the router may have closed it."""
_TOLERANCE: Final = 0.01
"""Relative difference of timeouts below which the socket's is not changed, to save a system call."""
_LOOK_SECONDS: Final = 0.25
"""Seconds after which a caller looks for a free connection itself: the last user may have been interrupted."""


class RouterLink:
    """The connections and batches of a client in this process; a forked process gets its own."""

    def __init__(self, settings: ClientSettings) -> None:
        self.core = ClientCore(settings)
        self.combiners: dict[str | None, Combiner] = {}
        self._pool = ConnectionPool(settings)
        self._epoch = PROCESS.epoch
        self._is_closed = False

    def enter(self) -> float:
        """Start again if the process was forked. Return the deadline of a call. Raises RuntimeError if the client is
        closed."""
        if self._epoch is not PROCESS.epoch:
            with PROCESS.lock:
                if self._epoch is not PROCESS.epoch:
                    self._pool.abandon()
                    self._pool = ConnectionPool(self.core.settings)
                    self.combiners = {}
                    self.core.begin()
                    self._epoch = PROCESS.epoch  # set last: another thread that sees it uses all of the above
        if self._is_closed:
            raise RuntimeError("this client is closed")
        return time.monotonic() + self.core.settings.timeout

    def exchange(
        self, render: Render, token: bytes, deadline: float, answer_by: float | None, *, is_fresh: bool
    ) -> Response:
        """Send the request that ``render`` makes, over a new connection if ``is_fresh``, and return the answer. Raises
        ConnectionFailure, InvalidAnswer."""
        pool = self._pool
        lease = ConnectionLease()
        try:
            connection = pool.acquire(lease, deadline, is_fresh=is_fresh)
            fields = self.core.render_fields(token, time.monotonic(), deadline, answer_by)
            return connection.exchange(render(fields), deadline)
        finally:
            pool.release(lease)

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        self._pool.close()


class Seat:
    """Held by a caller while it leads a batch; it vanishes with the caller."""

    __slots__ = ("__weakref__",)


class RouterConnection:
    """One connection, for one request after another, by one thread at a time."""

    __slots__ = ("_idle_since", "_most_at_once", "_reader", "_settings", "_socket", "_timeout", "_was_used", "is_open")

    def __init__(self, settings: ClientSettings, tls: TlsContexts, deadline: float) -> None:
        """Connect. Raises ConnectionFailure, InvalidAnswer if the server does not speak TLS, UsageError for unusable
        certificates."""
        self._settings = settings
        self._socket = _connect(settings, tls, deadline)
        self._most_at_once = _RECORD_BYTES if settings.address.is_tls else core.PIECE_BYTES
        self._timeout = self._socket.gettimeout() or 0.0
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self._was_used = False
        self._idle_since = time.monotonic()
        self.is_open = True  # True if another request may be sent: not during a request, nor after a failed one

    def exchange(self, request: bytes, deadline: float) -> Response:
        """Send ``request`` and return its answer. Raises ConnectionFailure, InvalidAnswer."""
        self.is_open = False
        receive = self._socket.recv
        try:
            self._set_timeout(deadline)
            response = self._send(request)
            while response is None:
                data = receive(core.PIECE_BYTES)
                if not data:
                    raise core.lost_connection(None, self._settings, is_stale=self._is_stale)
                response = self._reader.feed(data)
                if response is None:
                    self._set_timeout(deadline)
                elif len(data) >= self._most_at_once and self._is_readable():
                    # Bytes after a full piece or TLS record were not requested.
                    response = response._replace(keeps_open=False)
        except TimeoutError as error:
            raise core.timeout_failure(self._settings, is_late=time.monotonic() >= deadline) from error
        except OSError as error:
            raise core.lost_connection(error, self._settings, is_stale=self._is_stale) from error
        self._was_used = True
        self._idle_since = time.monotonic()
        self.is_open = response.keeps_open
        return response

    def _send(self, request: bytes) -> Response | None:
        """Send ``request``. Return the answer if the router answered and closed before reading all of ``request``.
        Raises the failure if the router reported a missing certificate by TLS alone."""
        try:
            self._socket.sendall(request)
        except TimeoutError:
            raise
        except OSError:  # TLS reports a broken pipe in another way
            while data := self._socket.recv(core.PIECE_BYTES):
                if response := self._reader.feed(data):
                    return response._replace(keeps_open=False)
            raise
        return None

    def _set_timeout(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise core.deadline_failure(self._settings.timeout)
        if self._settings.read_timeout is not None:
            seconds = min(seconds, self._settings.read_timeout)
        if abs(seconds - self._timeout) > _TOLERANCE * self._timeout:
            self._socket.settimeout(seconds)
            self._timeout = seconds

    @property
    def _is_stale(self) -> bool:
        return self._was_used and not self._reader.has_begun

    def is_closed_by_router(self) -> bool:
        """Return whether an idle connection has something to read: its end, or unexpected bytes."""
        return time.monotonic() - self._idle_since >= _IDLE_SECONDS and self._is_readable()

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the socket without a TLS goodbye: a forked process may share it."""
        self.is_open = False
        self._socket.close()


def _connect(settings: ClientSettings, tls: TlsContexts, deadline: float) -> socket.socket:
    address = settings.address
    failure: OSError | None = None
    context = tls.context()
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in found:
            seconds = min(deadline - time.monotonic(), settings.connect_timeout)
            if seconds <= 0:
                raise core.deadline_failure(settings.timeout) from failure
            connection = socket.socket(family, kind, protocol)
            try:
                return _open(connection, place, context, settings, time.monotonic() + seconds)
            except OSError as error:
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        assert failure is not None, "each address that was found was tried"
        raise failure
    except OSError as error:
        raise core.connecting_error(error, settings, is_late=time.monotonic() >= deadline) from error
    finally:
        failure = None  # its traceback holds the frames of all callers


def _open(
    connection: socket.socket,
    place: tuple[object, ...],
    context: ssl.SSLContext | None,
    settings: ClientSettings,
    ends_at: float,
) -> socket.socket:
    _wait_until(connection, ends_at)
    connection.connect(place)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        _wait_until(connection, ends_at)
        connection = context.wrap_socket(connection, server_hostname=settings.address.host)
    connection.settimeout(settings.timeout)
    return connection


def _wait_until(connection: socket.socket, ends_at: float) -> None:
    """Set the socket's timeout to end at ``ends_at``; to a moment if that has passed, because 0 would make the socket
    non-blocking."""
    connection.settimeout(max(0.001, ends_at - time.monotonic()))


class ConnectionLease:
    """A caller's right to a connection, until ``ConnectionPool.release``."""

    __slots__ = ("__weakref__", "call", "connection")

    def __init__(self) -> None:
        self.connection: RouterConnection | None = None
        self.call: threading.Lock | None = None
        """The lock that a waiting caller waits on, released when it gets its turn."""


class ConnectionPool:
    """At most ``max_connections`` connections, most recently used first. Waiting callers are served in turn."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._tls = TlsContexts(settings)
        self._lock = threading.Lock()
        self._idle: list[RouterConnection] = []
        self._in_use: WeakSet[ConnectionLease] = WeakSet()
        self._waiters: deque[ConnectionLease] = deque()
        self._is_closed = False

    def acquire(self, lease: ConnectionLease, deadline: float, *, is_fresh: bool = False) -> RouterConnection:
        """Return a connection for ``lease``, a new one if ``is_fresh``. The lease must be released in any case. Raises
        ConnectionFailure."""
        with self._lock:
            self._call_next()
            is_waiting = bool(self._waiters) or not self._admit(lease)
        if is_waiting:
            self._wait(lease, deadline)
        connection = lease.connection
        if connection is not None:
            if not is_fresh and not connection.is_closed_by_router():
                return connection
            connection.close()
        connection = lease.connection = RouterConnection(self._settings, self._tls, deadline)
        return connection

    def release(self, lease: ConnectionLease) -> None:
        """End ``lease``, in the thread that began it. Close its connection if it cannot be used again."""
        connection = lease.connection
        if connection is not None and not connection.is_open:
            connection.close()
            connection = None
        with self._lock:
            if connection is not None and not self._is_closed:
                self._idle.append(connection)
                connection = None
            self._in_use.discard(lease)
            self._call_next()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Close a forked process's copies of its parent's connections, which the parent keeps using. It takes no lock:
        a thread of the parent may have held it."""
        for connection in [*self._idle]:
            connection.close()

    def _admit(self, lease: ConnectionLease) -> bool:
        if len(self._in_use) >= self._settings.max_connections:
            return False
        self._in_use.add(lease)
        lease.connection = self._idle.pop() if self._idle else None
        return True

    def _call_next(self) -> None:
        """Admit the callers that have waited longest."""
        while self._waiters and self._admit(self._waiters[0]):
            call = self._waiters.popleft().call
            assert call is not None
            call.release()

    def _wait(self, lease: ConnectionLease, deadline: float) -> None:
        """Wait until ``lease`` is admitted."""
        call = lease.call = threading.Lock()
        call.acquire()
        try:
            with self._lock:
                self._waiters.append(lease)
                self._call_next()
            while not call.acquire(timeout=max(0.0, min(deadline - time.monotonic(), _LOOK_SECONDS))):
                with self._lock:
                    self._call_next()
                    if lease in self._in_use:
                        return
                if time.monotonic() >= deadline:
                    raise core.no_connection_failure(self._settings)
        finally:
            with self._lock:
                if lease in self._waiters:
                    self._waiters.remove(lease)


class _Waiter:
    """A caller that waits for its answer, or to lead."""

    __slots__ = ("answer", "batch", "deadline", "is_impatient", "is_queued", "is_settled", "key", "lock", "seat")

    def __init__(self, key: str, deadline: float, seat: Seat) -> None:
        self.key = key
        self.deadline = deadline
        self.seat = seat  # the seat that it takes when it leads
        self.lock = threading.Lock()
        self.lock.acquire()
        self.is_queued = True
        self.is_impatient = False  # True once it has waited too long for others' batches
        self.is_settled = False  # True once its lock was released, which happens once
        self.batch: list[_Waiter] | None = None  # the callers of the batch that it leads, itself included
        self.answer: SharedAnswer | None = None  # if it is None after settling, the leader has failed: try again

    def settle(self) -> None:
        self.is_settled = True
        self.lock.release()


class Combiner:
    """Combine lookups of concurrent threads and greenlets into batches.

    A lookup that finds no batch under way leads: it requests its own key at once. Others wait meanwhile. When the
    leader has its answer, the first waiting lookup leads all of them: it requests their keys and gives each its part.
    Lookups with much more time left join a later batch. The client needs no thread of its own. A slow batch does not
    delay others for long: a lookup that has waited for PATIENCE_SECONDS leads the next batch beside it, up to
    MAX_FLIGHTS.
    """

    def __init__(
        self,
        ask_key: Callable[[str, float], KeyAnswer],
        ask_batch: Callable[[Sequence[str], float, float], SharedAnswer],
        client_core: ClientCore,
    ) -> None:
        """``ask_batch`` requests the keys of several callers, ``ask_key`` one key, until a deadline. The former also
        gets the time by which the router should answer."""
        self._ask_key = ask_key
        self._ask_batch = ask_batch
        self._core = client_core
        self._timeout = client_core.settings.timeout
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._characters = 0  # characters of the queued keys
        self._leaders: WeakSet[Seat] = WeakSet()  # a seat for each batch under way

    def find(self, key: str, deadline: float) -> KeyAnswer:
        """Look ``key`` up. Raises LookupFailed."""
        while True:
            seat, waiter = Seat(), None
            try:
                with self._lock:
                    if self._leaders or self._queue:
                        core.check_room(key, len(self._queue), self._characters)
                        waiter = _Waiter(key, deadline, seat)
                        self._queue.append(waiter)
                        self._characters += len(key)
                    else:
                        self._leaders.add(seat)
                if waiter is None:
                    return self._ask_key(key, deadline)
                answer = self._await(waiter)
                if answer is not None:  # else its leader has failed
                    return answer.take(key)
            finally:
                self._end(seat, waiter)

    def _await(self, waiter: _Waiter) -> SharedAnswer | None:
        """Wait for the answer; return None if the leader has failed."""
        seconds = core.PATIENCE_SECONDS
        while not waiter.lock.acquire(timeout=max(0.0, min(seconds, waiter.deadline - time.monotonic()))):
            seconds = self._timeout
            with self._lock:
                waiter.is_impatient = True
                if waiter.is_settled:
                    continue
                is_late = time.monotonic() >= waiter.deadline
                if waiter.is_queued and is_late:
                    self._dequeue(waiter)
                elif waiter.is_queued and len(self._leaders) < core.MAX_FLIGHTS:
                    waiter.is_settled = True
                    self._lead(waiter)
                if waiter.batch:
                    break
            if is_late:
                raise core.deadline_failure(self._timeout).to_error((waiter.key,))
        if waiter.batch:
            answer_by = min([led.deadline for led in waiter.batch])
            waiter.answer = self._ask_batch([led.key for led in waiter.batch], waiter.deadline, answer_by)
            return waiter.answer
        answer = waiter.answer
        if answer is not None and answer.is_late(waiter.key) and time.monotonic() < waiter.deadline:
            return None  # only the leader timed out
        return answer

    def _lead(self, waiter: _Waiter) -> None:
        """Make ``waiter``, which is queued, the leader of the next batch."""
        self._dequeue(waiter)
        waiter.batch = [waiter]
        self._leaders.add(waiter.seat)
        now, first, last, characters = time.monotonic(), waiter.deadline, waiter.deadline, len(waiter.key)
        self._drop_late(now)
        most = self._core.max_keys
        while self._queue and len(waiter.batch) < most:
            led = self._queue[0]
            first, last, characters = min(first, led.deadline), max(last, led.deadline), characters + len(led.key)
            if characters > core.MAX_REQUEST_CHARACTERS or not core.may_leave_together(now, first, last):
                break
            self._dequeue(led)
            waiter.batch.append(led)

    def _drop_late(self, now: float) -> None:
        """Remove late callers from the front of the queue; each notices by itself that its time is over."""
        while self._queue and self._queue[0].deadline <= now:
            self._dequeue(self._queue[0])

    def _dequeue(self, waiter: _Waiter) -> None:
        waiter.is_queued = False
        self._queue.remove(waiter)
        self._characters -= len(waiter.key)

    def _end(self, seat: Seat, waiter: _Waiter | None) -> None:
        """End a caller's wait, and give back its seat. The callers that it led get its answer; without one, they try
        again. Start the next batches for the waiting callers."""
        with self._lock:
            if waiter is not None:
                if waiter.is_queued:
                    self._dequeue(waiter)
                batch, waiter.batch = waiter.batch, None
                for led in batch or ():
                    if led is not waiter:
                        led.answer = waiter.answer
                        led.settle()
            if seat not in self._leaders:
                return
            self._leaders.discard(seat)
            self._drop_late(time.monotonic())
            while self._queue:
                leader, count = self._queue[0], len(self._leaders)
                if count and not (leader.is_impatient and count < core.MAX_FLIGHTS):
                    break  # the others wait for the batches under way
                self._lead(leader)
                leader.settle()
