"""The connections of one client, for threads and greenlets.

Locks to wait on are made when they are waited on, and found by their module's name, so that a client also works if
gevent has replaced them meanwhile. A greenlet never waits on a lock for another one of its own thread: gevent may have
been told to leave threads as they are, and then the wait would stop both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, Protocol

from lookupdb.client.attempts import ConnectionFailure
from lookupdb.client.certificates import TlsContexts
from lookupdb.client.connection import RouterConnection
from lookupdb.client.settings import ClientSettings

NO_CONNECTION: Final = "NoConnectionFree"
_POLL_SECONDS: Final = 0.002


class _Releasable(Protocol):
    def release(self) -> None: ...


class ConnectionPool:
    """At most ``max_connections`` connections, the one that was used last first."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._tls = TlsContexts(settings) if settings.address.is_tls else None
        self._lock = threading.Lock()
        self._idle: list[RouterConnection] = []
        self._holders: list[int] = []
        """The thread, or greenlet, of each connection that is in use."""
        self._waiters: deque[_Releasable] = deque()
        self._is_closed = False

    def acquire(self, deadline: float, *, is_fresh: bool = False) -> RouterConnection:
        """A connection, to be released; ``is_fresh``: a new one. Raises ConnectionFailure."""
        me = threading.get_ident()
        while True:
            with self._lock:
                is_free = len(self._holders) < self._settings.max_connections
                if is_free:
                    self._holders.append(me)
                    connection = self._idle.pop() if self._idle else None
                    is_crowded = len(self._idle) + len(self._holders) > self._settings.max_connections
                    surplus = self._idle.pop(0) if is_crowded and self._idle else None
                is_own = me in self._holders
            if is_free:
                break
            self._wait(deadline, is_own=is_own)
        try:
            if surplus is not None:
                surplus.close()
            if connection is not None:
                if not is_fresh and not connection.is_closed_by_router():
                    return connection
                connection.close()
            return RouterConnection(self._settings, self._tls, deadline)
        except BaseException:
            self._leave(me)
            raise

    def release(self, connection: RouterConnection) -> None:
        """Give it back, from the thread that acquired it. It is closed unless it can be used again."""
        keeps = connection.is_open and not self._is_closed
        if not keeps:
            connection.close()
        self._leave(threading.get_ident(), connection if keeps else None)

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

    def _leave(self, holder: int, connection: RouterConnection | None = None) -> None:
        with self._lock:
            self._holders.remove(holder)
            if connection is not None:
                self._idle.append(connection)
            waiter = self._waiters.popleft() if self._waiters else None
        if waiter is not None:
            waiter.release()

    def _wait(self, deadline: float, *, is_own: bool) -> None:
        """Wait until a connection may be free."""
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            most = self._settings.max_connections
            raise ConnectionFailure(NO_CONNECTION, f"all {most} connections were in use until the timeout")
        if is_own:
            time.sleep(min(seconds, _POLL_SECONDS))
            return
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if len(self._holders) < self._settings.max_connections:
                return
            self._waiters.append(waiter)
        try:
            is_called = waiter.acquire(timeout=seconds)
        except BaseException:
            self._forget(waiter, is_called=False)
            raise
        self._forget(waiter, is_called=is_called)

    def _forget(self, waiter: _Releasable, *, is_called: bool) -> None:
        """Take ``waiter`` out; if it was called all the same, call the next one in its place."""
        if is_called:
            return
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return
            following = self._waiters.popleft() if self._waiters else None
        if following is not None:
            following.release()
