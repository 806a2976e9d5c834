"""One client and the worker's end of its connection, in this process: the test is the worker's loop.

connection = LoneConnection(shard)
connection.client.sendall(b"PING\r\n")
connection.turn()
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import time

import pytest

from lookupdb.shard import connection
from lookupdb.shard import limits as shard_counters
from lookupdb.shard.commands import WorkerContext
from lookupdb.shard.connection import ACTIVE, WRITE, Poller, RespConnection, RespState
from lookupdb.shard.limits import READ_BYTES, ServerIdentity, ServerLimits
from lookupdb.shardfile import ShardReader
from support.invariants import check_invariants


def keep_turns_going(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turns end when a test says so, and not when a busy machine is late."""
    for module in (connection, shard_counters):
        monkeypatch.setattr(module, "TIME_SLICE_SECONDS", 3600.0)


class RecordedConnection(RespConnection):
    """Records the states that it went through."""

    __slots__ = ("moves",)

    def __init__(self, worker: WorkerContext, poller: Poller, server: socket.socket) -> None:
        self.moves: list[tuple[RespState, RespState]] = []
        super().__init__(worker, poller, server)

    def _enter(self, state: RespState) -> None:
        before = self._state
        super()._enter(state)
        self._note(before)

    def close(self) -> None:
        """Record this state too."""
        before = self._state
        super().close()
        self._note(before)

    def _note(self, before: RespState) -> None:
        if self._state is not before:
            self.moves.append((before, self._state))

    @property
    def state(self) -> RespState:
        """The current state."""
        return self._state


class LoneConnection:
    """``turn`` is one round of the loop, after which the connection's invariants hold."""

    def __init__(self, shard: ShardReader, limits: ServerLimits, password: bytes | None = None) -> None:
        self.slot = memoryview(bytearray(8 * len(shard_counters.NAMES) + 8)).cast("Q")
        identity = ServerIdentity(1, "default/sample", "", "generation", 0, 1, 1, (), "raw")
        digest = None if password is None else hashlib.sha256(password).digest()
        self.worker = WorkerContext(
            shard=shard, identity=identity, limits=limits, slot=self.slot, password_sha256=digest
        )
        server, self.client = socket.socketpair()
        server.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.poller = Poller()
        self.connection = RecordedConnection(self.worker, self.poller, server)
        self.worker.connections[self.connection.fd] = self.connection
        check_invariants(self.connection)

    def turn(self) -> int:
        """Handle ready events as the loop does, and return them."""
        ready = 0
        for fd, events in self.poller.epoll.poll(0):
            ready |= events
            if self.poller.fast_path[fd]:
                self.poller.fast_path[fd] = ACTIVE
                self.connection.receive(os.read(fd, READ_BYTES))
            else:
                self.connection.handle_events(events)
            check_invariants(self.connection)
        return ready

    def turn_until_full(self) -> None:
        """Take turns until the client's end holds all that it can."""
        while self.turn() & WRITE:
            pass

    def send(self, data: bytes) -> None:
        """Let the client send ``data``, and the connection read it."""
        self.client.sendall(data)
        self.turn()

    def take(self, size: int) -> bytes:
        """Return ``size`` bytes that the client gets."""
        taken = bytearray()
        while len(taken) < size and select.select([self.client], [], [], 10)[0]:
            taken += self.client.recv(size - len(taken))
            self.turn()
        return bytes(taken)

    def take_rest(self) -> bytes:
        """Everything sent to the client, until there is no more for now or the stream ends."""
        taken = bytearray()
        while True:
            while self.turn() & WRITE:
                pass
            if not select.select([self.client], [], [], 0)[0] or not (data := self.client.recv(1 << 16)):
                return bytes(taken)
            taken += data

    def is_cut(self, now: float) -> bool:
        """Return whether the sweep at ``now`` closes it, or an earlier one has."""
        if self.worker.connections:
            self.connection.sweep(now)
        return self.slot[shard_counters.CONNECTIONS_CUT] == 1

    def close(self) -> None:
        """Both ends."""
        self.client.close()
        self.connection.close()
        self.poller.epoll.close()


def moment() -> float:
    """A time after the connection was made."""
    return time.monotonic() + 1
