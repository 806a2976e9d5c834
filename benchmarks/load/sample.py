"""The result of one round of load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One side, one round."""

    rate: float
    """Requests answered a second (each checked, see the generators)."""
    seconds: float
    load_busy: float
    """The load generator's share of its core: near 1 means that it was the limit, not the server."""
    p50_us: float
    p99_us: float
    """Latency of a request; pipelined, of a group of requests."""
    server_busy: float = 0.0
    """The server's share of its core."""
    behind_busy: float = 0.0
    """The share of the load generator's core that the servers behind the measured one used."""
