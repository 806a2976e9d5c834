"""The bytes of requests and answers that a router worker may hold, and who is refused when they are used up.

The budget counts everything that a client can make a worker keep, while it is kept: requests that have not come whole,
requests that wait, values on their way from shards, answers that a client has not taken. Three marks order who is
refused first: batches at half of the budget, large values at three quarters, all else when the budget is used up. So
large work makes way for small work, and nothing that has begun makes way for anything.

| bytes of | taken | released |
| --- | --- | --- |
| what is no whole request yet | ``HttpConnection._count_input`` | there, ``_drop`` |
| commands over RESP | ``RedisClientConnection._count_input``, ``RespExchange`` | there, ``answer``, ``_drop`` |
| a batch, or a request behind another | ``HttpConnection.charge`` | ``answer``, ``_drop``, ``BatchExchange.abandon`` |
| a token that was accepted, to know it again | ``HttpConnection._authorize`` | ``_forget_admitted`` |
| the same over RESP, to judge it again | ``ClientSession.authorise`` | ``ClientSession.reset`` |
| answers that wait for an earlier one | ``HttpConnection._count_waiting_answer`` | there, ``_drop`` |
| answers that the client does not take | ``ConnectionLife._count_unsent`` | ``resume_writing``, ``connection_lost`` |
| a part of a shard's reply | ``ServerConnection._keep`` | ``_forget_chunks``: it is whole, large or lost |
| the values of a large reply | ``ShardBatch.accept`` | ``ShardBatch.release``: it is delivered or lost |
| the values of a client's batch | ``ScatterGather.hold``, ``ShardSlice.deliver`` (``used +=``) | ``_release_budget`` |

| mark | who asks | beyond it |
| --- | --- | --- |
| ``batch_mark`` | ``LookupCore.find_many``, of a batch | 503 `Overloaded` |
| ``large_mark`` | ``ServerConnection._keep`` | the reply is read value by value |
| ``large_mark`` | ``PendingLookup.may_receive``, for each value of a large reply | 503 `Overloaded` |
| ``limit`` | ``LookupCore.find``, ``find_many`` of single keys | 503 `Overloaded` |
| ``limit`` | ``HttpConnection._count_input``, ``_enqueue`` | 503 `Overloaded`, and the connection is closed |
| ``limit`` | ``RedisClientConnection._count_input`` | the same |
| ``answer_bytes`` | ``ScatterGather.count_bytes``, for one client's batch | 413 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The bounds within which a router worker answers, and what its answers say to caches.
#
# Their defaults stand in the CRD, and nowhere else.


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


MIB: Final = 1 << 20
SUPERVISOR_BYTES: Final = 56 * MIB
"""Of a router's supervisor, which serves the admin port."""
WORKER_BYTES: Final = 48 * MIB
"""Of a worker without clients: its program, its endpoints, the routing table."""
ACCOUNTS_BYTES: Final = 24 * MIB
"""Of a worker that judges service accounts, on top: the libraries, and the tokens that it remembers."""
CONNECTION_BYTES: Final = 14 * 1024
"""Of a client connection with one lookup in flight: what is counted nowhere else."""
TLS_CONNECTION_BYTES: Final = 48 * 1024
"""The same with TLS: 17 KiB more at rest, and a record that has not come whole."""
CLIENT_CERTIFICATE_BYTES: Final = 100 * 1024
"""With an authority of clients, on top: OpenSSL makes room for as large a chain as a client announces, up to this."""
PARSED_FACTOR: Final = 8
"""Bytes that a byte of a body becomes at most while it is parsed: copies, and text of four bytes a character."""
COUNTED_SHARE: Final = 0.75
"""The share of the remaining memory that is budgeted: the allocator cannot use the rest."""
MIN_BUDGET_BYTES: Final = 8 * MIB
MIN_CONNECTIONS: Final = 64
"""A worker that has less memory than these two need is not held to its limit; it says so when it starts."""
UNLIMITED_WORKER_BYTES: Final = 448 * MIB
"""A worker's memory where no limit is known: a router with one worker then keeps within 504 MiB."""
MAX_ANSWER_BYTES: Final = 64 * MIB
"""The values of one batch, together, where the budget is twice as much. The schema lets no single value be larger."""


class RouterBudget:
    """``limit`` bytes, of which ``used`` are taken. ``take`` never refuses: ask ``has_room`` before large work."""

    __slots__ = ("answer_bytes", "batch_mark", "large_mark", "limit", "used")

    def __init__(self, limit: int, *, is_encrypted: bool = False) -> None:
        """``is_encrypted``: an answer is copied when it is sent, so the largest one may be smaller."""
        self.limit = limit
        self.used = 0
        self.batch_mark = limit // 2
        """Beyond it no batch begins."""
        self.large_mark = limit * 3 // 4
        """Beyond it no large value is received."""
        self.answer_bytes = min(MAX_ANSWER_BYTES, limit // (3 if is_encrypted else 2))
        """The most that the values of one answer may have together."""

    def take(self, size: int) -> None:
        """Count ``size`` bytes more."""
        self.used += size

    def release(self, size: int) -> None:
        """Give back ``size`` bytes that were taken."""
        self.used -= size

    def has_room(self, size: int) -> bool:
        """Whether large work may hold ``size`` bytes more."""
        return self.used + size <= self.large_mark


def worker_budget(
    memory_limit: int | None,
    workers: int,
    max_connections: int,
    max_body_bytes: int,
    connection_bytes: int = CONNECTION_BYTES,
) -> int:
    """The budget of each of ``workers`` whose container may use ``memory_limit`` bytes; None: no limit is known."""
    spare = _spare_bytes(memory_limit, workers, max_body_bytes) - max_connections * connection_bytes
    return max(int(spare * COUNTED_SHARE), MIN_BUDGET_BYTES)


def affordable_connections(
    memory_limit: int | None,
    workers: int,
    max_connections: int,
    max_body_bytes: int,
    connection_bytes: int = CONNECTION_BYTES,
) -> int:
    """How many of ``max_connections`` a worker can afford: they may take half of its spare memory."""
    return min(
        max_connections,
        max(_spare_bytes(memory_limit, workers, max_body_bytes) // 2 // connection_bytes, MIN_CONNECTIONS),
    )


def _spare_bytes(memory_limit: int | None, workers: int, max_body_bytes: int) -> int:
    """The part of a worker's memory that neither its program nor the parsing of a body needs."""
    share = UNLIMITED_WORKER_BYTES if memory_limit is None else (memory_limit - SUPERVISOR_BYTES) // workers
    return share - WORKER_BYTES - PARSED_FACTOR * max_body_bytes
