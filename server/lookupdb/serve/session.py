"""What is true of a worker and of one of its clients, apart from sockets."""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lookupdb.serve.budget import Budget
from lookupdb.serve.limits import Limits
from lookupdb.serve.lookups import Lookups
from lookupdb.serve.resp import NIL
from lookupdb.shardfile import ShardReader


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says it serves: the router compares it before it uses a connection."""

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


@dataclass(slots=True)
class Host:
    """One worker, as its connections see it."""

    shard: ShardReader
    identity: Identity
    limits: Limits
    slot: memoryview
    """Its counters, by the places in ``counted``."""
    password: bytes | None = None
    port: int = 0
    file_bytes: int = 0
    lookups: Lookups = field(init=False)
    started: float = field(default_factory=time.monotonic)
    connections: dict[int, Any] = field(default_factory=dict)
    """By file descriptor."""
    strangers: dict[int, Any] = field(default_factory=dict)
    """Connections that have not shown the password, by file descriptor, the oldest first."""
    budget: Budget = field(init=False)
    limits_before_auth: Limits = field(init=False)
    last_id: int = 0

    def __post_init__(self) -> None:
        self.lookups = Lookups(self.shard, self.slot)
        self.budget = Budget(self.limits.max_held_bytes)
        self.limits_before_auth = self.limits.before_auth


class Session:
    """One client: which protocol it chose, whether it may ask, how it called itself."""

    __slots__ = ("authorised", "closing", "host", "id", "name", "nil", "protocol", "unauthorised_at")

    def __init__(self, host: Host) -> None:
        self.host = host
        host.last_id += 1
        self.id: Final = host.last_id
        self.closing = False
        """Set by a command after whose reply the connection is to be closed."""
        self.reset()

    def reset(self) -> None:
        """As it was when it connected."""
        self.authorised = self.host.password is None
        self.unauthorised_at = time.monotonic()
        """From when on it has to show the password."""
        self.name = b""
        self.speak(2)

    @property
    def limits(self) -> Limits:
        """Its own, which are narrow until it has shown the password."""
        return self.host.limits if self.authorised else self.host.limits_before_auth

    def speak(self, protocol: int) -> None:
        """Use RESP ``protocol``: 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]

    def authorise(self, password: bytes) -> bool:
        """Whether the password is right; from then on the client may ask."""
        expected = self.host.password
        if expected is None or not hmac.compare_digest(password, expected):
            return False
        self.authorised = True
        return True
