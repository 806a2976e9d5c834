"""What all endpoints of a worker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from lookupdb.route.servers.link import LinkSettings
from lookupdb.route.shards.coalescer import Coalescer


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Bounds of the lookups of an endpoint, and what its links need."""

    deadline_seconds: float
    """A batch of which nothing comes for longer breaks its connection."""
    max_queued_keys: int
    link: LinkSettings
    coalescer: Coalescer = field(default_factory=Coalescer)
