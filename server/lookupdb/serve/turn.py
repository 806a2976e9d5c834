"""The hot path of a worker: turn after turn, read what clients ask, look it up, answer. In Python, and natively.

In Python one GET is read, looked up and answered without a call to our code: one read, one check of its size and
beginning, one lookup and one write; what is not a lone GET is the connection's to handle. The native turn reads from
all clients that ask before it looks their keys up together, and answers pipelined GETs and MGETs as well.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from lookupdb.resp.replies import CRLF
from lookupdb.resp.requests import GET_ENDS, GET_HEADS, GET_KEYS
from lookupdb.serve import shard_counters
from lookupdb.serve.limits import READ_BYTES, TIME_SLICE_SECONDS
from lookupdb.serve.native_replies import NativeReplies
from lookupdb.serve.poller import ACTIVE, Poller
from lookupdb.serve.session import WorkerContext
from lookupdb.serve.stored_replies import LOOKUP_FAILURES, MISSING, StoredReplies
from lookupdb.shardfile import CLAIMS_SIZE, FRAMED, bulk_bounds

_HEADS: Final = len(GET_HEADS)
_EVENTS: Final = 256
"""The most that one poll returns."""


class EventHandler(Protocol):
    """The loop, which a turn leaves all events to that are no lookups."""

    until: float
    """When to return."""

    def handle(self, fd: int, events: int) -> None:
        """Handle ``events`` of ``fd``."""

    def close_broken(self, fd: int, problem: Exception) -> None:
        """Close the connection of ``fd``, whose event ended in ``problem``."""

    def check_disk(self) -> None:
        """See whether lookups wait for a disk."""


class ShardTurn(Protocol):
    """Answers lookups."""

    def run(self, loop: EventHandler) -> None:
        """Take turns until ``loop.until``."""


def make_turn(worker: WorkerContext, poller: Poller) -> ShardTurn:
    """Make the turn that goes with the worker's replies."""
    replies = worker.replies
    if isinstance(replies, NativeReplies):
        return NativeTurn(worker, poller, replies)
    assert isinstance(replies, StoredReplies)
    return PythonTurn(worker, poller, replies)


class LateEvents:
    """Events that are no lookups, in the order in which they came.

    Each may take a client's time slice, so that what one turn has no time for is left to those that follow: lookups,
    and the worker's heartbeat, are in between.
    """

    def __init__(self) -> None:
        self._events: OrderedDict[int, int] = OrderedDict()
        """By file descriptor. A poll reports again what still waits: it keeps its place."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[tuple[int, int]]) -> None:
        """Have them handled behind those that wait."""
        self._events.update(events)

    def handle(self, loop: EventHandler) -> None:
        """Handle one, and others for as long as a time slice. The descriptor may be another socket's by now: whoever
        handles an event looks whether it is still so."""
        end = time.monotonic() + TIME_SLICE_SECONDS
        while self._events:
            fd, events = self._events.popitem(last=False)
            try:
                loop.handle(fd, events)
            except Exception as problem:  # ends one connection, never the worker
                loop.close_broken(fd, problem)
            if time.monotonic() > end:
                return


class NativeTurn:
    """Lets the kernel poll, read and answer until something is not a lookup, or not taken by its client."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: NativeReplies) -> None:
        self._connections = worker.connections
        self._poller = poller
        self._replies = replies
        self._late = LateEvents()

    def run(self, loop: EventHandler) -> None:
        """See ``ShardTurn``."""
        run, report_damage, now = self._replies.kernel.run, self._replies.report_damage, time.monotonic
        epoll, poller, connections, late = self._poller.epoll.fileno(), self._poller, self._connections, self._late
        while (remaining := loop.until - now()) > 0:
            wait = 0.0 if late else remaining
            handed, events, is_slow = run(epoll, poller.fast_path, poller.protocols, wait)
            report_damage()
            end = now() + TIME_SLICE_SECONDS
            for fd, errno, *progress in handed:  # before any event: it could accept a client on a descriptor of these
                try:
                    if errno:
                        raise OSError(errno, os.strerror(errno))
                    if fd in connections:  # another of these may have cut it
                        connections[fd].resume(*progress, is_late=now() > end)
                except Exception as problem:  # ends one connection, never the worker
                    loop.close_broken(fd, problem)
            late.add(events)
            late.handle(loop)
            if is_slow:
                loop.check_disk()


class PythonTurn:
    """Polls, reads and answers lone GETs, written out with as few calls as there can be."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: StoredReplies) -> None:
        self._worker = worker
        self._poller = poller
        self._replies = replies
        self._late = LateEvents()

    def run(self, loop: EventHandler) -> None:
        """See ``ShardTurn``."""
        worker, replies, now = self._worker, self._replies, time.monotonic
        poll, read, write = self._poller.epoll.poll, os.read, os.write
        fast_path, connections, slot = self._poller.fast_path, worker.connections, worker.slot
        get, inflate = worker.shard.txn.get, worker.shard.inflate
        heads, ends, keys, sizes = GET_HEADS, GET_ENDS, GET_KEYS, _HEADS  # local names are looked up fastest
        bulk_heads, bulk_ends = bulk_bounds()
        bulk_sizes = len(bulk_heads)
        tail, crlf, framed, claims_size, missing = slice(-2, None), CRLF, FRAMED, CLAIMS_SIZE, MISSING
        late = self._late
        while (remaining := loop.until - now()) > 0:
            lookups = sent = fd = 0
            polled = iter(poll(0.0 if late else remaining, _EVENTS))
            end = now() + TIME_SLICE_SECONDS
            try:
                for fd, events in polled:
                    if not fast_path[fd]:
                        late.add(((fd, events),))
                        continue
                    fast_path[fd] = ACTIVE
                    data = read(fd, READ_BYTES)
                    size = len(data)
                    if size >= sizes or data < heads[size] or data >= ends[size] or data[tail] != crlf:
                        connections[fd].receive(data)
                        if now() > end:
                            late.add(polled)
                        continue
                    lookups += 1
                    try:
                        key = data[keys[size]]
                        reply = get(key, missing)
                        first = reply[0]
                        if first != framed and first < claims_size:
                            reply = inflate(reply)
                        size = len(reply)
                        if (
                            size >= bulk_sizes
                            or reply < bulk_heads[size]
                            or reply >= bulk_ends[size]
                            or reply[tail] != crlf
                        ):
                            # missing, large or damaged
                            reply = replies.verify(key, reply) or connections[fd].nil
                            size = len(reply)
                    except LOOKUP_FAILURES:
                        reply = replies.find_after_failure(key) or connections[fd].nil
                        get, size = worker.shard.txn.get, len(reply)
                    try:
                        written = write(fd, reply)
                    except BlockingIOError:
                        written = 0
                    sent += written
                    if written != size:
                        connections[fd].keep_unsent(reply, written)
                    if size >= bulk_sizes and now() > end:
                        late.add(polled)
            except Exception as problem:  # ends one connection, never the worker
                loop.close_broken(fd, problem)
            if lookups:
                slot[shard_counters.LOOKUPS] += lookups
                slot[shard_counters.COMMANDS] += lookups
                slot[shard_counters.SENT_BYTES] += sent
            if late:
                late.handle(loop)
