"""The worker's event loop, and in it the hot path: one GET read, looked up and answered without a call to ours.

Written by hand because an event loop's transports, protocols and write queues cost as much again as the lookup:
here an event is one read, one look at its size and beginning, one lookup and one write, and answers leave at once.
What is not a lone GET is the connection's to handle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from typing import Final

from lookupdb.serve import counted
from lookupdb.serve.connection import READ_BYTES, RespConnection
from lookupdb.serve.lookups import MISSING, SUSPECT
from lookupdb.serve.resp import CRLF, GET_ENDS, GET_HEADS, GET_KEYS, error
from lookupdb.serve.session import Host
from lookupdb.serve.watch import ACTIVE, Watch
from lookupdb.shardfile import BULK_ENDS, BULK_HEADS, CLAIMS_SIZE, FRAMED

log = logging.getLogger(__name__)

_HEADS: Final = len(GET_HEADS)
_TOO_MANY: Final = error("ERR max number of clients reached")
_EVENTS: Final = 256
"""At most so many are taken at once."""
_ACCEPTED: Final = 64
"""At most so many clients are accepted at once: those that are connected wait meanwhile."""


class Loop:
    """Accepts clients from ``listener`` and answers them, while it runs."""

    def __init__(self, host: Host, listener: socket.socket) -> None:
        self._host = host
        self._listener = listener
        self._watch = Watch()
        self._watch.add(listener.fileno())
        self._accepting = True
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Kept for a client that is to be told that there are no descriptors left."""
        self._until = 0.0
        self._alarm, self._bell = socket.socketpair()
        for end in (self._alarm, self._bell):
            end.setblocking(False)
        self._watch.add(self._alarm.fileno())

    @property
    def bell(self) -> int:
        """A file descriptor: what is written to it lets the loop look whether it is to go on."""
        return self._bell.fileno()

    def stop(self) -> None:
        """Let ``run`` return. Safe to be called by a signal's handler, if the signal rings the bell."""
        self._until = 0.0

    def run(self, seconds: float) -> None:
        """Serve for so long, or until ``stop``."""
        host, now = self._host, time.monotonic
        poll, read, write = self._watch.epoll.poll, os.read, os.write
        states, connections, slot = self._watch.states, host.connections, host.slot
        get, inflate = host.shard.txn.get, host.shard.inflate
        heads, ends, keys, sizes = GET_HEADS, GET_ENDS, GET_KEYS, _HEADS  # local names are looked up fastest
        bulk_heads, bulk_ends, bulk_sizes = BULK_HEADS, BULK_ENDS, len(BULK_HEADS)
        tail, crlf, framed, claims_size, missing = slice(-2, None), CRLF, FRAMED, CLAIMS_SIZE, MISSING
        self._until = now() + seconds
        while (left := self._until - now()) > 0:
            lookups = sent = fd = 0
            try:
                for fd, events in poll(left, _EVENTS):
                    if not states[fd]:
                        self._handle(fd, events)
                        continue
                    states[fd] = ACTIVE
                    data = read(fd, READ_BYTES)
                    size = len(data)
                    if size >= sizes or data < heads[size] or data >= ends[size] or data[tail] != crlf:
                        connections[fd].received(data)
                        continue
                    lookups += 1
                    try:
                        key = data[keys[size]]
                        reply = get(key, missing)
                        first = reply[0]
                        if first != framed and first < claims_size:
                            reply = inflate(reply)
                        size = len(reply)
                        if (
                            size >= bulk_sizes
                            or reply < bulk_heads[size]
                            or reply >= bulk_ends[size]
                            or reply[tail] != crlf
                        ):
                            # missing, large or damaged
                            reply = host.lookups.check(key, reply) or connections[fd].nil
                            size = len(reply)
                    except SUSPECT:
                        reply = host.lookups.find_again(key) or connections[fd].nil
                        get, size = host.shard.txn.get, len(reply)
                    try:
                        written = write(fd, reply)
                    except BlockingIOError:
                        written = 0
                    sent += written
                    if written != size:
                        connections[fd].owe(reply, written)
            except Exception as problem:  # ends one connection, never the worker
                self._broken(fd, problem)
            if lookups:
                slot[counted.LOOKUPS] += lookups
                slot[counted.COMMANDS] += lookups
                slot[counted.SENT_BYTES] += sent

    def _handle(self, fd: int, events: int) -> None:
        """An event that is not for the hot path."""
        connection = self._host.connections.get(fd)
        if connection is not None:
            connection.ready(events)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._alarm.fileno():
            self._alarm.recv(4096)

    def _broken(self, fd: int, problem: Exception) -> None:
        """An event of ``fd`` ended in ``problem``: of the client's going away, or of a bug."""
        if isinstance(problem, BlockingIOError):
            return
        if not isinstance(problem, ConnectionError):
            log.error(
                "a connection is closed because of an error in the server",
                exc_info=problem,
            )
        if fd in self._host.connections:
            self._host.connections[fd].close()

    def _accept(self) -> None:
        host = self._host
        for _ in range(_ACCEPTED):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._accept_for_refusal(problem)
                return
            client.setblocking(False)
            if not self._has_room():
                self._turn_away(client)
                continue
            connection = RespConnection(host, self._watch, client)
            host.connections[connection.fd] = connection
            host.slot[counted.CONNECTIONS] += 1
            host.slot[counted.OPEN_CONNECTIONS] = len(host.connections)

    def _has_room(self) -> bool:
        """Whether there is room for one more client, if need be in place of one that has not shown the password."""
        host = self._host
        is_full = len(host.connections) >= host.limits.max_connections
        if host.strangers and (is_full or len(host.strangers) >= host.limits.max_strangers):
            next(iter(host.strangers.values())).cut()
            return True
        return not is_full

    def _turn_away(self, client: socket.socket) -> None:
        """Tell ``client`` that there are too many, and close."""
        self._host.slot[counted.CONNECTIONS_REFUSED] += 1
        with client, contextlib.suppress(OSError):
            client.send(_TOO_MANY)

    def _accept_for_refusal(self, problem: OSError) -> None:
        """Out of descriptors or memory: the listener would be ready again at once, and again. So who waits is told, by
        the descriptor that is kept for it, and nobody else is accepted until the next sweep.
        """
        if not self._accepting:
            return
        log.warning("cannot accept clients for now: %s", problem)
        os.close(self._spare)
        with contextlib.suppress(OSError):
            for _ in range(_ACCEPTED):
                self._turn_away(self._listener.accept()[0])
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.refuse()

    def refuse(self) -> None:
        """Accept nobody; who connects waits."""
        if self._accepting:
            self._accepting = False
            self._watch.remove(self._listener.fileno())

    def accept(self) -> None:
        """Accept again, after ``refuse``."""
        if not self._accepting:
            self._accepting = True
            self._watch.add(self._listener.fileno())
