"""RESP, as what clients speak on a port."""

from __future__ import annotations

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.clients.registry import ConnectionRegistry
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore
from lookupdb.route.resp.connection import RedisClientConnection
from lookupdb.route.resp.service import RespService


class RespProtocol:
    """Makes the RESP connections of a worker. A ``ClientProtocol``."""

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        port: int = 0,
    ) -> None:
        self.service = RespService(lookups, limits, counts, gatekeeper, port)

    def make_connection(self, registry: ConnectionRegistry) -> RedisClientConnection:
        """A connection that a client is about to make."""
        return RedisClientConnection(self.service, registry)
