"""What every operation of one gateway shares: the memory it may hold, whose store it is, what is counted."""

from __future__ import annotations

from dataclasses import dataclass

from lookupdb_operator.gateway.access import Access
from lookupdb_operator.gateway.bodies import IDLE_SECONDS, SHORT_SECONDS
from lookupdb_operator.gateway.budget import Budget
from lookupdb_operator.gateway.metrics import GatewayMetrics


@dataclass(frozen=True, slots=True)
class Room:
    """For ``Reads`` and ``Writes``."""

    budget: Budget
    """Of files."""
    short_budget: Budget
    """Of all that is short, which files leave free."""
    metrics: GatewayMetrics
    access: Access
    idle_seconds: float = IDLE_SECONDS
    """For which a client may send or take nothing."""
    short_seconds: float = SHORT_SECONDS
    """In which what is short must have come."""

    @property
    def cluster(self) -> str:
        """The cluster's id, with which every path begins."""
        return self.access.cluster
