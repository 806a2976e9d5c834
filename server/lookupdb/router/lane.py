"""A lane to an endpoint: a connection with one batch in flight, and the lookups that wait for the next batch.

``Lane.submit`` queues a lookup; ``Coalescer`` decides when lanes send. ``Lane.send`` takes lookups off the queue (a
deque, or a ``FairQueue`` for large work) until the batch has the number of keys that ``BatchSize`` allows.
``ShardBatch`` is the batch in flight; ``Lane._on_reply`` gives its lookups their values. ``StallWatch`` notices a batch
without progress.

Replies arrive in the order of the batches. So a connection with a missing or wrong reply is closed, never
resynchronised: a late reply must not be taken for another one.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter
from types import NoneType
from typing import Any, Final, Literal

import hiredis
from hiredis import ReplyError

from lookupdb import native
from lookupdb.router.batch_keys import ReplyValues
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import BATCH_BUCKETS, BATCH_MICROSECONDS, BATCH_SECONDS, INDEX
from lookupdb.router.link import Link, LinkSettings, ShardIdentity
from lookupdb.router.lookups import (
    PendingLookup,
    Problem,
    Reason,
    ScatterGather,
    ShardSlice,
    fail_tries,
    make_endpoint_problem,
)
from lookupdb.router.server_connection import SKIPPED, ServerAddress, ServerConnection

# When batches leave: as soon as an iteration of the event loop brings nothing new for any endpoint of the worker.
#
# Each batch costs a write and a read on both ends, whatever its size. A lone lookup leaves after one poll of the
# sockets; if a thousand arrive together, those of one shard leave together.


MAX_ITERATIONS: Final = 4
"""Event loop iterations for which lookups wait while more arrive. With 100 clients and 4 shards, 0 gives batches of 5
to 7 keys, 4 gives 10 to 12. Higher values were better with 16 and 256 clients and worse with 100, within the noise."""

ENOUGH_KEYS: Final = 64
"""A batch of this size pays for itself, so it waits for no more keys."""


class Coalescer:
    """Makes each added lane send once, soon."""

    def __init__(self) -> None:
        self._call_soon = asyncio.get_running_loop().call_soon
        self._lanes: list[Lane] = []
        self._coalesced = 0
        self._iterations = 0

    def add(self, lane: Lane) -> None:
        """Make ``lane`` send soon. It must not be scheduled already."""
        if not self._lanes:
            self._call_soon(self._send_or_wait)
        self._lanes.append(lane)

    def _send_or_wait(self) -> None:
        """Make all lanes send, or poll once more: a due callback keeps the loop from blocking."""
        key_count = 0
        for lane in self._lanes:
            key_count += lane.outstanding
        more = self._coalesced < key_count < ENOUGH_KEYS * len(self._lanes)
        if more and self._iterations < MAX_ITERATIONS:
            self._coalesced = key_count
            self._iterations += 1
            self._call_soon(self._send_or_wait)
            return
        lanes, self._lanes = self._lanes, []
        self._coalesced = self._iterations = 0
        for lane in lanes:
            lane.send()


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings that all endpoints of a worker share: limits of lookups, and those of links."""

    deadline_seconds: float
    """A batch without progress for longer than this breaks its connection."""
    max_queued_keys: int
    link: LinkSettings
    coalescer: Coalescer = field(default_factory=Coalescer)


log = logging.getLogger(__name__)


class ShardBatch:
    """A batch in flight: ``key_count`` keys of ``lookups``, in this order, sent at ``sent_at`` (event loop time)."""

    __slots__ = ("_arrived", "_starts", "held_bytes", "key_count", "lookups", "sent_at")

    def __init__(self, lookups: list[PendingLookup], key_count: int, sent_at: float) -> None:
        self.lookups = lookups
        self.key_count = key_count
        self.sent_at = sent_at
        self._starts: list[int] | None = None
        """The index of each lookup's first key; only a large reply needs it."""
        self._arrived: dict[PendingLookup, int] = {}
        self.held_bytes = 0
        """Bytes taken from the budget for values, until ``release``."""

    def accept(self, index: int, size: int, budget: RouterBudget) -> bool:
        """Return whether to keep the value of key ``index``, of ``size`` bytes. If so, count it."""
        if self._starts is None:
            self._starts = [0, *accumulate(lookup.key_count for lookup in self.lookups[:-1])]
        lookup = self.lookups[bisect_right(self._starts, index) - 1]
        arrived = self._arrived[lookup] = self._arrived.get(lookup, 0) + size
        if lookup.is_done or not lookup.may_receive(arrived, budget):
            return False
        self.held_bytes += size  # until the reply is complete, even if nobody waits for the value any longer
        budget.take(size)
        return True

    def release(self, budget: RouterBudget) -> None:
        """Give back the bytes of the budget after the reply was delivered or lost."""
        if self.held_bytes:
            budget.release(self.held_bytes)
            self.held_bytes = 0

    def deliver(self, values: ReplyValues) -> tuple[int, int]:
        """Give each lookup its values. Return the number of keys found and missing, without those of finished
        lookups."""
        at = 0
        missing, found = values.count(None), len(values)
        for lookup in self.lookups:
            count = lookup.key_count
            if lookup.is_done:
                missing -= values[at : at + count].count(None)
                found -= count
            else:
                try:
                    lookup.deliver(values, at)
                except Exception:  # an error of one lookup must not stop the others
                    log.exception("a waiter failed")
            at += count
        return found - missing, missing

    def deliver_readable(self, values: list[Any], problem: Callable[[str], Problem]) -> tuple[int, int]:
        """Like ``deliver``, but some of ``values`` are errors, or SKIPPED if nobody waits for them."""
        at = found = missing = 0
        for lookup in self.lookups:
            count = lookup.key_count
            own_values = values[at : at + count]
            errors = [value for value in own_values if type(value) is ReplyError]
            if not lookup.is_done:
                missing += own_values.count(None)
                found += count - own_values.count(None) - len(errors)
                try:
                    if errors:
                        lookup.deliver_readable(values, at, problem(str(errors[0])[:300]))
                    else:
                        lookup.deliver(values, at)
                except Exception:  # as above
                    log.exception("a waiter failed")
            at += count
        return found, missing


# Limits of the next batch, by the size of recent values and the time that they took.

BATCH_KEYS: Final = 256
"""A batch takes nothing more once it has this many keys."""
FIRST_KEYS: Final = 128
"""Keys of a lane's first batch, before any value was seen. A lane for large work begins with one."""
SLICE_KEYS: Final = 64
"""A request's keys of one shard are cut into slices of this size, so a batch has fewer than BATCH_KEYS + SLICE_KEYS."""
BATCH_BYTES: Final = 512 * 1024
"""Limit of a batch's expected reply, because small work may wait behind it; a single value may exceed it."""
LARGE_SLICE_BYTES: Final = 64 * 1024
"""A slice whose values are expected to be larger is large work."""
_TIMED_BYTES: Final = 64 * 1024
"""Only a reply from this size on shows that values arrive slowly; a smaller one may have waited for this process."""
_UNCUT_BYTES: Final = BATCH_BYTES // SLICE_KEYS
"""Slices have SLICE_KEYS if values are no larger than this."""


class BatchSize:
    """Limits of a lane's next batch, learned from its replies. A reply should take at most ``target_seconds``."""

    __slots__ = ("_target_seconds", "keys", "slice_keys", "value_bytes")

    def __init__(self, target_seconds: float, first_keys: int = FIRST_KEYS) -> None:
        self._target_seconds = target_seconds
        self.keys = first_keys
        """Limit of keys in the next batch."""
        self.value_bytes = 0.0
        """Expected bytes per key: the mean of the last batch, or half of the previous expectation if that is more."""
        self.slice_keys = SLICE_KEYS
        """Number of keys of one request that stay together, by ``value_bytes``."""

    def measure(self, keys: int, received: int, seconds: float) -> None:
        """Learn from a batch of ``keys`` that was answered with ``received`` bytes in ``seconds``."""
        mean, half = received / keys, self.value_bytes / 2
        self.value_bytes = mean if mean > half else half
        if mean > _UNCUT_BYTES or self.slice_keys != SLICE_KEYS:
            self.slice_keys = fitting_slice_keys(self.value_bytes)
        if received <= BATCH_BYTES and self.keys == BATCH_KEYS:
            return
        fitting = BATCH_BYTES // max(self.value_bytes, 1)
        if received > _TIMED_BYTES and seconds > self._target_seconds:
            fitting = min(fitting, keys * self._target_seconds / seconds)
        self.keys = max(1, int(min(fitting, 2 * self.keys, BATCH_KEYS)))

    def shrink(self) -> None:
        """Put fewer keys in the next batch, after one was not answered in time."""
        self.keys = max(1, self.keys // 4)


def fitting_slice_keys(value_bytes: float) -> int:
    """Return the number of keys of one request that stay together if a key's value has ``value_bytes``."""
    return max(1, min(SLICE_KEYS, int(BATCH_BYTES // max(value_bytes, 1))))


# A reply may take longer than a lookup waits, so bytes that arrive count as progress.

PROGRESS_BYTES: Final = 4096
"""Bytes per deadline that count as progress; fewer do not, because an endpoint could trickle endlessly."""


class StallWatch:
    """Calls ``on_stall`` when the batch sent at ``in_flight_since()`` has made too little progress for ``seconds``.

    ``received()`` returns the bytes since the batch was sent. One timer serves all batches.
    """

    def __init__(
        self,
        seconds: float,
        in_flight_since: Callable[[], float | None],
        received: Callable[[], int],
        on_stall: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._in_flight_since = in_flight_since
        self._received = received
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self._watched: float | None = None
        """The time at which the watched batch was sent."""
        self._received_before = 0

    def watch(self, sent: float) -> None:
        """Watch the batch that was sent at ``sent``."""
        self._watched, self._received_before = sent, 0
        self.timer = self._loop.call_at(sent + self._seconds, self._check)

    def _check(self) -> None:
        self.timer = None
        since = self._in_flight_since()
        if since is None:
            return
        if since != self._watched and since + self._seconds > self._loop.time():
            self.watch(since)
            return
        before = self._received_before if since == self._watched else 0
        received = self._received()
        if received - before >= PROGRESS_BYTES:
            self._watched, self._received_before = since, received
            self.timer = self._loop.call_later(self._seconds, self._check)
        else:
            self._on_stall()


class FairQueue:
    """A deque of slices whose ``popleft`` rotates over requests, so that none waits for all slices of another."""

    def __init__(self) -> None:
        self._gathers: deque[ScatterGather] = deque()
        self._slices: dict[ScatterGather, deque[ShardSlice]] = {}

    def __len__(self) -> int:
        return len(self._gathers)

    def __iter__(self) -> Iterator[ShardSlice]:
        for gather in self._gathers:
            yield from self._slices[gather]

    def append(self, shard_slice: ShardSlice) -> None:
        """Queue ``shard_slice`` behind the others of its request."""
        gather = shard_slice.gather
        slices = self._slices.get(gather)
        if slices is None:
            self._slices[gather] = deque((shard_slice,))
            self._gathers.append(gather)
        else:
            slices.append(shard_slice)

    def popleft(self) -> ShardSlice:
        """Return the next slice of the first request, which moves behind the others."""
        gather = self._gathers.popleft()
        slices = self._slices[gather]
        shard_slice = slices.popleft()
        if slices:
            self._gathers.append(gather)
        else:
            del self._slices[gather]
        return shard_slice

    def clear(self) -> None:
        """Remove all slices."""
        self._gathers.clear()
        self._slices.clear()


_TARGET_SHARE: Final = 1 / 8
"""Share of a lookup's deadline: a large reply that takes longer leads to smaller batches."""
_SAMPLED: Final = 16
"""One in this many batches is timed with a precise clock; the event loop's counts milliseconds."""
_KINDS: Final = frozenset((bytes, NoneType))
_READABLE_KINDS: Final = _KINDS | {hiredis.ReplyError, type(SKIPPED)}
_FOUND: Final = INDEX["keys_found"]
_MISSING: Final = INDEX["keys_missing"]
_DAMAGED: Final = INDEX["keys_damaged"]
_BATCHES: Final = INDEX["batches"]
_ASKED: Final = INDEX["keys_asked"]
_FIRST_BUCKET: Final = INDEX[BATCH_BUCKETS[0]]
_MICROSECONDS: Final = INDEX[BATCH_MICROSECONDS]


class Lane:
    """A lane to ``address``. ``on_state`` is its ``LinkUser.on_state_change``.

    Invariants: at most one batch is in flight, and only with a connection; ``outstanding`` counts the keys in the queue
    and in flight.
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
        self.batch_size = BatchSize(settings.deadline_seconds * _TARGET_SHARE, FIRST_KEYS if kind == "small" else 1)
        self.outstanding = 0
        self.answered_at = float("-inf")
        self.stalled_at = float("-inf")
        """Event loop time at which the connection was last closed because of a stall."""
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
        """The batch in flight. A second one would make batches smaller: with 100 clients and 4 shards, 9.7 keys instead
        of 11.7, and 38,700 lookups per second instead of 47,000 (one run, on a busy machine)."""
        self._connection: ServerConnection | None = None
        kernels = native.kernels()
        self._reply_type = kernels.ShardReply if kernels else None
        """The type of native replies that hold a value or None for each requested key."""
        self._may_wait = kind == "large"
        self._is_returning = False
        """True if queued lookups wait for a new connection."""
        self._is_scheduled = False
        self._until_measured = _SAMPLED
        """Batches until one is timed. Each lane counts its own: if requests go to all shards, every 16th batch of the
        worker may always go to the same shard."""
        self._measured_since = 0.0
        """The time at which the batch in flight was sent, if it is timed."""
        self._received = 0
        """Bytes received before the batch in flight was sent."""
        self._stall = StallWatch(
            settings.deadline_seconds,
            lambda: self._in_flight.sent_at if self._in_flight else None,
            lambda: self._connection.received - self._received if self._connection else 0,
            self._close_stalled,
        )

    def submit(self, lookup: PendingLookup) -> bool:
        """Queue ``lookup`` for the next batch. Return False if the queue is full."""
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
        if self._stall.timer is None:
            self._stall.watch(now)

    def _on_reply(self, reply: Any) -> None:
        """Deliver the values of the batch in flight, and send the next batch."""
        batch = self._in_flight
        if batch is None:
            self.link.break_connection(f"sent an unrequested reply: {_shape(reply)}")
            return
        values = [reply] if batch.key_count == 1 else reply
        is_list = type(values) is list and len(values) == batch.key_count
        if type(reply) is self._reply_type or (is_list and _KINDS.issuperset(map(type, values))):
            self._finish(batch)
            if self.outstanding >= ENOUGH_KEYS:
                self.send()  # first, so that the shard is busy while values are delivered
            found, missing = batch.deliver(values)
            self._counters[_FOUND] += found
            if missing:
                self._counters[_MISSING] += missing
        elif is_list and batch.key_count > 1 and _READABLE_KINDS.issuperset(map(type, values)):
            self._finish(batch)
            self._counters[_DAMAGED] += sum(type(value) is hiredis.ReplyError for value in values)
            found, missing = batch.deliver_readable(values, self._damaged)
            self._counters[_FOUND] += found
            self._counters[_MISSING] += missing
        elif reply is SKIPPED:
            self._finish(batch)
        elif isinstance(reply, hiredis.ReplyError):
            self._finish(batch)
            message = str(reply)[:300]
            if batch.key_count == 1 and "damaged" in message:
                self._counters[_DAMAGED] += 1
                fail_tries(batch.lookups, self._damaged(message))
            else:
                fail_tries(batch.lookups, self._problem("BadAnswer", f"answered with an error: {message}"))
        else:
            self.link.break_connection(f"answered {batch.key_count} keys with {_shape(reply)}")
            return
        if batch.held_bytes:
            batch.release(self._budget)
        if self.queue and not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._coalescer.add(self)

    def _finish(self, batch: ShardBatch) -> None:
        """Learn the size of the next batch from the answered ``batch``, which is timed if it is sampled."""
        self._in_flight = None
        self.outstanding -= batch.key_count
        self.answered_at = now = self._now()
        size = self._connection.received - self._received if self._connection else 0
        self.batch_size.measure(batch.key_count, size, now - batch.sent_at)
        if self._measured_since:
            seconds, self._measured_since = perf_counter() - self._measured_since, 0.0
            counters = self._counters
            counters[_FIRST_BUCKET + bisect_left(BATCH_SECONDS, seconds)] += 1
            counters[_MICROSECONDS] += int(seconds * 1e6)

    def _damaged(self, error: str) -> Problem:
        return self._problem("Damaged", f"the key's value is damaged and cannot be read: {error}")

    def _problem(self, reason: Reason, finding: str) -> Problem:
        return make_endpoint_problem(reason, self._identity.shard, self._address, finding)

    # Called by the connection, as a ReplySink.

    def expected_keys(self) -> int:
        """Return the number of keys in flight."""
        return self._in_flight.key_count if self._in_flight else 0

    def accept(self, index: int, size: int) -> bool:
        """Return whether to keep a value of a large reply."""
        return self._in_flight is not None and self._in_flight.accept(index, size, self._budget)

    def _close_stalled(self) -> None:
        self.stalled_at = self._now()
        self.batch_size.shrink()
        self.link.break_connection(f"did not answer within {self._deadline_seconds:g} s")

    # Called by the link, as a LinkUser.

    @property
    def is_usable(self) -> bool:
        """Return whether the lane has a connection, or its lookups can wait for a new one.

        Large work waits here: in another lane, small work would queue behind it.
        """
        return self._is_returning or self.link.is_ready

    def on_connection(self, connection: ServerConnection) -> None:
        """Start to use ``connection``."""
        self._connection = connection
        connection.use(self._on_reply, self)
        self._is_returning = False
        if self.queue and not self._is_scheduled:
            self._is_scheduled = True
            self._coalescer.add(self)

    def on_no_connection(self, why: str) -> None:
        """Fail the tries in flight, and the queued ones unless they can wait for a new connection."""
        was_open = self._connection is not None
        self._connection = None
        self._is_returning = self._may_wait and was_open
        batch, self._in_flight = self._in_flight, None
        self._measured_since = 0.0
        if batch:
            self.outstanding -= batch.key_count
            batch.release(self._budget)
        lookups = batch.lookups if batch else []
        if not self._is_returning:
            lookups = [*lookups, *self._empty_queue()]
        fail_tries(lookups, self._problem("Unreachable", why))

    def stop_waiting(self, why: str) -> None:
        """Fail lookups that wait for a new connection, because the endpoint is gone."""
        self._is_returning = False
        if self._connection is None:
            fail_tries(self._empty_queue(), self._problem("Unreachable", why))

    def close(self) -> None:
        """Close the connection for good."""
        self.link.close()
        self.stop_waiting("closed")

    def _empty_queue(self) -> list[PendingLookup]:
        lookups = list(self.queue)
        self.queue.clear()
        self.outstanding = 0
        return lookups


def _shape(reply: Any) -> str:
    """Describe a reply without its values, which may be other clients'."""
    match reply:
        case list():
            return f"a list of {len(reply)}"
        case bytes():
            return f"one value of {len(reply)} bytes"
        case hiredis.ReplyError():
            return f"an error: {str(reply)[:200]}"
    return f"one {type(reply).__name__}"
