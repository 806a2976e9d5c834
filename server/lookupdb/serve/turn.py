"""The hot path of a worker: turn after turn, read what clients ask, look it up, answer. In Python, and natively.

In Python one GET is read, looked up and answered without a call to our code: one read, one check of its size and
beginning, one lookup and one write; what is not a lone GET is the connection's to handle. The native turn reads from
all clients that ask before it looks their keys up together, and answers pipelined GETs and MGETs as well.
"""

from __future__ import annotations

import os
import time
from typing import Final, Protocol

from lookupdb.serve import shard_counters
from lookupdb.serve.limits import READ_BYTES
from lookupdb.serve.native_replies import NativeReplies
from lookupdb.serve.poller import ACTIVE, Poller
from lookupdb.serve.resp import CRLF, GET_ENDS, GET_HEADS, GET_KEYS
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


class NativeTurn:
    """Lets the kernel poll, read and answer until something is not a lookup, or not taken by its client."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: NativeReplies) -> None:
        self._connections = worker.connections
        self._poller = poller
        self._replies = replies

    def run(self, loop: EventHandler) -> None:
        """See ``ShardTurn``."""
        run, report_damage, now = self._replies.kernel.run, self._replies.report_damage, time.monotonic
        epoll, poller, connections = self._poller.epoll.fileno(), self._poller, self._connections
        fd = 0
        while (remaining := loop.until - now()) > 0:
            handed, events, is_slow = run(epoll, poller.fast_path, poller.protocols, remaining)
            report_damage()
            for fd, errno, *progress in handed:  # before any event: it could accept a client on a descriptor of these
                try:
                    if errno:
                        raise OSError(errno, os.strerror(errno))
                    if fd in connections:  # another of these may have cut it
                        connections[fd].resume(*progress)
                except Exception as problem:  # ends one connection, never the worker
                    loop.close_broken(fd, problem)
            try:
                for fd, event in events:
                    loop.handle(fd, event)
            except Exception as problem:
                loop.close_broken(fd, problem)
            if is_slow:
                loop.check_disk()


class PythonTurn:
    """Polls, reads and answers lone GETs, written out with as few calls as there can be."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: StoredReplies) -> None:
        self._worker = worker
        self._poller = poller
        self._replies = replies

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
        while (remaining := loop.until - now()) > 0:
            lookups = sent = fd = 0
            try:
                for fd, events in poll(remaining, _EVENTS):
                    if not fast_path[fd]:
                        loop.handle(fd, events)
                        continue
                    fast_path[fd] = ACTIVE
                    data = read(fd, READ_BYTES)
                    size = len(data)
                    if size >= sizes or data < heads[size] or data >= ends[size] or data[tail] != crlf:
                        connections[fd].receive(data)
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
            except Exception as problem:  # ends one connection, never the worker
                loop.close_broken(fd, problem)
            if lookups:
                slot[shard_counters.LOOKUPS] += lookups
                slot[shard_counters.COMMANDS] += lookups
                slot[shard_counters.SENT_BYTES] += sent
