"""The bytes that one worker holds for all of its clients together: parts of requests, and replies not taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Protocol

# The limits of a worker and of each of its clients, and where the numbers come from.


READ_BYTES: Final = 16 << 10
"""The most bytes of one read: a batch of some 500 keys."""
CHUNK_BYTES: Final = 64 << 10
"""Replies to lookups are made up to so many bytes, and written before more are made."""
TIME_SLICE_SECONDS: Final = 0.01
"""After so long a client's further replies wait for its next time slice, behind those of all others."""

BEFORE_AUTH_ARGUMENTS: Final = 16
"""HELLO with AUTH and SETNAME has seven words."""
BEFORE_AUTH_BYTES: Final = 4 << 10
"""A password has 1,024 at most."""

WarmPolicy = Literal["auto", "always", "never"]
"""Whether the file, read to verify it, stays in the page cache; auto: when it fits into memory."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
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
    """A client that takes nothing of the replies that are ready for it for so long is closed, however few they are."""
    idle_seconds: float = 3600.0
    """A client that asks nothing for so long is closed; 0: never."""

    auth_seconds: float = 5.0
    """A client that has not authenticated for so long is closed."""
    max_held_bytes: int = 32 << 20
    """Of all clients together, parts of requests and replies not taken: beyond it clients are cut off."""

    @property
    def before_auth(self) -> ServerLimits:
        """The limits of a client that has not authenticated: enough for AUTH or HELLO."""
        return replace(
            self,
            max_arguments=BEFORE_AUTH_ARGUMENTS,
            max_request_bytes=BEFORE_AUTH_BYTES,
            max_inline_bytes=BEFORE_AUTH_BYTES,
            output_high=BEFORE_AUTH_BYTES,
        )

    @property
    def max_unauthenticated(self) -> int:
        """The most clients that have not authenticated; one more takes the place of the oldest."""
        return max(1, min(1024, self.max_connections // 4))

    def to_config(self) -> dict[str, Any]:
        """Return them as members of the worker's configuration."""
        return asdict(self)


# What a shard server says that it serves: the supervisor knows it, a worker answers it.


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a worker says that it serves. The router compares it before it uses a connection."""

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


# The counters of a worker, in shared memory.


COUNTERS: Final = {
    "lookups": "Keys looked up.",
    "misses": "Keys looked up that the shard does not hold.",
    "commands": "Commands answered.",
    "errors": "Commands answered with an error, and requests that were not RESP.",
    "damaged_lookups": "Keys looked up that were answered with an error because their stored value is damaged.",
    "connections": "Connections accepted.",
    "connections_refused": "Connections closed at once because there were too many.",
    "connections_cut": "Connections closed because the client was idle, slow, without the password or held too much.",
    "sent_bytes": "Bytes of replies.",
}
GAUGES: Final = {"open_connections": "Connections that are open now."}

NAMES: Final = (*COUNTERS, *GAUGES)
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
) = range(len(NAMES))
"""Places in a worker's slot: constants, because the hot path counts."""


class BudgetHolder(Protocol):
    """A client's connection."""

    held_bytes: int

    @property
    def fd(self) -> int:
        """The client's file descriptor."""

    def cut(self) -> None:
        """Close the connection, and free what is held for it."""


class ServerBudget:
    """Keeps ``total`` within ``limit`` by cutting clients off. One alone may hold more: it has limits of its own."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[int, BudgetHolder] = {}
        """By file descriptor, in the order in which they began to hold something."""

    def charge(self, holder: BudgetHolder, size: int) -> None:
        """Note that ``holder`` holds ``size`` bytes now, and cut clients off while all hold too much."""
        self.total += size - holder.held_bytes
        holder.held_bytes = size
        if size:
            self._holders.setdefault(holder.fd, holder)
        else:
            self._holders.pop(holder.fd, None)
        while self.total > self.limit and len(self._holders) > 1:
            self._next_victim().cut()

    def _next_victim(self) -> BudgetHolder:
        """Return who has held something for longest of those that hold at least the average. A client that takes its
        replies comes to hold nothing again and again, so it is spared.
        """
        mean = self.total / len(self._holders)
        return next(holder for holder in self._holders.values() if holder.held_bytes >= mean)
