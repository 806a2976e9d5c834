"""What all client connections of one worker share."""

from __future__ import annotations

import math

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.http.answers import Answers
from lookupdb.route.http.batches import choose_batches
from lookupdb.route.http.limits import LINGER_SECONDS
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore


class HttpService:
    """The lookup core, the worker's counters and bounds, and the deadlines that begin now."""

    __slots__ = (
        "answers",
        "batches",
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
        self.answers = Answers()
        self.batches = choose_batches()
        self.gatekeeper = gatekeeper
        """Who may ask; None: anybody."""
        self.draining = False
        """Answers say ``Connection: close`` from now on."""
        self.idle_deadline = self.header_deadline = self.write_deadline = self.linger_deadline = math.inf
        """What a deadline that begins now is set to: as exact as the sweep that calls ``tick``."""

    def tick(self, now: float) -> None:
        """It is ``now`` by the event loop: deadlines and dates follow."""
        limits = self.limits
        self.idle_deadline = now + limits.idle_timeout_seconds
        self.header_deadline = now + limits.header_timeout_seconds
        self.write_deadline = now + limits.write_timeout_seconds
        self.linger_deadline = now + LINGER_SECONDS
        self.answers.tick()
