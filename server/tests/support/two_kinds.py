"""One worker in this process, with its turn of either kind, and clients on real sockets.

with InProcessWorker(path, "native") as worker:
    client = worker.connect()
    worker.send(client, b"*2\\r\\n…")
    worker.replies(client)
"""

from __future__ import annotations

import hashlib
import select
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import pytest

from lookupdb import native
from lookupdb.shard import limits as shard_counters
from lookupdb.shard.commands import WorkerContext
from lookupdb.shard.connection import Poller, RespConnection
from lookupdb.shard.limits import ServerIdentity, ServerLimits
from lookupdb.shard.worker import make_turn
from lookupdb.shardfile import ShardReader
from support.invariants import check_invariants

KINDS = ("python",) if native.kernels() is None else ("native", "python")
"""The kinds of kernels that can be compared."""


class InProcessWorker:
    """Everything of a worker but its process and its listener. It is also the loop that its turn leaves events to."""

    def __init__(
        self, path: Path, kernels: str, limits: ServerLimits | None = None, password: bytes | None = None
    ) -> None:
        self.slot = memoryview(bytearray(8 * len(shard_counters.NAMES))).cast("Q")
        identity = ServerIdentity(1, "default/sample", "", "generation", 0, 1, 500, (), "raw")
        self._shard = ShardReader(path)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(native.VARIABLE, "1" if kernels == "native" else "0")
            self.worker = WorkerContext(
                shard=self._shard,
                identity=identity,
                limits=limits or ServerLimits(),
                slot=self.slot,
                password_sha256=None if password is None else hashlib.sha256(password).digest(),
            )
        self._poller = Poller()
        self._turn = make_turn(self.worker, self._poller)
        self._received: dict[socket.socket, bytearray] = {}
        self.errors: list[Exception] = []
        """The errors that ended a connection."""
        self.until = 0.0

    def connect(self, sent_bytes: int | None = None) -> socket.socket:
        """A client; about ``sent_bytes`` of its replies fit on the way to it."""
        server, client = socket.socketpair()
        for end in (server, client):
            end.setblocking(False)
        if sent_bytes is not None:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
        connection = RespConnection(self.worker, self._poller, server)
        self.worker.connections[connection.fd] = connection
        self._received[client] = bytearray()
        return client

    def send(self, client: socket.socket, data: bytes) -> None:
        """Let ``client`` send all of ``data``, unless the worker has closed its connection."""
        view = memoryview(data)
        while view:
            try:
                view = view[client.send(view) :]
            except BlockingIOError:
                self.take_turns()
                self._receive(client)
            except ConnectionError:
                return

    def take_turns(self, seconds: float = 0.0) -> None:
        """Take turns while anything is ready, but not for longer than ``seconds`` if clients do not read."""
        until = time.monotonic() + seconds
        while self._is_ready():
            self.until = time.monotonic() + 1e-4
            self._turn.run(cast("Any", self))
            for connection in list(self.worker.connections.values()):
                check_invariants(connection)
            if time.monotonic() > until:
                return

    def take_a_turn(self) -> None:
        """Take one turn."""
        self.until = time.monotonic() + 1e-4
        self._turn.run(cast("Any", self))

    def take(self, client: socket.socket) -> bytes:
        """Take the bytes that have arrived at ``client``; ``replies`` forgets them."""
        received = self._received[client]
        received.clear()
        self._receive(client)
        return bytes(received)

    def replies(self, client: socket.socket) -> bytes:
        """All that ``client`` has been sent, once nothing more comes."""
        size, end = -1, time.monotonic() + 30
        while size != len(self._received[client]) or (self._is_ready() and time.monotonic() < end):
            size = len(self._received[client])
            self.take_turns(0.1)  # may be over before this client's turn, on a slow machine
            self._receive(client)
        return bytes(self._received[client])

    def _is_ready(self) -> bool:
        return bool(select.select([self._poller.epoll.fileno()], [], [], 0)[0])

    def check_disk(self) -> None:
        """Nothing is ever cold here."""

    def counters(self) -> dict[str, int]:
        """By name."""
        return dict(zip(shard_counters.NAMES, self.slot, strict=True))

    def _receive(self, client: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                self._received[client] += data
        except (BlockingIOError, ConnectionError):
            pass

    def handle(self, fd: int, events: int) -> None:
        """As the loop does."""
        if fd in self.worker.connections:
            self.worker.connections[fd].handle_events(events)

    def close_broken(self, fd: int, problem: Exception) -> None:
        """As the loop does."""
        if not isinstance(problem, BlockingIOError):
            self.errors.append(problem)
            if fd in self.worker.connections:
                self.worker.connections[fd].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._received:
            client.close()
        for connection in list(self.worker.connections.values()):
            connection.close()
        self._poller.epoll.close()
        self._shard.close()
