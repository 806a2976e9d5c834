"""Limits of a shard worker and its clients, its identity and counters, and the budget for what all clients hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from lookupdb.process.worker import histogram_names
from lookupdb.resp.requests import CommandLimits

READ_BYTES: Final = 16 << 10
"""Limit of one read: a batch of some 500 keys."""
CHUNK_BYTES: Final = 64 << 10
"""Replies to lookups are made up to this size, and written before more are made."""
TIME_SLICE_SECONDS: Final = 0.01
"""After this time, a client's further replies wait for its next turn, after all other clients."""

WarmPolicy = Literal["auto", "always", "never"]
"""Policy for keeping the file in the page cache after verification. auto: keep it if it fits into memory."""


@dataclass(frozen=True, slots=True)
class ServerLimits(CommandLimits):
    """Limits of one worker, in bytes and seconds."""

    max_connections: int = 10_000
    """Like Redis' maxclients. Further clients get an error and are disconnected."""
    max_arguments: int = 100_001
    """Limit per command: an MGET of 100,000 keys. Redis allows 1,048,576."""
    max_request_bytes: int = 8 << 20
    """Limit per command, complete or not. Redis allows 512 MiB per argument; the longest key has 511 bytes."""
    max_inline_bytes: int = 64 << 10
    """As in Redis."""
    output_high: int = 1 << 20
    """More unsent bytes of replies pause the client, until at most half as many are left."""
    slow_seconds: float = 60.0
    """A client that reads none of its replies for this long is disconnected, however few they are."""
    idle_seconds: float = 3600.0
    """A client without requests for this long is disconnected; 0: never."""

    auth_seconds: float = 5.0
    """A client that has not authenticated within this time is disconnected."""
    max_held_bytes: int = 32 << 20
    """Limit of the incomplete requests and unread replies of all clients together. Beyond it, clients are cut off."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a worker says it serves. The router checks this before it uses a connection."""

    format_version: int
    dataset: str
    """``namespace/name``."""
    dataset_uid: str
    generation: str
    shard: int
    shards: int
    records: int
    normalize: Sequence[str]
    value_format: str


COUNTERS: Final = {
    "lookups": "Keys looked up.",
    "misses": "Keys looked up that the shard does not hold.",
    "commands": "Commands answered.",
    "errors": "Commands answered with an error, and invalid requests.",
    "damaged_lookups": "Keys answered with an error because their stored value is damaged.",
    "connections": "Connections accepted.",
    "connections_refused": "Connections closed at once because there were too many.",
    "connections_cut": "Connections closed because the client was idle or slow, sent no password, or held too much.",
    "sent_bytes": "Bytes of replies.",
}
GAUGES: Final = {"open_connections": "Open connections."}
DURATIONS: Final = {
    (command, outcome): histogram_names(f"{command}_{outcome}")
    for command in ("get", "mget", "exists", "other")
    for outcome in ("ok", "failed")
}
"""Histograms of requests by command and outcome. A request fails if its reply is or holds an error.

A request arrives with the turn of the loop that reads its first byte, and ends when the last byte of its reply is
passed to the system, or waits for a client that reads slowly."""
DURATIONS_HELP: Final = "Seconds from reading the first byte of a command to sending the last byte of its reply."

NAMES: Final = (*COUNTERS, *GAUGES, *(name for names in DURATIONS.values() for name in names))
(
    LOOKUPS,
    MISSES,
    COMMANDS,
    ERRORS,
    DAMAGED_LOOKUPS,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    CONNECTIONS_CUT,
    SENT_BYTES,
    OPEN_CONNECTIONS,
) = range(len(COUNTERS) + len(GAUGES))
"""Places in a worker's slot, constants for the hot path."""
FAILED: Final = len(histogram_names(""))
"""The number of places from a histogram of successful requests to the histogram of failed ones."""
GET, MGET, EXISTS, OTHER = (NAMES.index(DURATIONS[command, "ok"][0]) for command in ("get", "mget", "exists", "other"))
"""The places of histograms."""


class ServerBudget:
    """Cuts clients off to keep ``total`` within ``limit``. A single client may hold more, up to its own limits."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[int, Any] = {}
        """Client connections by file descriptor, in the order in which they began to hold something."""

    def charge(self, holder: Any, size: int) -> None:
        """Record that ``holder`` holds ``size`` bytes, and cut clients off while all together hold too much."""
        self.total += size - holder.held_bytes
        holder.held_bytes = size
        if size:
            self._holders.setdefault(holder.fd, holder)
        else:
            self._holders.pop(holder.fd, None)
        while self.total > self.limit and len(self._holders) > 1:
            # Of those that hold at least the average, cut the one that has held bytes longest. A client that reads its
            # replies keeps returning to zero, so it is spared.
            mean = self.total / len(self._holders)
            next(other for other in self._holders.values() if other.held_bytes >= mean).cut()
