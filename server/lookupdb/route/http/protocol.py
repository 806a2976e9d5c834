"""HTTP, as what clients speak on a port."""

from __future__ import annotations

from collections.abc import Callable

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.clients.registry import ConnectionRegistry
from lookupdb.route.http.connection import HttpConnection
from lookupdb.route.http.service import HttpService
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore


class HttpProtocol:
    """Makes the HTTP connections of a worker. A ``ClientProtocol``."""

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.service = HttpService(lookups, limits, counts, gatekeeper, is_ready)

    def make_connection(self, registry: ConnectionRegistry) -> HttpConnection:
        """A connection that a client is about to make."""
        return HttpConnection(self.service, registry)
