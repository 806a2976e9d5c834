"""Where a shard server listens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ServerAddress:
    """Of an endpoint: where one worker of a shard server listens."""

    host: str
    """A name or an IP address; an IPv6 address without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
