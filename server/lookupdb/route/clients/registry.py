"""Who knows all client connections of a worker, and makes those of one protocol."""

from __future__ import annotations

from typing import Protocol

from lookupdb.route.clients.life import ConnectionLife
from lookupdb.route.clients.service import ClientService


class ConnectionRegistry(Protocol):
    """Who knows all connections."""

    def admit(self, connection: ConnectionLife) -> None:
        """Count ``connection``, or refuse it because there are too many."""

    def forget(self, connection: ConnectionLife) -> None:
        """``connection`` is lost."""


class ClientProtocol(Protocol):
    """What clients speak on one port."""

    @property
    def service(self) -> ClientService:
        """What its connections share."""

    def make_connection(self, registry: ConnectionRegistry) -> ConnectionLife:
        """A connection that a client is about to make, which ``registry`` knows until it is lost."""
