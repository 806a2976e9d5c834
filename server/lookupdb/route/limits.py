"""The bounds within which a router worker answers, and what its answers say to caches.

Their defaults stand in the CRD, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """As ``spec.Router``, which a worker cannot import: it would carry the schema's libraries in its memory."""

    deadline_milliseconds: int
    hedge_milliseconds: int
    """0: never."""
    max_keys: int
    max_body_bytes: int
    max_connections: int
    """A worker."""
    max_queued_keys: int
    """An endpoint."""
    header_timeout_seconds: float
    idle_timeout_seconds: float
    write_timeout_seconds: float
    cache_control: str | None = None
    """The field of that name, of the answers to lookups of one key; None: they have none."""

    @property
    def deadline_seconds(self) -> float:
        """The time from a lookup to its 503."""
        return self.deadline_milliseconds / 1000

    @property
    def hedge_seconds(self) -> float:
        """The delay after which a second replica is asked; 0 is never."""
        return self.hedge_milliseconds / 1000
