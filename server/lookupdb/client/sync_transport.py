"""What a lookup goes through in a thread or a greenlet, between the client and the router.

A lookup of one key joins a ``Combiner``. It leads a batch, and asks for its own key or for those of all who wait; or it
waits for its part of another one's answer. Who asks sends a request by ``RouterLink.exchange``. That takes a
``RouterConnection`` from the ``ConnectionPool``, or waits for one in turn, and gives it back.

A caller may be interrupted at whatever point, by Ctrl-C, a signal handler that raises, or a timeout of gevent. It
leaves nothing behind: what it held is a ``Seat``, which counts no longer than it is remembered.

Locks to wait on are made when they are waited on, and found by their module's name, so that a client also works if
gevent has replaced them meanwhile. A greenlet never waits on a lock for another one of its own thread: gevent may have
been told to leave threads as they are, and then the wait would stop both.
"""

from __future__ import annotations

import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lookupdb.client import core
from lookupdb.client.answers import KeyAnswer
from lookupdb.client.core import ClientCore, SharedAnswer
from lookupdb.client.settings import MAX_ANSWER_BYTES, PROCESS, ClientSettings, TlsContexts
from lookupdb.client.wire import Render, Response, ResponseReader

if TYPE_CHECKING:
    import ssl

_RECORD_BYTES: Final = 1 << 14
"""The most that TLS has in one record, and gives at once."""
_IDLE_SECONDS: Final = 0.25
"""A connection that was idle for longer is looked at before it is used: the router may have closed it."""
_TOLERANCE: Final = 0.01
"""A timeout that is this near to the socket's, as a part of it, is not set: that is a system call."""
_POLL_SECONDS: Final = 0.002
_LOOK_SECONDS: Final = 0.25
"""After which a caller that waits looks for itself: who was to call it may have been interrupted."""


class RouterLink:
    """The connections to a router, and the batches that leave over them. Those of a process that was forked off are its
    own."""

    def __init__(self, settings: ClientSettings) -> None:
        self.core = ClientCore(settings)
        self.combiners: dict[str | None, Combiner] = {}
        self._pool = ConnectionPool(settings)
        self._epoch = PROCESS.epoch
        self._is_closed = False

    def enter(self) -> None:
        """Begin again in a process that was forked off. Raises RuntimeError if the client is closed."""
        if self._epoch is not PROCESS.epoch:
            self._begin_again()
        if self._is_closed:
            raise RuntimeError("this client is closed")

    def _begin_again(self) -> None:
        with PROCESS.lock:
            if self._epoch is not PROCESS.epoch:
                self._pool.abandon()
                self._pool = ConnectionPool(self.core.settings)
                self.combiners = {}
                self.core.begin()
                self._epoch = PROCESS.epoch  # last: another thread that sees it goes on with all the rest

    def exchange(
        self, render: Render, token: bytes, deadline: float, answer_by: float | None, *, is_fresh: bool
    ) -> Response:
        """Send the request that ``render`` makes, over a connection that is new if ``is_fresh``, and return the answer.
        Raises ConnectionFailure and InvalidAnswer."""
        pool = self._pool
        lease = pool.begin()
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
    """A caller's claim to be counted. It counts from ``Seats.take`` on, and no longer than it is remembered."""

    __slots__ = ("__weakref__", "owner", "reference")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        """A thread, or a greenlet."""
        self.reference: weakref.ref[Seat] | None = None
        """By which it counts."""


class Seats:
    """The seats that are taken. Whoever calls it holds a lock."""

    def __init__(self) -> None:
        self._owners: dict[weakref.ref[Seat], int] = {}
        self._lost: deque[weakref.ref[Seat]] = deque()
        """Of those who were interrupted before they could give theirs back: of seats that nobody remembers. No code of
        ours runs when they are forgotten, which may be while this thread holds any lock."""

    def __len__(self) -> int:
        while self._lost:
            self._owners.pop(self._lost.popleft(), None)
        return len(self._owners)

    def take(self, seat: Seat) -> None:
        """Count ``seat``."""
        reference = seat.reference = weakref.ref(seat, self._lost.append)
        self._owners[reference] = seat.owner

    def leave(self, seat: Seat) -> None:
        """Count ``seat`` no more, if it was."""
        if seat.reference is not None:
            self._owners.pop(seat.reference, None)
            seat.reference = None

    def has(self, seat: Seat) -> bool:
        """Whether ``seat`` counts."""
        return seat.reference in self._owners

    def is_owner(self, owner: int) -> bool:
        """Whether ``owner`` has a seat."""
        return owner in self._owners.values()


class RouterConnection:
    """One connection, for one request after another, by one thread at a time."""

    __slots__ = ("_idle_since", "_most_at_once", "_reader", "_settings", "_socket", "_timeout", "_was_used", "is_open")

    def __init__(self, settings: ClientSettings, tls: TlsContexts, deadline: float) -> None:
        """Connect. Raises ConnectionFailure, InvalidAnswer where nobody speaks TLS, and UsageError for certificates
        that cannot be used."""
        self._settings = settings
        self._socket = _connect(settings, tls, deadline)
        self._most_at_once = _RECORD_BYTES if settings.address.is_tls else core.PIECE_BYTES
        self._timeout = self._socket.gettimeout() or 0.0
        self._reader = ResponseReader(MAX_ANSWER_BYTES)
        self._was_used = False
        self._idle_since = time.monotonic()
        self.is_open = True
        """Whether another request may be sent: not while one is under way, nor after one that went wrong."""

    def exchange(self, request: bytes, deadline: float) -> Response:
        """Send ``request`` and return its answer. Raises ConnectionFailure and InvalidAnswer."""
        self.is_open = False
        try:
            self._set_timeout(deadline)
            response = self._send(request) or self._receive(deadline)
        except TimeoutError as error:
            if self._settings.read_timeout is None or time.monotonic() >= deadline:
                raise core.deadline_failure(self._settings.timeout) from error
            raise core.silence_failure(self._settings.read_timeout) from error
        except OSError as error:
            raise core.lost_connection(error, self._settings, is_stale=self._is_stale) from error
        self._was_used = True
        self._idle_since = time.monotonic()
        self.is_open = response.keeps_open
        return response

    def _send(self, request: bytes) -> Response | None:
        """Send ``request``, and return the answer if the router gave one before it had read all, and closed. What it
        says by TLS alone, of a certificate that it wants, is raised."""
        try:
            self._socket.sendall(request)
        except TimeoutError:
            raise
        except OSError:  # a broken pipe has another name in TLS
            while data := self._socket.recv(core.PIECE_BYTES):
                if response := self._reader.feed(data):
                    return response._replace(keeps_open=False)
            raise
        return None

    def _receive(self, deadline: float) -> Response:
        receive, feed = self._socket.recv, self._reader.feed
        while data := receive(core.PIECE_BYTES):
            response = feed(data)
            if response is not None:
                # What follows a full piece, or a full record of TLS, would answer the next request.
                is_cut = len(data) >= self._most_at_once and self._is_readable()
                return response._replace(keeps_open=False) if is_cut else response
            self._set_timeout(deadline)
        raise core.cut_failure(is_stale=self._is_stale)

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
        """Whether there is something to be read of a connection that nothing was asked on: its end, or nonsense."""
        return time.monotonic() - self._idle_since >= _IDLE_SECONDS and self._is_readable()

    def _is_readable(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close it, without a word: a process that was forked off may have it as well."""
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
        failure = None  # its traceback holds this frame, and so those of all callers


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
    """Have ``connection`` wait no longer, and for a moment if that is over: 0 would mean not to wait at all, and less
    is refused."""
    connection.settimeout(max(0.001, ends_at - time.monotonic()))


class ConnectionLease(Seat):
    """The right of one caller to a connection. Made by ``ConnectionPool.begin``, ended by ``release``."""

    __slots__ = ("call", "connection")

    def __init__(self, owner: int) -> None:
        super().__init__(owner)
        self.connection: RouterConnection | None = None
        self.call: threading.Lock | None = None
        """While it waits: released when it has been given its seat."""


class ConnectionPool:
    """At most ``max_connections`` connections, the one that was used last first. Who waits for one is served in
    turn."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._tls = TlsContexts(settings)
        self._lock = threading.Lock()
        self._idle: list[RouterConnection] = []
        self._seats = Seats()
        self._waiters: deque[ConnectionLease] = deque()
        self._is_closed = False

    def begin(self) -> ConnectionLease:
        """A lease of this thread. It holds nothing yet."""
        return ConnectionLease(threading.get_ident())

    def acquire(self, lease: ConnectionLease, deadline: float, *, is_fresh: bool = False) -> RouterConnection:
        """The connection of ``lease``, which is to be released whatever comes of this; ``is_fresh``: a new one. Raises
        ConnectionFailure."""
        while not self._take_seat(lease):
            self._wait(lease, deadline)
        connection = lease.connection
        if connection is not None:
            if not is_fresh and not connection.is_closed_by_router():
                return connection
            connection.close()
        connection = lease.connection = RouterConnection(self._settings, self._tls, deadline)
        return connection

    def release(self, lease: ConnectionLease) -> None:
        """End ``lease``, in the thread that began it. Its connection is closed unless it can be used again."""
        connection = lease.connection
        if connection is not None and not connection.is_open:
            connection.close()
            connection = None
        with self._lock:
            if connection is not None and not self._is_closed:
                self._idle.append(connection)
                connection = None
            self._seats.leave(lease)
            self._call_next()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close those that are idle now, and the others when they are released."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Close what a process that was forked off has of its parent's connections; the parent goes on with them. No
        lock is taken: a thread of the parent may have held it."""
        for connection in [*self._idle]:
            connection.close()

    def _take_seat(self, lease: ConnectionLease) -> bool:
        """Whether ``lease`` has a seat now. Who comes while others wait does not go before them, but for a greenlet
        that cannot wait in line."""
        with self._lock:
            if self._seats.has(lease):
                return True
            if self._waiters and not self._seats.is_owner(lease.owner):
                self._call_next()
                return False
            return self._give_seat(lease)

    def _give_seat(self, lease: ConnectionLease) -> bool:
        if len(self._seats) >= self._settings.max_connections:
            return False
        self._seats.take(lease)
        lease.connection = self._idle.pop() if self._idle else None
        return True

    def _call_next(self) -> None:
        """Give those who have waited longest the seats that are free."""
        while self._waiters and self._give_seat(self._waiters[0]):
            call = self._waiters.popleft().call
            assert call is not None
            call.release()

    def _wait(self, lease: ConnectionLease, deadline: float) -> None:
        """Wait until ``lease`` has a seat, or may take one."""
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise core.no_connection_failure(self._settings)
        with self._lock:
            may_not_block = self._seats.is_owner(lease.owner)
        if may_not_block:
            time.sleep(min(seconds, _POLL_SECONDS))
            return
        call = lease.call = threading.Lock()
        call.acquire()
        try:
            with self._lock:
                self._waiters.append(lease)
                self._call_next()
            while not call.acquire(timeout=max(0.0, min(seconds, _LOOK_SECONDS))):
                with self._lock:
                    self._call_next()
                    if self._seats.has(lease):
                        return
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    raise core.no_connection_failure(self._settings)
        finally:
            with self._lock:
                if lease in self._waiters:
                    self._waiters.remove(lease)


class _Waiter:
    """A caller that waits: for its answer, or to lead."""

    __slots__ = ("answer", "batch", "deadline", "is_impatient", "is_queued", "is_settled", "key", "lock", "seat")

    def __init__(self, key: str, deadline: float, seat: Seat) -> None:
        self.key = key
        self.deadline = deadline
        self.seat = seat
        """Which it takes to lead."""
        self.lock = threading.Lock()
        self.lock.acquire()
        self.is_queued = True
        self.is_impatient = False
        """Whether it has waited for longer than it should for others' batches."""
        self.is_settled = False
        """Whether the lock was released, which happens once."""
        self.batch: list[_Waiter] | None = None
        """Those whom it leads, itself among them."""
        self.answer: SharedAnswer | None = None
        """None once it is settled: the leader has failed; ask again."""

    def settle(self) -> None:
        self.is_settled = True
        self.lock.release()


class Combiner:
    """Lookups of concurrent threads and greenlets leave as one batch.

    Who finds no batch under way leads: it asks for its own key alone, at once. Who comes meanwhile waits. When the
    leader has its answer, it hands all who wait to the first of them, which asks for all their keys and gives each its
    part, but for those who have much more time than the first: they leave with the next. No thread of the client's own
    is needed, and nobody waits who could be asking. A batch that is slow does not hold up the others for long: who has
    waited for PATIENCE_SECONDS leads the next one beside it, up to MAX_FLIGHTS.
    """

    def __init__(
        self,
        ask_key: Callable[[str, float], KeyAnswer],
        ask_batch: Callable[[Sequence[str], float, float], SharedAnswer],
        client_core: ClientCore,
    ) -> None:
        """``ask_batch`` asks for the keys of several callers, ``ask_key`` for one, until the deadline given. The former
        is also told when the router should answer."""
        self._ask_key = ask_key
        self._ask_batch = ask_batch
        self._core = client_core
        self._timeout = client_core.settings.timeout
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self._characters = 0
        """Of the keys of those in the queue."""
        self._leaders = Seats()
        """One for each batch that is under way."""

    def find(self, key: str) -> KeyAnswer:
        """What is found of ``key``. Raises LookupFailed."""
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._find_once(key, deadline)
            if answer is not None:
                return answer

    def _find_once(self, key: str, deadline: float) -> KeyAnswer | None:
        """None if the one who was to ask has failed."""
        seat, waiter = Seat(threading.get_ident()), None
        try:
            with self._lock:
                is_alone = self._leaders.is_owner(seat.owner)  # it leads already: it must not wait for itself
                leads = not (is_alone or len(self._leaders) or self._queue)
                if leads:
                    self._leaders.take(seat)
                elif not is_alone and self._has_room(key):
                    waiter = _Waiter(key, deadline, seat)
                    self._queue.append(waiter)
                    self._characters += len(key)
            if leads or is_alone:
                return self._ask_key(key, deadline)
            if waiter is None:
                raise core.queue_full(key, len(self._queue))
            answer = self._await(waiter)
            return answer.take(key) if answer is not None else None
        finally:
            if waiter is not None:
                self._end_wait(waiter)
            self._leave(seat)

    def _has_room(self, key: str) -> bool:
        """Whether a caller more may wait."""
        waiting = len(self._queue)
        return not waiting or (
            waiting < core.MAX_WAITING and self._characters + len(key) <= core.MAX_WAITING_CHARACTERS
        )

    def _await(self, waiter: _Waiter) -> SharedAnswer | None:
        """The answer; None if its leader has failed."""
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
            return None  # the leader's time was over, and this caller's is not
        return answer

    def _lead(self, waiter: _Waiter) -> None:
        """Have ``waiter``, who is in the queue, lead the first of the others: as many as one batch may have."""
        self._dequeue(waiter)
        waiter.batch = [waiter]
        self._leaders.take(waiter.seat)
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
        """Have nobody wait in front whose time is over: each of them notices itself."""
        while self._queue and self._queue[0].deadline <= now:
            self._dequeue(self._queue[0])

    def _dequeue(self, waiter: _Waiter) -> None:
        waiter.is_queued = False
        self._queue.remove(waiter)
        self._characters -= len(waiter.key)

    def _end_wait(self, waiter: _Waiter) -> None:
        """A caller has its answer, or waits no longer. Those whom it led get what it has; without,
        they ask again."""
        with self._lock:
            if waiter.is_queued:
                self._dequeue(waiter)
            batch, waiter.batch = waiter.batch, None
        for led in batch or ():
            if led is not waiter:
                led.answer = waiter.answer
                led.settle()

    def _leave(self, seat: Seat) -> None:
        """If it led: a batch has ended, and the first of those who wait leads the next, and so on, if those with it are
        not all."""
        with self._lock:
            if not self._leaders.has(seat):
                return
            self._leaders.leave(seat)
            self._drop_late(time.monotonic())
            while self._queue:
                leader, count = self._queue[0], len(self._leaders)
                if count and not (leader.is_impatient and count < core.MAX_FLIGHTS):
                    break  # it waits for the batches that are under way
                self._lead(leader)
                leader.settle()
