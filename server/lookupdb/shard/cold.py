"""Cold data: parks requests until their pages are read from disk, so that not the whole worker waits for page faults.

Data is cold while the loop waits for a disk more than it computes (``ColdSwitch``). Connections then park lookups.
Threads let the kernel read all needed pages together, and the loop answers the lookups as usual. When the disk is
quiet, the hot path is used again.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lookupdb.shard.connection import Poller

if TYPE_CHECKING:
    from lookupdb._native import ShardKernel

# The switch weighs time: the loop's waits against its computation, because a key costs up to five times the CPU while
# data is cold. A few pages of a large file that have left the page cache are no reason to switch.


COLD_FAULTS: Final = 100
"""Fewer page faults per second never make data cold: except on the slowest disks, they take a hundredth of it."""
COLD_WAITS: Final = 1.0
"""Data becomes cold when the loop has waited this many times as long as it has computed, including faults."""
WARM_WAITS: Final = 0.1
"""Data becomes warm when the loop would have waited this many times as long as is computed, which is now more."""
WARM_READS: Final = 100
"""With fewer pages read per second, data is warm in any case."""
SECONDS: Final = 1.0
"""The period that is weighed. Short, because neither waiting nor being cold costs much in that time."""


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
        return Usage(
            seconds=self.seconds - start.seconds,
            faults=self.faults - start.faults,
            reads=self.reads - start.reads,
            cpu=self.cpu - start.cpu,
            waited=self.waited - start.waited,
        )


class ColdSwitch:
    """Decides whether data is cold from the use since ``start``, which excludes the many faults of a process start."""

    def __init__(self, start: Usage) -> None:
        self.is_cold = False
        self._start = start
        self._page_seconds = 0.0
        """The duration of a page fault when data became cold."""

    def is_due(self, seconds: float, faults: int) -> bool:
        """Return whether ``update`` could change anything or would begin a new period."""
        is_over = seconds - self._start.seconds >= SECONDS
        return is_over or (not self.is_cold and faults - self._start.faults >= COLD_FAULTS)

    def update(self, usage: Usage) -> Usage | None:
        """Weigh ``usage``. If data becomes cold or warm, return what was weighed."""
        delta = usage - self._start
        is_over = delta.seconds >= SECONDS
        has_changed = is_over and self._is_warm(delta) if self.is_cold else _is_cold(delta)
        if has_changed or is_over:
            self._start = usage
        if not has_changed:
            return None
        self.is_cold = not self.is_cold
        if self.is_cold:
            self._page_seconds = delta.waited / delta.faults
        return delta

    def _is_warm(self, delta: Usage) -> bool:
        return delta.reads < WARM_READS or delta.reads * self._page_seconds < WARM_WAITS * delta.cpu


def _is_cold(delta: Usage) -> bool:
    return delta.faults >= COLD_FAULTS and delta.waited >= COLD_WAITS * delta.cpu


log = logging.getLogger(__name__)

_THREADS: Final = 4
"""Several threads, so that new requests need not wait for the reads of earlier ones."""
_TOGETHER: Final = 16
"""Limit of requests whose pages a thread requests together."""
_BLOCKS_A_PAGE: Final = 8
"""The kernel counts reads in blocks of 512 bytes."""
_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds for which this thread ran and waited for a CPU, and the number of runs."""


class Parkable(Protocol):
    """A connection with lookups to park."""

    fd: int
    parked: bytes
    """The parked bytes; empty after closing."""

    def list_lookups(self) -> bytes:
        """Return the parked lookups and all others that will follow, in pieces of RESP. Callable from any thread."""

    def unpark(self) -> None:
        """Answer the parked requests."""

    def choose_path(self) -> None:
        """Join or leave the hot path, as the poller requires."""


class ColdData:
    """Parks requests while data is cold. ``ring`` makes the loop answer those whose pages were read
    (``pop_warmed``)."""

    def __init__(self, poller: Poller, kernel: ShardKernel, ring: Callable[[], None]) -> None:
        self._poller = poller
        self._kernel = kernel
        self._warmer = kernel.warmer()
        self._ring = ring
        self._switch: ColdSwitch | None = None
        self._parked: SimpleQueue[Parkable] = SimpleQueue()
        self._warmed: deque[Parkable] = deque()
        self._has_threads = False

    def check(self, connections: Mapping[int, Parkable]) -> None:
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
        now, idle, delayed = time.monotonic(), self._kernel.idle_seconds(), _read_run_delay()
        thread, process = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
        return Usage(
            seconds=now,
            faults=thread.ru_majflt,
            reads=process.ru_inblock // _BLOCKS_A_PAGE,
            cpu=process.ru_utime + process.ru_stime,
            waited=now - idle - delayed - thread.ru_utime - thread.ru_stime,
        )

    def use(self, is_cold: bool, connections: Mapping[int, Parkable]) -> None:
        """Start or stop parking. Parked requests are answered in either case."""
        if is_cold and not self._has_threads:
            self._has_threads = self._start_threads()
            is_cold = self._has_threads
        self._poller.park = self._park if is_cold else None
        for connection in connections.values():
            connection.choose_path()

    def _start_threads(self) -> bool:
        """Start the threads. Return whether there is at least one; without any, the loop itself waits for the disk."""
        for number in range(_THREADS):
            try:
                threading.Thread(target=self._warm, name=f"warmer-{number}", daemon=True).start()
            except RuntimeError as problem:
                log.warning("only %d of %d threads could be started: %s", number, _THREADS, problem)
                return number > 0
        return True

    def pop_warmed(self) -> Parkable | None:
        """Return the next connection whose pages were read, or None."""
        return self._warmed.popleft() if self._warmed else None

    def _park(self, connection: Parkable) -> None:
        self._parked.put(connection)  # not its bytes, which are freed at once if the client is cut off

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
            self._warmed.extend(batch)
            self._ring()


def _read_run_delay() -> float:
    """Return the seconds that this thread has waited for a CPU, or 0 if the kernel does not report it."""
    with contextlib.suppress(OSError):
        return int(_SCHEDULED.read_bytes().split()[1]) / 1e9
    return 0.0
