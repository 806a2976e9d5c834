"""What all HTTP connections of one worker share."""

from __future__ import annotations

from collections.abc import Callable

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.clients.service import ClientService
from lookupdb.route.http.answers import Answers
from lookupdb.route.http.batches import choose_batches
from lookupdb.route.limits import RouterLimits
from lookupdb.route.lookup_core import LookupCore


class HttpService(ClientService):
    """With what answers are made of."""

    __slots__ = ("answers", "batches", "is_ready")

    def __init__(
        self,
        lookups: LookupCore,
        limits: RouterLimits,
        counts: memoryview,
        gatekeeper: Gatekeeper | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(lookups, limits, counts, gatekeeper)
        self.is_ready = is_ready
        """Whether the worker has been reported ready, as ``/readyz`` answers while it does not drain."""
        self.answers = Answers(limits.cache_control)
        self.batches = choose_batches()

    def tick(self, now: float) -> None:
        """It is ``now`` by the event loop: deadlines and dates follow."""
        super().tick(now)
        self.answers.tick()
