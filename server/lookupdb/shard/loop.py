"""The worker's event loop: accepts clients, and passes each event on. A turn answers lookups, the hot path.

The native turn reads from all ready clients before it looks their keys up together; everything that is no lookup goes
to the connection. The turn of the Python fallback leaves all events to the connections.

The loop is our own, because the transports, protocols and write queues of an event loop would cost as much as a lookup.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from lookupdb.resp.requests import error
from lookupdb.shard import limits
from lookupdb.shard.cold import ColdData
from lookupdb.shard.commands import WorkerContext
from lookupdb.shard.connection import Poller, RespConnection
from lookupdb.shard.limits import TIME_SLICE_SECONDS
from lookupdb.shard.replies import NativeReplies

_EVENTS: Final = 256


class EventHandler(Protocol):
    """The loop as a turn uses it, for all events that are no lookups."""

    until: float

    def handle(self, fd: int, events: int) -> None:
        """Handle ``events`` of ``fd``."""

    def close_broken(self, fd: int, problem: Exception) -> None:
        """Close the connection of ``fd``, whose event ended in ``problem``."""

    def check_disk(self) -> None:
        """Check whether lookups wait for a disk."""


def make_turn(worker: WorkerContext, poller: Poller) -> NativeTurn | PythonTurn:
    """Make the turn for the worker's replies."""
    replies = worker.replies
    return NativeTurn(worker, poller, replies) if isinstance(replies, NativeReplies) else PythonTurn(poller)


class LateEvents:
    """Events that are no lookups, in order of arrival.

    Each may take a client's time slice. What exceeds a turn is left to later turns, so that lookups and the worker's
    heartbeat come in between.
    """

    def __init__(self) -> None:
        self._events: OrderedDict[int, int] = OrderedDict()
        """Events by file descriptor. A poll repeats a waiting event, which keeps its place."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[tuple[int, int]]) -> None:
        """Queue events behind the waiting ones."""
        self._events.update(events)

    def handle(self, loop: EventHandler) -> None:
        """Handle one event, and more within a time slice. The descriptor may be another socket's by now, so handlers
        check that the event still applies."""
        end = time.monotonic() + TIME_SLICE_SECONDS
        while self._events:
            fd, events = self._events.popitem(last=False)
            try:
                loop.handle(fd, events)
            except Exception as problem:  # ends one connection, never the worker
                loop.close_broken(fd, problem)
            if time.monotonic() > end:
                return


class NativeTurn:
    """Lets the kernel poll, read and answer until something is no lookup, or a client does not read."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: NativeReplies) -> None:
        self._connections = worker.connections
        self._poller = poller
        self._replies = replies
        self._late = LateEvents()

    def run(self, loop: EventHandler) -> None:
        """Take turns until ``loop.until``."""
        run, report_damage, now = self._replies.kernel.run, self._replies.report_damage, time.monotonic
        epoll, poller, connections, late = self._poller.epoll.fileno(), self._poller, self._connections, self._late
        while (remaining := loop.until - now()) > 0:
            wait = 0.0 if late else remaining
            handed, events, is_slow = run(epoll, poller.fast_path, poller.protocols, wait)
            report_damage()
            end = now() + TIME_SLICE_SECONDS
            for fd, failure, *progress in handed:  # before any event, which could accept a client on one of these
                try:
                    if failure:
                        raise OSError(failure, os.strerror(failure))
                    if fd in connections:  # an earlier one may have cut it
                        connections[fd].resume(*progress, is_late=now() > end)
                except Exception as problem:  # ends one connection, never the worker
                    loop.close_broken(fd, problem)
            late.add(events)
            late.handle(loop)
            if is_slow:
                loop.check_disk()


class PythonTurn:
    """Leaves every event to its connection: the Python fallback of ``NativeTurn``."""

    def __init__(self, poller: Poller) -> None:
        self._epoll = poller.epoll
        self._late = LateEvents()

    def run(self, loop: EventHandler) -> None:
        """Take turns until ``loop.until``."""
        while (remaining := loop.until - time.monotonic()) > 0:
            self._late.add(self._epoll.poll(0.0 if self._late else remaining, _EVENTS))
            self._late.handle(loop)


log = logging.getLogger(__name__)

_UNREACHABLE: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a client's socket that are no ConnectionError: its node is lost, and sent bytes are not acknowledged."""
_TOO_MANY: Final = error("ERR max number of clients reached")
_ACCEPTED: Final = 64
"""Limit of clients accepted at once, because connected clients wait meanwhile."""


class WorkerLoop:
    """Accepts clients from ``listener`` and answers them while it runs."""

    def __init__(self, worker: WorkerContext, listener: socket.socket) -> None:
        self._worker = worker
        self._listener = listener
        self._poller = Poller()
        self._poller.add(listener.fileno())
        self._accepting = True
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Spare descriptor, to answer a client when no others are left; -1 if it is used."""
        self.until = 0.0
        self._turn = make_turn(worker, self._poller)
        self._alarm, self._bell = socket.socketpair()
        for end in (self._alarm, self._bell):
            end.setblocking(False)
        self._poller.add(self._alarm.fileno())
        replies = worker.replies
        self.cold_data: Final = (
            ColdData(self._poller, replies.kernel, self._ring) if isinstance(replies, NativeReplies) else None
        )

    @property
    def bell(self) -> int:
        """File descriptor: a byte written to it makes the loop check whether to stop."""
        return self._bell.fileno()

    def stop(self) -> None:
        """Make ``run`` return. A signal handler may call it if the signal rings the bell."""
        self.until = 0.0

    def run(self, seconds: float) -> None:
        """Serve for ``seconds``, or until ``stop``."""
        self.until = time.monotonic() + seconds
        self._turn.run(self)

    def handle(self, fd: int, events: int) -> None:
        """Handle an event that is no lookup."""
        connection = self._worker.connections.get(fd)
        if connection is not None:
            connection.handle_events(events)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._alarm.fileno():
            self._alarm.recv(4096)
            self._answer_warmed()

    def check_disk(self) -> None:
        """Check whether lookups wait for a disk: after a slow turn, and regularly."""
        if self.cold_data is not None:
            self.cold_data.check(self._worker.connections)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # the bell has enough bytes, or the loop is gone
            self._bell.send(b"\0")

    def _answer_warmed(self) -> None:
        end = time.monotonic() + TIME_SLICE_SECONDS
        while self.cold_data is not None and (connection := self.cold_data.pop_warmed()):
            try:
                connection.unpark()
            except Exception as problem:  # ends one connection, never the worker
                self.close_broken(connection.fd, problem)
            if time.monotonic() > end:  # other clients get their turn first
                self._ring()
                return

    def close_broken(self, fd: int, problem: Exception) -> None:
        """Close the connection of ``fd`` after ``problem``: the client is gone, or there is a bug."""
        if isinstance(problem, BlockingIOError):
            return
        if not isinstance(problem, ConnectionError) and getattr(problem, "errno", None) not in _UNREACHABLE:
            log.error(
                "a connection is closed because of an error in the server",
                exc_info=problem,
            )
        if fd in self._worker.connections:
            self._worker.connections[fd].close()

    def _accept(self) -> None:
        worker = self._worker
        for _ in range(_ACCEPTED):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._refuse_waiting_clients(problem)
                return
            client.setblocking(False)
            if not self._has_room():
                self._refuse_client(client)
                continue
            connection = RespConnection(worker, self._poller, client)
            worker.connections[connection.fd] = connection
            worker.slot[limits.CONNECTIONS] += 1
            worker.slot[limits.OPEN_CONNECTIONS] = len(worker.connections)

    def _has_room(self) -> bool:
        """Return whether another client can be accepted, perhaps in place of one that has not authenticated."""
        worker = self._worker
        is_full = len(worker.connections) >= worker.limits.max_connections
        if worker.unauthenticated and (is_full or len(worker.unauthenticated) >= worker.limits.max_unauthenticated):
            next(iter(worker.unauthenticated.values())).cut()
            return True
        return not is_full

    def _refuse_client(self, client: socket.socket) -> None:
        self._worker.slot[limits.CONNECTIONS_REFUSED] += 1
        with client, contextlib.suppress(OSError):
            client.send(_TOO_MANY)

    def _refuse_waiting_clients(self, problem: OSError) -> None:
        """Refuse waiting clients, and accept none until the next sweep. Without descriptors or memory, the listener
        would be ready again at once. The spare descriptor makes the refusals possible.
        """
        if not self._accepting:
            return
        log.warning("cannot accept clients for now: %s", problem)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1  # its number may be reused
        with contextlib.suppress(OSError):
            for _ in range(_ACCEPTED):
                self._refuse_client(self._listener.accept()[0])
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.stop_accepting()

    def stop_accepting(self) -> None:
        """Stop accepting: clients that connect wait."""
        if self._accepting:
            self._accepting = False
            self._poller.remove(self._listener.fileno())

    def resume_accepting(self) -> None:
        """Accept again, after ``stop_accepting``."""
        if not self._accepting:
            self._accepting = True
            self._poller.add(self._listener.fileno())
