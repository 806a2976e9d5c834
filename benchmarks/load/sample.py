"""What one round of load measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One side, one round."""

    rate: float
    """Requests answered a second (each checked, see the generators)."""
    seconds: float
    load_busy: float
    """The part of its core that the load generator used: near 1 means that it, not the server, was the limit."""
    p50_us: float
    p99_us: float
    """Latency: of a request; pipelined, of a round of requests."""
    server_busy: float = 0.0
    """The part of its core that the server used."""
    behind_busy: float = 0.0
    """The part of the load generator's core that went to what stands behind the server."""
