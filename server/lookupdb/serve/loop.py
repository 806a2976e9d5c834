"""The worker's event loop: it accepts clients, and gives each event to whoever handles it. ``turn`` answers lookups.

Written by hand because an event loop's transports, protocols and write queues cost as much again as the lookup.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from typing import Final

from lookupdb.resp.replies import error
from lookupdb.serve import shard_counters
from lookupdb.serve.cold_data import ColdData
from lookupdb.serve.connection import RespConnection
from lookupdb.serve.limits import TIME_SLICE_SECONDS
from lookupdb.serve.native_replies import NativeReplies
from lookupdb.serve.poller import Poller
from lookupdb.serve.session import WorkerContext
from lookupdb.serve.turn import make_turn

log = logging.getLogger(__name__)

_UNREACHABLE: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a client's socket that are no ConnectionError: its node is lost, and what was sent is not acknowledged."""
_TOO_MANY: Final = error("ERR max number of clients reached")
_ACCEPTED: Final = 64
"""The most clients accepted at once: those that are connected wait meanwhile."""


class WorkerLoop:
    """Accepts clients from ``listener`` and answers them, while it runs."""

    def __init__(self, worker: WorkerContext, listener: socket.socket) -> None:
        self._worker = worker
        self._listener = listener
        self._poller = Poller()
        self._poller.add(listener.fileno())
        self._accepting = True
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Kept for a client that is to be told that there are no descriptors left. -1: none was left for it."""
        self.until = 0.0
        """When ``run`` is to return."""
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
        """A file descriptor: a byte written to it makes the loop check whether it goes on."""
        return self._bell.fileno()

    def stop(self) -> None:
        """Let ``run`` return. A signal's handler may call it if the signal rings the bell."""
        self.until = 0.0

    def run(self, seconds: float) -> None:
        """Serve for so long, or until ``stop``."""
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
        """See whether lookups wait for a disk: after a slow turn, and once in a while."""
        if self.cold_data is not None:
            self.cold_data.check(self._worker.connections)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it has been rung often enough, or a thread warms what nobody waits for now
            self._bell.send(b"\0")

    def _answer_warmed(self) -> None:
        end = time.monotonic() + TIME_SLICE_SECONDS
        while self.cold_data is not None and (connection := self.cold_data.pop_warmed()):
            try:
                connection.unpark()
            except Exception as problem:  # ends one connection, never the worker
                self.close_broken(connection.fd, problem)
            if time.monotonic() > end:  # all others have their turn before the rest
                self._ring()
                return

    def close_broken(self, fd: int, problem: Exception) -> None:
        """Close the connection of ``fd``, whose event ended in ``problem``: the client is gone, or there is a bug."""
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
            worker.slot[shard_counters.CONNECTIONS] += 1
            worker.slot[shard_counters.OPEN_CONNECTIONS] = len(worker.connections)

    def _has_room(self) -> bool:
        """Return whether one more client can be accepted, if need be in place of one that has not authenticated."""
        worker = self._worker
        is_full = len(worker.connections) >= worker.limits.max_connections
        if worker.unauthenticated and (is_full or len(worker.unauthenticated) >= worker.limits.max_unauthenticated):
            next(iter(worker.unauthenticated.values())).cut()
            return True
        return not is_full

    def _refuse_client(self, client: socket.socket) -> None:
        """Tell ``client`` that there are too many, and close."""
        self._worker.slot[shard_counters.CONNECTIONS_REFUSED] += 1
        with client, contextlib.suppress(OSError):
            client.send(_TOO_MANY)

    def _refuse_waiting_clients(self, problem: OSError) -> None:
        """Refuse who waits, and accept nobody until the next sweep: without descriptors or memory the listener would
        be ready again at once, and again. The spare descriptor lets the clients be told.
        """
        if not self._accepting:
            return
        log.warning("cannot accept clients for now: %s", problem)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1  # its number may be a client's by the next time
        with contextlib.suppress(OSError):
            for _ in range(_ACCEPTED):
                self._refuse_client(self._listener.accept()[0])
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.stop_accepting()

    def stop_accepting(self) -> None:
        """Accept nobody: clients that connect wait."""
        if self._accepting:
            self._accepting = False
            self._poller.remove(self._listener.fileno())

    def resume_accepting(self) -> None:
        """Accept again, after ``stop_accepting``."""
        if not self._accepting:
            self._accepting = True
            self._poller.add(self._listener.fileno())
