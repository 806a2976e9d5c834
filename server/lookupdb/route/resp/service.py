"""What all RESP connections of one worker share."""

from __future__ import annotations

import time
from typing import Final

from lookupdb.resp.fields import FieldReader, choose_fields
from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.clients.service import ClientService
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore
from lookupdb.route.resp.codec import choose_codec
from lookupdb.route.resp.limits import make_read_limits


class RespService(ClientService):
    """With what commands are read and answered by."""

    __slots__ = ("_last_id", "codec", "fields", "port", "read_limits", "started_at")

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(lookups, limits, counts, gatekeeper)
        self.codec: Final = choose_codec()
        self.fields: Final[FieldReader] = choose_fields()
        self.read_limits: Final = make_read_limits(limits.max_body_bytes)
        """Of a client that may ask."""
        self.port: Final = port
        """On which clients connect: ``INFO`` tells it."""
        self.started_at: Final = time.monotonic()
        self._last_id = 0

    def take_id(self) -> int:
        """The number of a client: each has another one."""
        self._last_id += 1
        return self._last_id
