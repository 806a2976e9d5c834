"""Cold data: requests whose pages are on disk wait for them, and not the whole worker, one page fault after the other.

While the loop waits for a disk more than it computes (``cold_switch``) its data is cold: connections then park lookups,
threads let the kernel read all pages that these need from disk together, and the loop answers them as it answers every
request. The threads answer nothing themselves. When the disk is left alone the hot path is in use again.
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


# Decides whether lookups wait so long for a disk that it pays to read their pages beforehand, in other threads.
#
# What is weighed is time: what the loop waits against what it computes, for a key costs up to five times as much
# processor time while data is taken for cold. Some pages of a large file that have left the page cache are no reason.


COLD_FAULTS: Final = 100
"""Fewer page faults in a second make nothing cold: but for the slowest of disks, they take a hundredth of it."""
COLD_WAITS: Final = 1.0
"""Data is cold when the loop has waited so many times as long as it has computed, which to take a fault is as well."""
WARM_WAITS: Final = 0.1
"""It is warm again when the loop would have waited so many times as long as is computed, which is more than before."""
WARM_READS: Final = 100
"""With fewer pages read in a second it is warm in any case."""
SECONDS: Final = 1.0
"""What is weighed together. Short, because neither to wait nor to be cold costs much in so little time."""


class Usage(NamedTuple):
    """What a worker has used since it began, or in a while."""

    seconds: float
    faults: int
    """Page faults of the loop's thread that waited for something."""
    reads: int
    """Pages that all threads have read from disk."""
    cpu: float
    """Processor seconds of all threads."""
    waited: float
    """Seconds in which the loop's thread neither computed nor waited for clients or a processor: but for a disk."""

    def __sub__(self, start: Usage) -> Usage:
        """What was used after ``start``."""
        return Usage(
            seconds=self.seconds - start.seconds,
            faults=self.faults - start.faults,
            reads=self.reads - start.reads,
            cpu=self.cpu - start.cpu,
            waited=self.waited - start.waited,
        )


class ColdSwitch:
    """Says whether data is cold, by what was used since ``start``: to start a process may take many faults."""

    def __init__(self, start: Usage) -> None:
        self.is_cold = False
        self._start = start
        self._page_seconds = 0.0
        """What a page fault took when data became cold."""

    def is_due(self, seconds: float, faults: int) -> bool:
        """Whether ``update`` could change anything, or begins a new second."""
        is_over = seconds - self._start.seconds >= SECONDS
        return is_over or (not self.is_cold and faults - self._start.faults >= COLD_FAULTS)

    def update(self, usage: Usage) -> Usage | None:
        """Take note of ``usage``. If data becomes cold or warm by it, returns what was weighed."""
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
"""Requests that arrive while a disk is waited for need not wait for the same reads."""
_TOGETHER: Final = 16
"""The most requests whose pages a thread asks for together."""
_BLOCKS_A_PAGE: Final = 8
"""The kernel counts what is read in blocks of 512 bytes."""
_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds in which this thread ran and waited for a processor, and how often it ran."""


class Parkable(Protocol):
    """A connection that has read lookups."""

    fd: int
    parked: bytes
    """What it has read, nothing once it is closed."""

    def list_lookups(self) -> bytes:
        """What was parked and what else it will look up, in pieces of RESP. Any thread may ask."""

    def unpark(self) -> None:
        """Answer what was parked."""

    def choose_path(self) -> None:
        """Let the hot path answer the client, or not, as the poller says now."""


class ColdData:
    """Parks what connections read while data is cold. ``ring`` makes the loop unpark those whose pages were read
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
        """See whether data became cold or warm; if so, let ``connections``, which are all, take the path for that.

        The loop's thread calls it: the first time, for the switch to start with what it has used until then.
        """
        if self._switch is None:
            self._switch = ColdSwitch(self._measure_usage())
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        if self._switch.is_due(time.monotonic(), faults) and (delta := self._switch.update(self._measure_usage())):
            is_cold = self._switch.is_cold
            what = (
                "pages are read from disk before requests are answered" if is_cold else "the disk is left alone again"
            )
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
        """Park from now on, or no longer. What is parked is answered in either case."""
        if is_cold and not self._has_threads:
            self._has_threads = self._start_threads()
            is_cold = self._has_threads
        self._poller.park = self._park if is_cold else None
        for connection in connections.values():
            connection.choose_path()

    def _start_threads(self) -> bool:
        """Start the threads. Returns whether there is one at least; without any, the loop itself waits for the disk."""
        for number in range(_THREADS):
            try:
                threading.Thread(target=self._warm, name=f"warmer-{number}", daemon=True).start()
            except RuntimeError as problem:
                log.warning("only %d of %d threads could be started: %s", number, _THREADS, problem)
                return number > 0
        return True

    def pop_warmed(self) -> Parkable | None:
        """The next connection whose pages are there, None if there is none."""
        return self._warmed.popleft() if self._warmed else None

    def _park(self, connection: Parkable) -> None:
        self._parked.put(connection)  # and not what it has read: that of a client which is cut off is free at once

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
    """Return for how many seconds this thread has waited for a processor, 0 where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return int(_SCHEDULED.read_bytes().split()[1]) / 1e9
    return 0.0
