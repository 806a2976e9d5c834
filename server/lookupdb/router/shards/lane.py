"""A lane to an endpoint: a link and the lookups that wait for it. One batch is in flight while the next one grows.

A lone lookup leaves at once; others leave together with those of the other lanes (see ``coalescer``). Answers come in
the order of the batches, so a connection on which one went missing or wrong is closed, never resynchronised: a late
answer can then not be taken for another's.
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
from typing import Any, Final, Literal, Protocol

import hiredis
from hiredis import ReplyError

from lookupdb import native
from lookupdb.router.batch_keys import ReplyValues
from lookupdb.router.budget import RouterBudget
from lookupdb.router.counters import BATCH_BUCKETS, BATCH_MICROSECONDS, BATCH_SECONDS, INDEX
from lookupdb.router.lookups import (
    PendingLookup,
    Problem,
    Reason,
    ScatterGather,
    ShardSlice,
    fail_tries,
    make_endpoint_problem,
)
from lookupdb.router.servers.connection import SKIPPED, ServerAddress, ServerConnection
from lookupdb.router.servers.link import Link, LinkSettings, LinkState
from lookupdb.router.servers.proof import ShardIdentity

# When batches leave: once an iteration of the event loop brings nothing new, for all endpoints of a worker together.
#
# A lone lookup leaves at once, after one look at the sockets that does not wait; of a thousand that come together those
# for one shard leave together. Each batch costs a write and a read on both ends, whatever it holds.


MAX_ITERATIONS: Final = 4
"""Of the event loop: lookups are kept while each brings more. With 100 clients and 4 shards 0 gives batches of 5 to
7 keys, 4 of 10 to 12. More were better with 16 and 256 clients and worse with 100, by runs that vary as much."""

ENOUGH_KEYS: Final = 64
"""A batch that holds so many pays for itself, and nothing is gained by waiting for more."""


class BatchSender(Protocol):
    """What has a queue to send."""

    outstanding: int
    """Keys queued and in flight."""

    def send(self) -> None:
        """Send it, or as much of it as may be sent now."""


class Coalescer:
    """Has each sender that is added send once, soon."""

    def __init__(self) -> None:
        self._call_soon = asyncio.get_running_loop().call_soon
        self._senders: list[BatchSender] = []
        self._coalesced = 0
        """Keys, at the last iteration."""
        self._iterations = 0

    def add(self, sender: BatchSender) -> None:
        """Have ``sender`` send soon. It is not among those added already."""
        if not self._senders:
            self._call_soon(self._send_or_wait)
        self._senders.append(sender)

    def _send_or_wait(self) -> None:
        """Have all send, or look once more for what comes in: a callback that is due keeps the loop from waiting."""
        key_count = 0
        for sender in self._senders:
            key_count += sender.outstanding
        more = self._coalesced < key_count < ENOUGH_KEYS * len(self._senders)
        if more and self._iterations < MAX_ITERATIONS:
            self._coalesced = key_count
            self._iterations += 1
            self._call_soon(self._send_or_wait)
            return
        senders, self._senders = self._senders, []
        self._coalesced = self._iterations = 0
        for sender in senders:
            sender.send()


# What all endpoints of a worker share.


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Bounds of the lookups of an endpoint, and what its links need."""

    deadline_seconds: float
    """A batch of which nothing comes for longer breaks its connection."""
    max_queued_keys: int
    link: LinkSettings
    coalescer: Coalescer = field(default_factory=Coalescer)


# A batch in flight: which keys were asked for whom, and who gets what of the reply.


log = logging.getLogger(__name__)


class ShardBatch:
    """``key_count`` keys of ``lookups``, in this order, sent at ``sent_at`` (the loop's time)."""

    __slots__ = ("_arrived", "_starts", "held_bytes", "key_count", "lookups", "sent_at")

    def __init__(self, lookups: list[PendingLookup], key_count: int, sent_at: float) -> None:
        self.lookups = lookups
        self.key_count = key_count
        self.sent_at = sent_at
        self._starts: list[int] | None = None
        """Of each lookup, the index of its first key; only a large reply needs them."""
        self._arrived: dict[PendingLookup, int] = {}
        self.held_bytes = 0
        """Taken of the budget for values, until ``release``."""

    def accept(self, index: int, size: int, budget: RouterBudget) -> bool:
        """Whether the value of key ``index``, of ``size`` bytes, is to be kept. It is counted if so."""
        if self._starts is None:
            self._starts = [0, *accumulate(lookup.key_count for lookup in self.lookups[:-1])]
        lookup = self.lookups[bisect_right(self._starts, index) - 1]
        arrived = self._arrived[lookup] = self._arrived.get(lookup, 0) + size
        if lookup.is_done or not lookup.may_receive(arrived, budget):
            return False
        self.held_bytes += size  # until the whole reply is there, also if nobody waits for it any longer by then
        budget.take(size)
        return True

    def release(self, budget: RouterBudget) -> None:
        """Give back what was taken of the budget: the reply is delivered, or will not come."""
        if self.held_bytes:
            budget.release(self.held_bytes)
            self.held_bytes = 0

    def deliver(self, values: ReplyValues) -> tuple[int, int]:
        """Give each lookup its values; how many keys of lookups that were not done were found, and how many missing."""
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
                except Exception:  # whatever it is, it must not cost the others their answer
                    log.exception("a waiter failed")
            at += count
        return found - missing, missing

    def deliver_readable(self, values: list[Any], problem: Callable[[str], Problem]) -> tuple[int, int]:
        """As ``deliver``, but some of ``values`` are errors, or SKIPPED where nobody waits any longer."""
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

    def fail(self, problem: Problem) -> None:
        """Fail the try of all lookups."""
        fail_tries(self.lookups, problem)


# How many keys the next batch may have: by the size of the values that came lately, and by how long they took.


BATCH_KEYS: Final = 256
"""A batch is sent once it has so many keys."""
FIRST_KEYS: Final = 128
"""Of a lane's first batch, before any value was seen; that of a lane for large work has one."""
SLICE_KEYS: Final = 64
"""A request's keys of one shard are cut into slices of so many: a batch has fewer than BATCH_KEYS + SLICE_KEYS."""
BATCH_BYTES: Final = 512 * 1024
"""An answer should have no more bytes, unless it is one value: small work may have to wait for it."""
LARGE_SLICE_BYTES: Final = 64 * 1024
"""A slice whose values are expected to be larger is large work."""
_TIMED_BYTES: Final = 64 * 1024
"""Only an answer of so many bytes shows that values come slowly; a small one may have waited for this process."""
_UNCUT_BYTES: Final = BATCH_BYTES // SLICE_KEYS
"""Of a value: up to so many, slices have SLICE_KEYS."""


class BatchSize:
    """Follows the answers of one lane. An answer should take no longer than ``target_seconds``."""

    __slots__ = ("_target_seconds", "keys", "slice_keys", "value_bytes")

    def __init__(self, target_seconds: float, first_keys: int = FIRST_KEYS) -> None:
        self._target_seconds = target_seconds
        self.keys = first_keys
        """At most so many in the next batch."""
        self.value_bytes = 0.0
        """What a key's answer is expected to be: the mean of the last batch, or half of what was expected before it."""
        self.slice_keys = SLICE_KEYS
        """How many keys of one request stay together, by ``value_bytes``."""

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
        """Have fewer keys in the next batch: one was not answered in time."""
        self.keys = max(1, self.keys // 4)


def fitting_slice_keys(value_bytes: float) -> int:
    """How many keys of one request stay together when a key's answer is expected to have ``value_bytes``."""
    return max(1, min(SLICE_KEYS, int(BATCH_BYTES // max(value_bytes, 1))))


# Notices a batch that is not answered. Bytes that come are progress: a reply may take longer than a lookup waits.


PROGRESS_BYTES: Final = 4096
"""In the time of a deadline: fewer are no progress, or an endpoint that trickles would be waited for for ever."""


class StallWatch:
    """Calls ``on_stall`` when of what is in flight since ``in_flight_since()`` too little has come for ``seconds``.

    ``received()`` is how many bytes have come since that was sent: what came before the watch looked counts, too. There
    is one timer, not one a batch.
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
        self._timer: asyncio.TimerHandle | None = None
        self._watched: float | None = None
        """When the batch was sent whose bytes are counted from ``_received_before``."""
        self._received_before = 0

    @property
    def is_watching(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    def watch(self, sent: float) -> None:
        """Something was sent at ``sent``: look at it later."""
        self._watched, self._received_before = sent, 0
        self._timer = self._loop.call_at(sent + self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
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
            self._timer = self._loop.call_later(self._seconds, self._check)
        else:
            self._on_stall()


# Slices that wait in the lane for large work: requests rotate, so that none waits for all of another's.


class FairQueue:
    """As a deque of slices, but ``popleft`` takes the next slice of the request that is first in the rotation."""

    def __init__(self) -> None:
        self._gathers: deque[ScatterGather] = deque()
        """The requests, in the order of the rotation."""
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
        """The next slice of the first request, which then goes behind all others."""
        gather = self._gathers.popleft()
        slices = self._slices[gather]
        shard_slice = slices.popleft()
        if slices:
            self._gathers.append(gather)
        else:
            del self._slices[gather]
        return shard_slice

    def clear(self) -> None:
        """Forget all."""
        self._gathers.clear()
        self._slices.clear()


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
