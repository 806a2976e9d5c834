"""A lane to an endpoint: a link and the lookups that wait for it. One batch is in flight while the next one grows.

A lone lookup leaves at once; others leave together with those of the other lanes (see ``coalescer``). Answers come in
the order of the batches, so a connection on which one went missing or wrong is closed, never resynchronised: a late
answer can then not be taken for another's.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from time import perf_counter
from types import NoneType
from typing import Any, Final, Literal

import hiredis

from lookupdb import native
from lookupdb.route.counters import BATCH_BUCKETS, BATCH_MICROSECONDS, BATCH_SECONDS, INDEX
from lookupdb.route.lookups.pending import PendingLookup, fail_tries
from lookupdb.route.lookups.waiters import Problem, Reason, make_endpoint_problem
from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.servers.connection import ServerConnection
from lookupdb.route.servers.identity import ShardIdentity
from lookupdb.route.servers.link import Link
from lookupdb.route.servers.link_state import LinkState
from lookupdb.route.servers.replies import SKIPPED
from lookupdb.route.shards.batch import ShardBatch
from lookupdb.route.shards.batch_size import FIRST_KEYS, BatchSize
from lookupdb.route.shards.coalescer import ENOUGH_KEYS
from lookupdb.route.shards.fair_queue import FairQueue
from lookupdb.route.shards.settings import EndpointSettings
from lookupdb.route.shards.stall_watch import StallWatch

_TARGET_SHARE: Final = 1 / 8
"""Of a lookup's deadline: a large answer that takes longer has fewer keys the next time."""
_SAMPLED: Final = 16
"""Of so many batches one is measured, by a clock of its own: the loop's has milliseconds."""
_KINDS: Final = frozenset((bytes, NoneType))
_READABLE_KINDS: Final = _KINDS | {hiredis.ReplyError, type(SKIPPED)}
_FOUND: Final = INDEX["keys_found"]
_MISSING: Final = INDEX["keys_missing"]
_DAMAGED: Final = INDEX["keys_damaged"]
_BATCHES: Final = INDEX["batches"]
_ASKED: Final = INDEX["keys_asked"]
_FIRST_BUCKET: Final = INDEX[BATCH_BUCKETS[0]]
_MICROSECONDS: Final = INDEX[BATCH_MICROSECONDS]

Queue = deque[PendingLookup] | FairQueue
"""What waits to be sent."""


class Lane:
    """A lane to ``address``. ``on_state`` is called as ``LinkUser.on_state_change`` is.

    Each concern has its own module: what waits (a deque, or ``fair_queue``), when it leaves (``coalescer``), how much
    of it (``batch_size``), what is in flight (``batch``), whether that stalls (``stall_watch``), and the connection's
    life (``servers.link``). Invariants: a batch is in flight only on a connection, and one at a time; ``outstanding``
    counts the keys of lookups in the queue and of the batch in flight.
    """

    def __init__(
        self,
        address: ServerAddress,
        identity: ShardIdentity,
        settings: EndpointSettings,
        kind: Literal["small", "large"],
        on_state: Callable[[], None],
    ) -> None:
        self.link = Link(address, identity, settings.link, self, kind)
        self.queue: Any = deque() if kind == "small" else FairQueue()
        """A ``Queue``."""
        self.batch_size = BatchSize(settings.deadline_seconds * _TARGET_SHARE, FIRST_KEYS if kind == "small" else 1)
        self.outstanding = 0
        """Keys queued and in flight."""
        self.answered_at = float("-inf")
        """The loop's time of the last answer."""
        self.stalled_at = float("-inf")
        """That at which the connection was given up, the last time, because a batch was not answered."""
        self.on_state_change = on_state
        self._address = address
        self._identity = identity
        self._counters = settings.link.counters
        self._budget = settings.link.budget
        self._deadline_seconds = settings.deadline_seconds
        self._max_queued_keys = settings.max_queued_keys
        self._coalescer = settings.coalescer
        self._now = asyncio.get_running_loop().time
        self._in_flight: ShardBatch | None = None
        """In flight. A second one would give smaller batches for the same keys: with 100 clients and 4 shards 9.7 keys
        instead of 11.7, and 38,700 lookups a second instead of 47,000 (one run, on a machine that was not quiet)."""
        self._connection: ServerConnection | None = None
        kernels = native.kernels()
        self._reply_type = kernels.ShardReply if kernels else None
        """Of replies that hold a value, or None, for each key that was asked for."""
        self._may_wait = kind == "large"
        self._is_returning = False
        """Lookups wait in the queue for a connection that is made again."""
        self._is_scheduled = False
        """The coalescer is going to call ``send``."""
        self._until_measured = _SAMPLED
        """Batches until one is measured. Each lane has its turns: one in 16 of all lanes together would be of the same
        shards again and again, where requests are scattered over all of them."""
        self._measured_since = 0.0
        """When the batch in flight was sent, if it is measured."""
        self._received = 0
        """Bytes that had come when the batch in flight was sent."""
        self._stall = StallWatch(settings.deadline_seconds, self._sent_at, self._received_bytes, self._close_stalled)

    # The hot path.

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch; False when the queue is full."""
        if self.outstanding >= self._max_queued_keys:
            return False
        self.outstanding += lookup.key_count
        lookup.open_tries += 1
        self.queue.append(lookup)
        if not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._coalescer.add(self)
        return True

    def send(self) -> None:
        """Send the next batch."""
        self._is_scheduled = False
        if self._connection is None or self._in_flight is not None:
            return
        queue, most = self.queue, self.batch_size.keys
        lookups: list[PendingLookup] = []
        key_count = 0
        while queue and key_count < most:
            lookup = queue.popleft()
            if lookup.is_done:
                self.outstanding -= lookup.key_count
            else:
                lookups.append(lookup)
                key_count += lookup.key_count
        if not key_count:
            return
        now = self._now()
        self._until_measured -= 1
        if not self._until_measured:
            self._until_measured, self._measured_since = _SAMPLED, perf_counter()
        self._in_flight = ShardBatch(lookups, key_count, now)
        self._received = self._connection.received
        if key_count == 1:
            self._connection.write(b"*2\r\n$3\r\nGET\r\n" + lookups[0].packed)
        else:
            keys = b"".join([lookup.packed for lookup in lookups])
            self._connection.write(b"*%d\r\n$4\r\nMGET\r\n%b" % (key_count + 1, keys))
        counters = self._counters
        counters[_BATCHES] += 1
        counters[_ASKED] += key_count
        if not self._stall.is_watching:
            self._stall.watch(now)

    def _on_reply(self, reply: Any) -> None:
        """Deliver the values of the batch in flight, and send the next."""
        batch = self._in_flight
        if batch is None:
            self.link.break_connection(f"answered what was not asked: {_shape(reply)}")
            return
        values = [reply] if batch.key_count == 1 else reply
        is_list = type(values) is list and len(values) == batch.key_count
        if type(reply) is self._reply_type or (is_list and _KINDS.issuperset(map(type, values))):
            self._finish(batch)
            if self.outstanding >= ENOUGH_KEYS:
                self.send()  # first, so that the shard has something to do while these are delivered
            found, missing = batch.deliver(values)
            self._counters[_FOUND] += found
            if missing:
                self._counters[_MISSING] += missing
        elif is_list and batch.key_count > 1 and _READABLE_KINDS.issuperset(map(type, values)):
            self._finish(batch)
            self._count_damaged(values)
            found, missing = batch.deliver_readable(values, self._damaged)
            self._counters[_FOUND] += found
            self._counters[_MISSING] += missing
        elif reply is SKIPPED:
            self._finish(batch)
        elif isinstance(reply, hiredis.ReplyError):
            self._finish(batch)
            self._refuse(batch, str(reply)[:300])
        else:
            self.link.break_connection(f"answered {batch.key_count} keys with {_shape(reply)}")
            return
        if batch.held_bytes:
            batch.release(self._budget)
        if self.queue and not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._coalescer.add(self)

    def _finish(self, batch: ShardBatch) -> None:
        """Learn from ``batch``, which is answered, how many keys the next may have, and how long batches take."""
        self._in_flight = None
        self.outstanding -= batch.key_count
        self.answered_at = now = self._now()
        size = self._connection.received - self._received if self._connection else 0
        self.batch_size.measure(batch.key_count, size, now - batch.sent_at)
        if self._measured_since:
            self._end_measurement()

    def _end_measurement(self) -> None:
        seconds, self._measured_since = perf_counter() - self._measured_since, 0.0
        counters = self._counters
        counters[_FIRST_BUCKET + bisect_left(BATCH_SECONDS, seconds)] += 1
        counters[_MICROSECONDS] += int(seconds * 1e6)

    def _count_damaged(self, values: list[Any]) -> None:
        self._counters[_DAMAGED] += sum(type(value) is hiredis.ReplyError for value in values)

    def _refuse(self, batch: ShardBatch, error: str) -> None:
        """Fail the try of ``batch``, which was answered with an error; the connection itself is still in order."""
        if batch.key_count == 1 and "damaged" in error:
            self._counters[_DAMAGED] += 1
            batch.fail(self._damaged(error))
        else:
            batch.fail(self._problem("BadAnswer", f"answered with an error: {error}"))

    def _damaged(self, error: str) -> Problem:
        return self._problem("Damaged", f"the key's value is damaged and cannot be read: {error}")

    def _problem(self, reason: Reason, finding: str) -> Problem:
        return make_endpoint_problem(reason, self._identity.shard, self._address, finding)

    # A ReplySink: what the connection asks about a large reply.

    def expected_keys(self) -> int:
        """Of the batch in flight."""
        return self._in_flight.key_count if self._in_flight else 0

    def accept(self, index: int, size: int) -> bool:
        """Whether a value of a large reply is to be kept."""
        return self._in_flight is not None and self._in_flight.accept(index, size, self._budget)

    # What the stall watch asks and tells.

    def _sent_at(self) -> float | None:
        return self._in_flight.sent_at if self._in_flight else None

    def _received_bytes(self) -> int:
        return self._connection.received - self._received if self._connection else 0

    def _close_stalled(self) -> None:
        self.stalled_at = self._now()
        self.batch_size.shrink()
        self.link.break_connection(f"did not answer within {self._deadline_seconds:g} s")

    # A LinkUser: what the link tells.

    @property
    def is_usable(self) -> bool:
        """Whether it has a connection, or its lookups can wait for the connection to be made again.

        Large work can: small work would wait behind it if it went elsewhere.
        """
        return self._is_returning or self.link.state is LinkState.READY

    def on_connection(self, connection: ServerConnection) -> None:
        """Use ``connection`` from now on."""
        self._connection = connection
        connection.use(self._on_reply, self)
        self._is_returning = False
        if self.queue and not self._is_scheduled:
            self._is_scheduled = True
            self._coalescer.add(self)

    def on_no_connection(self, why: str) -> None:
        """Fail the tries of the lookups in flight, and of those queued unless they can wait for another connection."""
        was_open = self._connection is not None
        self._connection = None
        self._is_returning = self._may_wait and was_open and self.link.state is not LinkState.CLOSED
        batch, self._in_flight = self._in_flight, None
        self._measured_since = 0.0
        if batch:
            self.outstanding -= batch.key_count
            batch.release(self._budget)
        lookups = batch.lookups if batch else []
        if not self._is_returning:
            lookups = [*lookups, *self._empty_queue()]
        self._fail(lookups, why)

    def stop_waiting(self, why: str) -> None:
        """Have nothing wait for another connection: the endpoint is gone."""
        self._is_returning = False
        if self._connection is None:
            self._fail(self._empty_queue(), why)

    def close(self) -> None:
        """Close the connection for good."""
        self.link.close()
        self.stop_waiting("closed")

    def _empty_queue(self) -> list[PendingLookup]:
        lookups = list(self.queue)
        self.queue.clear()
        self.outstanding = 0
        return lookups

    def _fail(self, lookups: list[PendingLookup], why: str) -> None:
        fail_tries(lookups, self._problem("Unreachable", why))


def _shape(reply: Any) -> str:
    """What a reply is, which may hold values of others."""
    match reply:
        case list():
            return f"a list of {len(reply)}"
        case bytes():
            return f"one value of {len(reply)} bytes"
        case hiredis.ReplyError():
            return f"an error: {str(reply)[:200]}"
    return f"one {type(reply).__name__}"
