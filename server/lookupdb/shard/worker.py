"""A shard worker: its life, and its event loop with the hot path.

A worker maps the shard, serves on the inherited socket, drains and ends (``main``). Import little here: every worker
pays for it.

The loop accepts clients, and passes each event on. A turn answers lookups. The native turn reads from all ready
clients, then looks all their keys up together, and leaves everything else to the connection. The turn of the Python
fallback leaves all events to the connections. The loop is our own, because the transports, protocols and write queues
of asyncio would cost as much as a lookup.

While data is cold, connections park their lookups, and threads read the needed pages from disk (``ColdData``).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import operator
import os
import resource
import signal
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from lookupdb.errors import CorruptFile, opening_error
from lookupdb.process import listeners
from lookupdb.process.worker import BEAT_SECONDS, WorkerBoot, run_worker
from lookupdb.resp.requests import error
from lookupdb.shard import limits
from lookupdb.shard.commands import NativeReplies, WorkerContext
from lookupdb.shard.connection import Poller, RespConnection
from lookupdb.shard.limits import TIME_SLICE_SECONDS, ServerIdentity, ServerLimits
from lookupdb.shardfile import ShardReader

if TYPE_CHECKING:
    from lookupdb._native import ShardKernel

log = logging.getLogger(__name__)

# Cold data: parks requests until their pages are read from disk. Otherwise the whole worker would wait for page faults.
#
# Data is cold while the loop waits for a disk more than it computes (``ColdSwitch``). Connections then park lookups.
# Threads let the kernel read all needed pages together, and the loop answers the lookups as usual. When the disk is
# quiet, the hot path is used again.


# The switch compares the time that the loop waits for a disk with the time that it computes. A key costs up to five
# times the CPU while data is cold, so a few pages that are not in the page cache are no reason to switch.


COLD_FAULTS: Final = 100
"""With fewer page faults per second, data never becomes cold: on all but the slowest disks, they take at most 1 % of
the time."""
COLD_WAITS: Final = 1.0
"""Data becomes cold when the loop has waited for a disk this many times as long as the process has computed."""
WARM_WAITS: Final = 0.1
"""Data becomes warm when page faults would make the loop wait for less than this share of the computing time, which is
longer while data is cold."""
WARM_READS: Final = 100
"""With fewer pages read per second, data is warm in any case."""
SECONDS: Final = 1.0
"""The period that is measured. It is short, so a wrong decision costs little."""


class Usage(NamedTuple):
    """A worker's use of resources since its start, or in a period."""

    seconds: float
    faults: int
    reads: int
    cpu: float
    waited: float
    """Seconds in which the loop's thread waited for a disk: neither computing, nor waiting for clients or a CPU."""

    def __sub__(self, start: Usage) -> Usage:
        """Return the use since ``start``."""
        return Usage(*map(operator.sub, self, start))


class ColdSwitch:
    """Judges by the use since ``start`` whether data is cold: the many page faults of a process start come earlier."""

    def __init__(self, start: Usage) -> None:
        self.is_cold = False
        self._start = start
        self._page_seconds = 0.0
        """Seconds that a page fault took on average when data became cold."""

    def is_due(self, seconds: float, faults: int) -> bool:
        """Return whether ``update`` could switch, or would begin a new period."""
        is_over = seconds - self._start.seconds >= SECONDS
        return is_over or (not self.is_cold and faults - self._start.faults >= COLD_FAULTS)

    def update(self, usage: Usage) -> Usage | None:
        """Decide by ``usage`` so far. Return the period's usage if data becomes cold or warm, else None."""
        delta = usage - self._start
        is_over = delta.seconds >= SECONDS
        if self.is_cold:
            waits = delta.reads * self._page_seconds
            has_changed = is_over and (delta.reads < WARM_READS or waits < WARM_WAITS * delta.cpu)
        else:
            has_changed = delta.faults >= COLD_FAULTS and delta.waited >= COLD_WAITS * delta.cpu
        if has_changed or is_over:
            self._start = usage
        if not has_changed:
            return None
        self.is_cold = not self.is_cold
        if self.is_cold:
            self._page_seconds = delta.waited / delta.faults
        return delta


_THREADS: Final = 4
"""More than one, so that new requests need not wait for the reads of earlier ones."""
_TOGETHER: Final = 16
"""Limit of requests whose pages a thread requests together."""
_BLOCKS_A_PAGE: Final = 8
"""The kernel counts reads in blocks of 512 bytes."""
_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds for which this thread ran and waited for a CPU, and the number of runs."""


class ColdData:
    """Parks requests while data is cold. ``ring`` makes the loop answer the ``warmed`` connections."""

    def __init__(self, poller: Poller, kernel: ShardKernel, ring: Callable[[], None]) -> None:
        self._poller = poller
        self._kernel = kernel
        self._warmer = kernel.warmer()
        self._ring = ring
        self._switch: ColdSwitch | None = None
        self._parked: SimpleQueue[RespConnection] = SimpleQueue()
        self.warmed: deque[RespConnection] = deque()
        """Connections whose pages were read."""
        self._has_threads = False

    def check(self, connections: Mapping[int, RespConnection]) -> None:
        """Check whether data became cold or warm. If so, make all ``connections`` change their path.

        Call it from the loop's thread. The first call starts the switch with the use so far.
        """
        if self._switch is None:
            self._switch = ColdSwitch(self._measure_usage())
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        if self._switch.is_due(time.monotonic(), faults) and (delta := self._switch.update(self._measure_usage())):
            is_cold = self._switch.is_cold
            what = "pages are read from disk before requests are answered" if is_cold else "the disk is quiet again"
            log.info(what, extra={name: round(value, 3) for name, value in delta._asdict().items()})
            self.use(is_cold, connections)

    def _measure_usage(self) -> Usage:
        now, idle = time.monotonic(), self._kernel.idle_seconds()
        delayed = 0.0  # stays so if the kernel does not report how long this thread has waited for a CPU
        with contextlib.suppress(OSError):
            delayed = int(_SCHEDULED.read_bytes().split()[1]) / 1e9
        thread, process = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
        return Usage(
            seconds=now,
            faults=thread.ru_majflt,
            reads=process.ru_inblock // _BLOCKS_A_PAGE,
            cpu=process.ru_utime + process.ru_stime,
            waited=now - idle - delayed - thread.ru_utime - thread.ru_stime,
        )

    def use(self, is_cold: bool, connections: Mapping[int, RespConnection]) -> None:
        """Start or stop parking. Parked requests are answered in either case."""
        if is_cold and not self._has_threads:
            for number in range(_THREADS):
                try:
                    threading.Thread(target=self._warm, name=f"warmer-{number}", daemon=True).start()
                except RuntimeError as problem:
                    log.warning("only %d of %d threads could be started: %s", number, _THREADS, problem)
                    break
                self._has_threads = True
            is_cold = self._has_threads  # without any thread, the loop itself waits for the disk
        # Connections are queued, not their parked bytes, which are freed at once if the client is cut off.
        self._poller.park = self._parked.put if is_cold else None
        for connection in connections.values():
            connection.choose_path()

    def _warm(self) -> None:
        while True:
            batch = [self._parked.get()]
            with contextlib.suppress(Empty):
                while len(batch) < _TOGETHER:
                    batch.append(self._parked.get_nowait())
            try:
                self._warmer.warm([connection.list_lookups() for connection in batch])
            except Exception:
                log.exception("pages could not be read ahead of requests")
            self.warmed.extend(batch)
            self._ring()


_EVENTS: Final = 256


def make_turn(worker: WorkerContext, poller: Poller) -> NativeTurn | PythonTurn:
    """Make the turn for the worker's replies."""
    replies = worker.replies
    return NativeTurn(worker, poller, replies) if isinstance(replies, NativeReplies) else PythonTurn(poller)


class LateEvents:
    """Events other than lookups, in order of arrival.

    Each may take a client's time slice. A turn handles only some of them, so that lookups and the worker's heartbeat
    come in between.
    """

    def __init__(self) -> None:
        self._events: OrderedDict[int, int] = OrderedDict()
        """Events by file descriptor. A poll repeats a waiting event, which keeps its place."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[tuple[int, int]]) -> None:
        """Queue events behind the waiting ones."""
        self._events.update(events)

    def handle(self, loop: WorkerLoop) -> None:
        """Handle one event, and more within a time slice. The descriptor may be another socket's by now, so handlers
        check that the event still applies."""
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
    """Lets the kernel poll, read and answer until something other than a lookup arrives, or a client does not read."""

    def __init__(self, worker: WorkerContext, poller: Poller, replies: NativeReplies) -> None:
        self._connections = worker.connections
        self._poller = poller
        self._replies = replies
        self._late = LateEvents()

    def run(self, loop: WorkerLoop) -> None:
        """Take turns until ``loop.until``."""
        run, report_damage, now = self._replies.kernel.run, self._replies.report_damage, time.monotonic
        epoll, poller, connections, late = self._poller.epoll.fileno(), self._poller, self._connections, self._late
        while (remaining := loop.until - now()) > 0:
            wait = 0.0 if late else remaining
            handed, events, is_slow, arrived = run(epoll, poller.fast_path, poller.protocols, wait)
            report_damage()
            end = now() + TIME_SLICE_SECONDS
            for fd, failure, *progress in handed:  # before events, which could accept clients on these descriptors
                try:
                    if failure:
                        raise OSError(failure, os.strerror(failure))
                    if fd in connections:  # an earlier client's replies may have cut this one off
                        connections[fd].resume(*progress, arrived, is_late=now() > end)
                except Exception as problem:  # ends one connection, never the worker
                    loop.close_broken(fd, problem)
            late.add(events)
            late.handle(loop)
            if is_slow:
                loop.check_disk()


class PythonTurn:
    """Leaves every event to its connection: the Python fallback of ``NativeTurn``."""

    def __init__(self, poller: Poller) -> None:
        self._epoll = poller.epoll
        self._late = LateEvents()

    def run(self, loop: WorkerLoop) -> None:
        """Take turns until ``loop.until``."""
        while (remaining := loop.until - time.monotonic()) > 0:
            self._late.add(self._epoll.poll(0.0 if self._late else remaining, _EVENTS))
            self._late.handle(loop)


_UNREACHABLE: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors of a client's socket that are not a ConnectionError: its node is lost, and sent bytes are not acknowledged."""
_TOO_MANY: Final = error("ERR max number of clients reached")
_MAX_UNAUTHENTICATED: Final = 1024
"""Limit of clients that have not authenticated, or a quarter of all clients if that is less."""
_ACCEPTED: Final = 64
"""Limit of clients accepted at once, because connected clients wait meanwhile."""


class WorkerLoop:
    """Accepts clients from ``listener`` and answers them while it runs."""

    def __init__(self, worker: WorkerContext, listener: socket.socket) -> None:
        self._worker = worker
        self._listener = listener
        self._poller = Poller()
        self._poller.add(listener.fileno())
        self._accepting = True
        self.until = 0.0
        self.is_stopping = False
        self._turn = make_turn(worker, self._poller)
        self._alarm, self._bell = socket.socketpair()
        for end in (self._alarm, self._bell):
            end.setblocking(False)
        self._poller.add(self._alarm.fileno())
        self.bell: Final = self._bell.fileno()
        """File descriptor: a byte written to it makes the loop check whether to stop."""
        replies = worker.replies
        self.cold_data: Final = (
            ColdData(self._poller, replies.kernel, self._ring) if isinstance(replies, NativeReplies) else None
        )

    def stop(self) -> None:
        """Make ``run`` return, and set ``is_stopping``. A signal handler may call it if the signal rings the bell."""
        self.is_stopping = True
        self.until = 0.0

    def run(self, seconds: float) -> None:
        """Serve for ``seconds``, or until ``stop``."""
        self.until = time.monotonic() + seconds
        self._turn.run(self)

    def handle(self, fd: int, events: int) -> None:
        """Handle an event other than a lookup."""
        connection = self._worker.connections.get(fd)
        if connection is not None:
            connection.handle_events(events)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._alarm.fileno():
            self._alarm.recv(4096)
            self._answer_warmed()

    def check_disk(self) -> None:
        """Check whether lookups wait for a disk: after a slow turn, and regularly."""
        if self.cold_data is not None:
            self.cold_data.check(self._worker.connections)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # the bell has enough bytes, or the loop is gone
            self._bell.send(b"\0")

    def _answer_warmed(self) -> None:
        end = time.monotonic() + TIME_SLICE_SECONDS
        while self.cold_data is not None and self.cold_data.warmed:
            connection = self.cold_data.warmed.popleft()
            try:
                connection.unpark()
            except Exception as problem:  # ends one connection, never the worker
                self.close_broken(connection.fd, problem)
            if time.monotonic() > end:  # other clients get their turn first
                self._ring()
                return

    def close_broken(self, fd: int, problem: Exception) -> None:
        """Close the connection of ``fd`` after ``problem``: the client is gone, or there is a bug."""
        if isinstance(problem, BlockingIOError):
            return
        if not isinstance(problem, ConnectionError) and getattr(problem, "errno", None) not in _UNREACHABLE:
            log.error("a connection is closed because of an error in the server", exc_info=problem)
        if fd in self._worker.connections:
            self._worker.connections[fd].close()

    def _accept(self) -> None:
        worker = self._worker
        for _ in range(_ACCEPTED):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as problem:  # without descriptors or memory, the listener would be ready again at once
                log.warning("cannot accept clients for now: %s", problem)
                self.stop_accepting()
                return
            client.setblocking(False)
            is_full = len(worker.connections) >= worker.limits.max_connections
            most = max(1, min(_MAX_UNAUTHENTICATED, worker.limits.max_connections // 4))
            if worker.unauthenticated and (is_full or len(worker.unauthenticated) >= most):
                next(iter(worker.unauthenticated.values())).cut()  # the oldest makes room
            elif is_full:
                worker.slot[limits.CONNECTIONS_REFUSED] += 1
                with client, contextlib.suppress(OSError):
                    client.send(_TOO_MANY)
                continue
            connection = RespConnection(worker, self._poller, client)
            worker.connections[connection.fd] = connection
            worker.slot[limits.CONNECTIONS] += 1
            worker.slot[limits.OPEN_CONNECTIONS] = len(worker.connections)

    def stop_accepting(self) -> None:
        """Stop accepting until the next sweep; new clients wait."""
        if self._accepting:
            self._accepting = False
            self._poller.remove(self._listener.fileno())

    def resume_accepting(self) -> None:
        """Accept again, after ``stop_accepting``."""
        if not self._accepting:
            self._accepting = True
            self._poller.add(self._listener.fileno())


# The worker's life.


SWEEP_SECONDS: Final = BEAT_SECONDS
"""Interval of the sweep for idle and slow clients."""
QUIET_SECONDS: Final = 0.1
"""On shutdown, time for an idle client's request that is on its way."""
LINGER_SECONDS: Final = 2.0
"""On shutdown, time for clients to read their last replies."""


def main(boot: WorkerBoot) -> None:
    """Serve until SIGTERM and the drain that follows."""
    (listener,) = boot.listeners()
    context = _open_context(boot, listener)
    context.slot[limits.OPEN_CONNECTIONS] = 0  # the connections of a previous worker are gone
    # Existing objects live as long as the process. Requests make no cycles, so collections may be rare.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its clients' sockets inherit it
    listener.listen(listeners.BACKLOG)
    loop = WorkerLoop(context, listener)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    # Without this, Python would keep waiting for events after the signal's handler has run.
    signal.set_wakeup_fd(loop.bell, warn_on_full_buffer=False)
    beat = boot.make_heartbeat()
    beat()
    boot.report_ready(port=context.port)
    while not loop.is_stopping:
        loop.run(SWEEP_SECONDS)
        beat()
        loop.resume_accepting()
        loop.check_disk()
        _sweep(context)
    _drain(loop, context, boot.drain_seconds)


def _open_context(boot: WorkerBoot, listener: socket.socket) -> WorkerContext:
    config = boot.config
    path = Path(config["path"])
    try:
        size = path.stat().st_size
    except OSError as error:
        raise opening_error(path, error.errno or 0) from error
    if size != config["bytes"]:
        # Touching a page beyond the end of a file kills the process, so a short file must not be mapped.
        raise CorruptFile(
            f"{path}: expected {config['bytes']} bytes as verified, found {size}",
            hint="shard files are immutable: never write to one that is served; fetch or build it again",
        )
    password_sha256 = config.get("password_sha256")
    identity = ServerIdentity(**config["identity"])
    return WorkerContext(
        shard=_open_shard(path, identity, config["dictionary_bytes"]),
        identity=identity,
        limits=ServerLimits(**config["limits"]),
        slot=boot.counters().slot(boot.index),
        password_sha256=None if password_sha256 is None else bytes.fromhex(password_sha256),
        port=listener.getsockname()[1],
        file_bytes=size,
    )


def _open_shard(path: Path, identity: ServerIdentity, dictionary_bytes: int) -> ShardReader:
    """Open the shard. Raises CorruptFile if its metadata differ from the manifest."""
    shard = ShardReader(path)
    meta = shard.meta
    for name, expected, found in (
        ("dataset", identity.dataset, meta.dataset),
        ("shard", identity.shard, meta.shard),
        ("shards", identity.shards, meta.shards),
        ("records", identity.records, meta.records),
        ("dictionary bytes", dictionary_bytes, shard.dictionary_bytes),
    ):
        if expected != found:
            raise CorruptFile(
                f"{path}: its index says {name} {expected}, the file {found}", hint="build the generation again"
            )
    return shard


def _sweep(context: WorkerContext) -> None:
    now = time.monotonic()
    for connection in list(context.connections.values()):
        connection.sweep(now)


def _drain(loop: WorkerLoop, context: WorkerContext, seconds: float) -> None:
    """Serve for ``seconds`` while clients leave; then send each client its last replies."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        loop.run(min(remaining, SWEEP_SECONDS))
        _sweep(context)
    loop.stop_accepting()
    for connection in list(context.connections.values()):
        connection.drain()
    loop.run(QUIET_SECONDS)
    for connection in list(context.connections.values()):
        connection.end()
    end = time.monotonic() + LINGER_SECONDS
    while context.connections and (remaining := end - time.monotonic()) > 0:
        loop.run(min(remaining, QUIET_SECONDS))
    for connection in list(context.connections.values()):
        connection.close()


def start() -> None:
    """Run a worker."""
    run_worker(main)
