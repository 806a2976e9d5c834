"""The bytes of requests and answers that a router worker may hold, and the requests that it refuses beyond that.

The budget counts everything that a client makes a worker keep: incomplete and waiting requests, values from shards, and
answers that a client has not read. Three marks set the order of refusal: batches at half of the budget, large values at
three quarters, everything else at the limit. So large work waits for small work, and nothing interrupts work that has
begun.

| bytes of | taken | released |
| --- | --- | --- |
| an incomplete request, commands over RESP | ``ConnectionLife._count_input`` | there, ``_drop`` |
| a command over RESP that looks up | ``RespExchange`` | ``answer``, ``_drop`` |
| a batch, or a request behind another | ``HttpConnection.charge`` | ``answer``, ``_drop``, ``BatchExchange.abandon`` |
| an accepted token, to recognise it | ``HttpConnection._authorize`` | ``_forget_admitted`` |
| an accepted token over RESP, to check it again | ``ClientSession.authorise`` | ``ClientSession.reset`` |
| answers that wait for an earlier one | ``HttpConnection._count_waiting_answer`` | there, ``_drop`` |
| answers that the client does not read | ``ConnectionLife._count_unsent`` | ``resume_writing``, ``connection_lost`` |
| a part of a shard's reply | ``ServerConnection._keep`` | ``_forget_chunks``: the reply is complete, large or lost |
| the values of a large reply | ``ShardBatch.accept`` | ``ShardBatch.release``: it is delivered or lost |
| the values of a client's batch | ``ShardSlice.deliver`` (``used +=``), ``deliver_readable`` | ``_release_budget`` |

| mark | checked by | beyond it |
| --- | --- | --- |
| ``batch_mark`` | ``LookupCore.find_many``, for a batch | 503 `Overloaded` |
| ``batch_mark`` | ``HttpConnection._may_begin`` | the connection has one lookup at a time |
| ``large_mark`` | ``ServerConnection._keep`` | the reply is read value by value |
| ``large_mark`` | ``PendingLookup.may_receive``, for each value of a large reply | 503 `Overloaded` |
| ``limit`` | ``LookupCore.find``, ``find_many`` for single keys | 503 `Overloaded` |
| ``limit`` | ``ConnectionLife._count_input``, ``HttpConnection._enqueue`` | 503 `Overloaded` or an error, and closed |
| ``answer_bytes`` | ``ScatterGather.count_bytes``, for one client's batch | 413 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """The limits of ``spec.Router``, which workers do not import: the schema's libraries would cost memory. The CRD has
    the defaults."""

    deadline_milliseconds: int
    hedge_milliseconds: int
    """0 disables hedging."""
    max_keys: int
    max_body_bytes: int
    max_connections: int
    """Limit per worker."""
    max_queued_keys: int
    """Limit per endpoint."""
    header_timeout_seconds: float
    idle_timeout_seconds: float
    write_timeout_seconds: float
    cache_control: str | None = None
    """The ``Cache-Control`` field of answers to single lookups, or None."""

    @property
    def deadline_seconds(self) -> float:
        """The time after which a lookup is answered 503."""
        return self.deadline_milliseconds / 1000


MIB: Final = 1 << 20
SUPERVISOR_BYTES: Final = 56 * MIB
"""Memory of a router's supervisor, which serves the admin port."""
WORKER_BYTES: Final = 48 * MIB
"""Memory of a worker without clients: program, endpoints, routing table."""
ACCOUNTS_BYTES: Final = 24 * MIB
"""Additional memory of a worker that checks service accounts: libraries and remembered tokens."""
TRACES_BYTES: Final = 16 * MIB
"""Additional memory of a worker that exports spans: 8 MiB of libraries, and the queue."""
CONNECTION_BYTES: Final = 14 * 1024
"""Uncounted memory of a client connection with one lookup in flight."""
TLS_CONNECTION_BYTES: Final = 48 * 1024
"""``CONNECTION_BYTES`` with TLS: 17 KiB more at rest, and an incomplete record."""
CLIENT_CERTIFICATE_BYTES: Final = 100 * 1024
"""Additional memory with client certificates: OpenSSL allocates for a chain as large as the client announces, up to
this."""
PARSED_FACTOR: Final = 8
"""The most bytes that a byte of a body becomes during parsing: copies, and text of four bytes per character."""
COUNTED_SHARE: Final = 0.75
"""The share of the remaining memory that is budgeted; the rest is lost to the allocator."""
MIN_BUDGET_BYTES: Final = 8 * MIB
MIN_CONNECTIONS: Final = 64
"""A worker with too little memory for these two minimums exceeds its limit."""
UNLIMITED_WORKER_BYTES: Final = 448 * MIB
"""A worker's memory if no limit is known: a router with one worker then stays within 504 MiB."""
MAX_ANSWER_BYTES: Final = 64 * MIB
"""Limit of one batch's values together; lower with a small budget. The schema keeps each value below it."""


class RouterBudget:
    """A worker's budget: ``used`` of ``limit`` bytes. ``take`` never refuses: ask ``has_room`` before large work."""

    __slots__ = ("answer_bytes", "batch_mark", "large_mark", "limit", "used")

    def __init__(self, limit: int, *, is_encrypted: bool = False) -> None:
        """``is_encrypted``: then an answer is copied to send it, so the largest must be smaller."""
        self.limit = limit
        self.used = 0
        self.batch_mark = limit // 2
        """Beyond it, no batch begins, and each HTTP connection has one lookup at a time."""
        self.large_mark = limit * 3 // 4
        """No large value is received beyond it."""
        self.answer_bytes = min(MAX_ANSWER_BYTES, limit // (3 if is_encrypted else 2))
        """Limit of the values of one answer together."""

    def take(self, size: int) -> None:
        """Take ``size`` bytes."""
        self.used += size

    def release(self, size: int) -> None:
        """Give back ``size`` bytes."""
        self.used -= size

    def has_room(self, size: int) -> bool:
        """Return whether large work may take ``size`` more bytes."""
        return self.used + size <= self.large_mark


def share_memory(
    memory_limit: int | None,
    workers: int,
    max_connections: int,
    max_body_bytes: int,
    connection_bytes: int = CONNECTION_BYTES,
) -> tuple[int, int]:
    """Share a container of ``memory_limit`` bytes (None: no limit known). Return the number of ``max_connections`` that
    a worker can afford with half of its spare memory, and its budget."""
    share = UNLIMITED_WORKER_BYTES if memory_limit is None else (memory_limit - SUPERVISOR_BYTES) // workers
    spare = share - WORKER_BYTES - PARSED_FACTOR * max_body_bytes  # beyond its program and the parsing of a body
    connections = min(max_connections, max(spare // 2 // connection_bytes, MIN_CONNECTIONS))
    return connections, max(int((spare - connections * connection_bytes) * COUNTED_SHARE), MIN_BUDGET_BYTES)
