"""A lane to an endpoint: one connection and the asks that wait for it. One batch is in flight while the next gathers.

A lone ask leaves at once; others leave together with those of the other lanes (see ``gathering``). Answers come in the
order of the batches, so a connection on which one went missing or wrong is closed, never resynchronised: a late answer
can then not be taken for another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, Literal

import hiredis

from lookupdb.route.counters import INDEX
from lookupdb.route.lookups.pending import PendingLookup
from lookupdb.route.lookups.waiters import Problem
from lookupdb.route.servers.connection import ServerConnection
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.servers.link import Link, LinkState, Settings
from lookupdb.route.servers.replies import SKIPPED
from lookupdb.route.shards.batch import ShardBatch
from lookupdb.route.shards.batch_size import FIRST_KEYS, BatchSize
from lookupdb.route.shards.coalescer import ENOUGH_KEYS
from lookupdb.route.shards.fair_queue import FairQueue
from lookupdb.route.shards.stall_watch import StallWatch
from lookupdb.route.table.routing_table import ServerAddress

_TARGET_SHARE: Final = 1 / 8
"""Of a lookup's deadline: a large answer that takes longer has fewer keys the next time."""
_SAMPLED: Final = 64
_KINDS: Final = frozenset((bytes, NoneType))
_READABLE_KINDS: Final = _KINDS | {hiredis.ReplyError, type(SKIPPED)}
_FOUND: Final = INDEX["keys_found"]
_MISSING: Final = INDEX["keys_missing"]
_DAMAGED: Final = INDEX["keys_damaged"]
_BATCHES: Final = INDEX["batches"]
_ASKED: Final = INDEX["keys_asked"]
_BATCHES_SAMPLED: Final = INDEX["batches_sampled"]
_MICROSECONDS: Final = INDEX["batch_microseconds_sampled"]

Queue = deque[PendingLookup] | FairQueue
"""What waits to be sent."""


class Lane:
    """A lane to ``address``. ``on_state`` is called as ``LinkUser.state_changed`` is."""

    def __init__(
        self,
        address: ServerAddress,
        identity: ShardIdentity,
        settings: Settings,
        kind: Literal["small", "large"],
        on_state: Callable[[], None],
    ) -> None:
        self.link = Link(address, identity, settings, self, kind)
        self.queue: Any = deque() if kind == "small" else FairQueue()
        """A ``Queue``."""
        self.size = BatchSize(settings.deadline_seconds * _TARGET_SHARE, FIRST_KEYS if kind == "small" else 1)
        self.outstanding = 0
        """Keys queued and in flight."""
        self.answered_at = float("-inf")
        """The loop's time of the last answer."""
        self.state_changed = on_state
        self._address = address
        self._identity = identity
        self._settings = settings
        self._counters = settings.counters
        self._max_queued_keys = settings.max_queued_keys
        self._gathering = settings.gathering
        self._now = asyncio.get_running_loop().time
        self._batch: ShardBatch | None = None
        """In flight. A second one would give smaller batches for the same keys: with 100 clients and 4 shards 9.7 keys
        instead of 11.7, and 38,700 lookups a second instead of 47,000 (one run, on a machine that was not quiet)."""
        self._connection: ServerConnection | None = None
        self._is_patient = kind == "large"
        self._is_returning = False
        self._scheduled = False
        self._received = 0
        """Bytes that had come when the last batch was answered."""
        self._stall = StallWatch(
            settings.deadline_seconds, self._in_flight_since, self._received_bytes, self._close_stalled
        )

    # Asking: the hot path.

    def ask(self, ask: PendingLookup) -> bool:
        """Queue ``ask`` for the next batch; False when the queue is full."""
        if self.outstanding >= self._max_queued_keys:
            return False
        self.outstanding += ask.count
        ask.tries += 1
        self.queue.append(ask)
        if not self._scheduled and self._batch is None:
            self._scheduled = True
            self._gathering.add(self)
        return True

    def send(self) -> None:
        """Send the next batch."""
        self._scheduled = False
        if self._connection is None or self._batch is not None:
            return
        queue, most = self.queue, self.size.keys
        asks: list[PendingLookup] = []
        keys: list[bytes] = []
        while queue and len(keys) < most:
            ask = queue.popleft()
            if ask.done:
                self.outstanding -= ask.count
            else:
                asks.append(ask)
                ask.add_to(keys)
        if not keys:
            return
        now = self._now()
        self._batch = ShardBatch(asks, len(keys), now)
        if len(keys) == 1:
            self._connection.write(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(keys[0]), keys[0]))
        else:
            self._connection.write(hiredis.pack_command(("MGET", *keys)))  # type: ignore[arg-type]
        counters = self._counters
        counters[_BATCHES] += 1
        counters[_ASKED] += len(keys)
        if not self._stall.is_watching:
            self._stall.watch(now)

    def _answered(self, reply: Any) -> None:
        """The batch in flight is answered: hand out its values, send the next."""
        batch = self._batch
        if batch is None:
            self.link.break_connection(f"answered what was not asked: {str(reply)[:200]!r}")
            return
        values = [reply] if batch.keys == 1 else reply
        is_list = type(values) is list and len(values) == batch.keys
        if is_list and _KINDS.issuperset(map(type, values)):
            self._finish(batch)
            if self.outstanding >= ENOUGH_KEYS:
                self.send()  # first, so that the shard has something to do while these are handed out
            found, missing = batch.hand_out(values)
            self._counters[_FOUND] += found
            if missing:
                self._counters[_MISSING] += missing
        elif is_list and batch.keys > 1 and _READABLE_KINDS.issuperset(map(type, values)):
            self._finish(batch)
            self._count_damaged(values)
            found, missing = batch.hand_out_readable(values, self._damaged)
            self._counters[_FOUND] += found
            self._counters[_MISSING] += missing
        elif reply is SKIPPED:
            self._finish(batch)
        elif isinstance(reply, hiredis.ReplyError):
            self._finish(batch)
            self._refused(batch, str(reply)[:300])
        else:
            self.link.break_connection(f"answered {batch.keys} keys with {_shape(reply)}")
            return
        if batch.counted:
            batch.release(self._settings.budget)
        if self.queue and not self._scheduled and self._batch is None:
            self._scheduled = True
            self._gathering.add(self)

    def _finish(self, batch: ShardBatch) -> None:
        """``batch`` is no longer in flight: learn from it how many keys the next may have, and how long they take."""
        self._batch = None
        self.outstanding -= batch.keys
        self.answered_at = now = self._now()
        received = self._connection.received if self._connection else 0
        size, self._received = received - self._received, received
        self.size.measure(batch.keys, size, now - batch.sent)
        counters = self._counters
        if counters[_BATCHES] % _SAMPLED == 0:
            counters[_BATCHES_SAMPLED] += 1
            counters[_MICROSECONDS] += int((now - batch.sent) * 1e6)

    def _count_damaged(self, values: list[Any]) -> None:
        self._counters[_DAMAGED] += sum(type(value) is hiredis.ReplyError for value in values)

    def _refused(self, batch: ShardBatch, error: str) -> None:
        """An error reply is a failed try of its batch; the connection itself is still in order."""
        if batch.keys == 1 and "damaged" in error:
            self._counters[_DAMAGED] += 1
            batch.fail(self._damaged(error))
        else:
            batch.fail(self._problem("BadAnswer", f"answered with an error: {error}"))

    def _damaged(self, error: str) -> Problem:
        return self._problem("Damaged", f"the key's value is damaged and cannot be read: {error}")

    def _problem(self, reason: Any, why: str) -> Problem:
        shard = self._identity.shard
        return Problem(reason, f"shard {shard}: {self._address}: {why}", shard)

    # What the connection asks about a large reply.

    def expected_keys(self) -> int:
        """Of the batch in flight."""
        return self._batch.keys if self._batch else 0

    def accept(self, index: int, size: int) -> bool:
        """Whether a value of a large reply is to be kept."""
        return self._batch is not None and self._batch.accept(index, size, self._settings.budget)

    # A batch that is never answered.

    def _in_flight_since(self) -> float | None:
        return self._batch.sent if self._batch else None

    def _received_bytes(self) -> int:
        return self._connection.received if self._connection else 0

    def _close_stalled(self) -> None:
        self.size.shrink()
        self.link.break_connection(f"did not answer within {self._settings.deadline_seconds:g} s")

    # What the link tells.

    @property
    def is_usable(self) -> bool:
        """Whether it can be asked now, or what it is asked can wait for the connection to be made again.

        That is so for large work: small work would wait behind it if it went elsewhere.
        """
        return self._is_returning or self.link.state is LinkState.READY

    def opened(self, connection: ServerConnection) -> None:
        """Use ``connection`` from now on."""
        self._connection = connection
        self._received = connection.received
        connection.on_reply = self._answered
        connection.sink = self
        self._is_returning = False
        if self.queue and not self._scheduled:
            self._scheduled = True
            self._gathering.add(self)

    def lost(self, why: str) -> None:
        """The connection is gone, or was not made again: so are the tries of the asks in flight, and of those queued
        unless they can wait for another connection."""
        was_open = self._connection is not None
        self._connection = None
        self._is_returning = self._is_patient and was_open and self.link.state is not LinkState.CLOSED
        batch, self._batch = self._batch, None
        if batch:
            self.outstanding -= batch.keys
            batch.release(self._settings.budget)
        asks = batch.asks if batch else []
        if not self._is_returning:
            asks = [*asks, *self._empty_queue()]
        self._fail(asks, why)

    def stop_waiting(self, why: str) -> None:
        """The endpoint is gone: nothing waits for another connection to it."""
        self._is_returning = False
        if self._connection is None:
            self._fail(self._empty_queue(), why)

    def close(self) -> None:
        """Close the connection for good."""
        self.link.close()
        self.stop_waiting("closed")

    def _empty_queue(self) -> list[PendingLookup]:
        asks = list(self.queue)
        self.queue.clear()
        self.outstanding = 0
        return asks

    def _fail(self, asks: list[PendingLookup], why: str) -> None:
        problem = self._problem("Unreachable", why)
        for ask in asks:
            ask.failed(problem)


def _shape(reply: Any) -> str:
    return f"a list of {len(reply)}" if isinstance(reply, list) else f"{type(reply).__name__} {str(reply)[:100]!r}"
