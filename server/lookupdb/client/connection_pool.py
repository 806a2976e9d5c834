"""The connections of one client, for threads and greenlets.

Locks to wait on are made when they are waited on, and found by their module's name, so that a client also works if
gevent has replaced them meanwhile. A greenlet never waits on a lock for another one of its own thread: gevent may have
been told to leave threads as they are, and then the wait would stop both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from lookupdb.client.attempts import ConnectionFailure
from lookupdb.client.certificates import TlsContexts
from lookupdb.client.connection import RouterConnection
from lookupdb.client.seats import Seat, Seats
from lookupdb.client.settings import ClientSettings

NO_CONNECTION: Final = "NoConnectionFree"
_POLL_SECONDS: Final = 0.002
_LOOK_SECONDS: Final = 0.25
"""After which a caller that waits looks for itself: who was to call it may have been interrupted."""


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
        self._tls = TlsContexts(settings) if settings.address.is_tls else None
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
            raise self._describe_timeout()
        if self._may_not_block(lease):
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
                    raise self._describe_timeout()
        finally:
            with self._lock:
                if lease in self._waiters:
                    self._waiters.remove(lease)

    def _may_not_block(self, lease: ConnectionLease) -> bool:
        with self._lock:
            return self._seats.is_owner(lease.owner)

    def _describe_timeout(self) -> ConnectionFailure:
        most = self._settings.max_connections
        return ConnectionFailure(NO_CONNECTION, f"all {most} connections were in use until the timeout")
