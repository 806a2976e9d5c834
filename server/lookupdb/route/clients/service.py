"""What all client connections of one worker share, in whichever protocol."""

from __future__ import annotations

import math

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.clients.limits import LINGER_SECONDS
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore


class ClientService:
    """The lookup core, the worker's counters and bounds, and the deadlines that begin now."""

    __slots__ = (
        "budget",
        "counts",
        "draining",
        "gatekeeper",
        "header_deadline",
        "idle_deadline",
        "limits",
        "linger_deadline",
        "lookups",
        "write_deadline",
    )

    def __init__(
        self, lookups: LookupCore, limits: RouterLimits, counts: memoryview, gatekeeper: Gatekeeper | None = None
    ) -> None:
        self.lookups = lookups
        self.budget = lookups.budget
        self.limits = limits
        self.counts = counts
        self.gatekeeper = gatekeeper
        """Who may ask; None: anybody."""
        self.draining = False
        """Every answer from now on ends its connection."""
        self.idle_deadline = self.header_deadline = self.write_deadline = self.linger_deadline = math.inf
        """What a deadline that begins now is set to: as exact as the sweep that calls ``tick``."""

    def tick(self, now: float) -> None:
        """It is ``now`` by the event loop: deadlines follow."""
        limits = self.limits
        self.idle_deadline = now + limits.idle_timeout_seconds
        self.header_deadline = now + limits.header_timeout_seconds
        self.write_deadline = now + limits.write_timeout_seconds
        self.linger_deadline = now + LINGER_SECONDS
