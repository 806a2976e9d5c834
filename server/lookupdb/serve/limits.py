"""What one client may ask of a worker: numbers, and where they come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one worker. Sizes in bytes, times in seconds."""

    max_connections: int = 10_000
    """As Redis' maxclients. One more is told so and closed."""
    max_arguments: int = 100_001
    """Of one command: MGET of 100,000 keys. Redis allows 1,048,576."""
    max_request_bytes: int = 8 << 20
    """Of one command, before it is whole. Redis allows 512 MiB an argument; the longest key is 511 bytes."""
    max_inline_bytes: int = 64 << 10
    """Of an inline command or of a length line: the same as Redis."""
    output_high: int = 1 << 20
    """Unsent replies above this pause the client: it is read no further until half of it is sent."""
    slow_seconds: float = 60.0
    """A client that stays paused so long is closed: it does not read what it asked for."""
    idle_seconds: float = 3600.0
    """A client that asks nothing for so long is closed; 0: never."""

    def to_config(self) -> dict[str, Any]:
        """For the worker's configuration."""
        return asdict(self)
