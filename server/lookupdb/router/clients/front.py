"""The router's public ports: accept connections, close those past their deadline, and drain.

No request or connection has a timer of its own. A few times a second, one sweep checks every connection.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from lookupdb.disk import raise_limit
from lookupdb.process.listeners import BACKLOG, max_client_connections
from lookupdb.router.access import Gatekeeper
from lookupdb.router.budget import RouterBudget, RouterLimits
from lookupdb.router.clients.life import (
    MAX_LINGERING_REFUSED,
    SWEEP_SECONDS,
    ClientService,
    ConnectionLife,
    ConnectionRegistry,
)
from lookupdb.router.counters import INDEX
from lookupdb.router.shards.replicas import CONNECTIONS_AN_ENDPOINT

if TYPE_CHECKING:
    from lookupdb.router.clients.tls import Certificates


ServiceT = TypeVar("ServiceT", bound=ClientService)

_ACCEPTED: Final = INDEX["connections_accepted"]
_REFUSED: Final = INDEX["connections_refused"]
_OPEN: Final = INDEX["connections"]
_ENDPOINTS: Final = tuple(
    INDEX[f"{prefix}endpoints_{state}"] for prefix in ("", "candidate_") for state in ("ready", "unready")
)
_BUDGET: Final = INDEX["budget_bytes"]
_USED: Final = INDEX["budget_used_bytes"]


class ClientFront:
    """All client connections of one worker, which counts in ``counters``."""

    def __init__(
        self,
        budget: RouterBudget,
        limits: RouterLimits,
        counters: memoryview,
        gatekeeper: Gatekeeper | None = None,
        certificates: Certificates | None = None,
        dataset_counters: Sequence[memoryview] = (),
    ) -> None:
        """Without ``gatekeeper`` every client may look up; without ``certificates`` clients connect without TLS.
        ``dataset_counters`` count endpoints, unless ``counters`` do."""
        self._budget = budget
        self._limits = limits
        self._gatekeeper = gatekeeper
        self._certificates = certificates
        self._access_version = 0
        self._services: list[ClientService] = []
        self._counters = counters
        self._dataset_counters = dataset_counters or (counters,)
        self._descriptors = raise_limit()
        self._connections: set[ConnectionLife] = set()
        self._refused: set[ConnectionLife] = set()
        """Connections beyond the limit, open only until their clients have read the refusal."""
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(
        self,
        listener: socket.socket,
        service: ServiceT,
        make_connection: Callable[[ServiceT, ConnectionRegistry], ConnectionLife],
    ) -> None:
        """Accept connections on ``listener``, which is already bound, to ``service``."""
        if service not in self._services:
            self._services.append(service)
            service.tick(self._loop.time())
        if self._sweeping is None:
            self._sweep()

        def accept_plain() -> ConnectionLife:
            return make_connection(service, self)

        accept = accept_plain if self._certificates is None else self._encrypt(self._certificates, accept_plain)
        # asyncio would lower the backlog to 100.
        server = await self._loop.create_server(accept, sock=listener, backlog=BACKLOG)
        self._servers.append(server)

    def _encrypt(
        self, certificates: Certificates, accept_plain: Callable[[], ConnectionLife]
    ) -> Callable[[], asyncio.Protocol]:
        """Return a factory of TLS connections, each with the certificate that is current then."""
        from lookupdb.router.clients.tls import TlsBuffers, TlsConnection

        buffers = TlsBuffers()

        def accept() -> TlsConnection:
            assert certificates.context is not None, "nothing listens before there is a certificate"
            return TlsConnection(accept_plain(), certificates.context, buffers)

        return accept

    def drain(self) -> None:
        """Keep answering, but close each connection with its next answer."""
        for service in self._services:
            service.draining = True

    async def close(self, seconds: float) -> None:
        """Stop accepting, close idle connections and finish requests within ``seconds``; then abort the rest."""
        self.drain()
        for server in self._servers:
            server.close()
        deadline = self._loop.time() + seconds
        while self._connections and self._loop.time() < deadline:
            for connection in tuple(self._connections):
                connection.finish()
            await asyncio.sleep(0.02)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._connections, *self._refused):
            connection.abort()

    def admit(self, connection: ConnectionLife) -> None:
        """Count ``connection``, or refuse it if there are too many."""
        endpoints = CONNECTIONS_AN_ENDPOINT * sum(
            counters[gauge] for counters in self._dataset_counters for gauge in _ENDPOINTS
        )
        # Lower than configured if endpoints leave too few descriptors.
        limit = min(self._limits.max_connections, max_client_connections(self._descriptors, endpoints))
        if len(self._connections) < limit:
            self._connections.add(connection)
            self._counters[_ACCEPTED] += 1
            self._counters[_OPEN] = len(self._connections)
            return
        self._counters[_REFUSED] += 1
        self._refused.add(connection)
        connection.refuse_connection(limit)
        if len(self._refused) > MAX_LINGERING_REFUSED:
            connection.close()

    def forget(self, connection: ConnectionLife) -> None:
        """Remove a lost connection."""
        self._refused.discard(connection)
        self._connections.discard(connection)
        self._counters[_OPEN] = len(self._connections)

    def _sweep(self) -> None:
        now = self._loop.time()
        for service in self._services:
            service.tick(now)
        budget = self._budget
        self._counters[_BUDGET] = budget.limit
        self._counters[_USED] = max(budget.used, 0)
        overdue = [connection for connection in self._connections if connection.deadline < now]
        overdue += [connection for connection in self._refused if connection.deadline < now]
        for connection in overdue:
            connection.handle_deadline()
        gatekeeper = self._gatekeeper
        if gatekeeper is not None:  # all connections ask again after a change, else those whose time has passed
            ended_before = time.time() if gatekeeper.version == self._access_version else math.inf
            self._access_version = gatekeeper.version
            for connection in self._connections:
                connection.forget_access(ended_before)
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
