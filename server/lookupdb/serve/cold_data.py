"""Cold data: requests whose pages are on disk wait for them, and not the whole worker, one page fault after the other.

While the process takes many page faults its data is cold: connections then park what they read, threads let the kernel
read all pages that the requests need from disk together, and the loop answers them as it answers every request. The
threads answer nothing themselves. When the disk is left alone for a while the hot path is in use again.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from lookupdb.serve.poller import Poller

if TYPE_CHECKING:
    from lookupdb._native import PageWarmer

log = logging.getLogger(__name__)

_THREADS: Final = 4
"""Requests that arrive while a disk is waited for need not wait for the same reads."""
_TOGETHER: Final = 16
"""The most requests whose pages a thread asks for together."""
_BLOCKS_A_PAGE: Final = 8
"""The kernel counts what is read in blocks of 512 bytes."""

COLD_FAULTS: Final = 100
"""So many page faults in WARM_SECONDS make data cold: of a tenth of a millisecond each, they take a hundredth of it."""
WARM_SECONDS: Final = 1.0
WARM_READS: Final = 100
"""With fewer pages read in COLD_SECONDS, data is warm again."""
COLD_SECONDS: Final = 2.0
"""Short, for a key whose pages are there costs five times as much while data is taken for cold."""


class Parkable(Protocol):
    """A connection that has read something."""

    fd: int
    parked: bytes
    """What it has read, nothing once it is closed."""

    def unpark(self) -> None:
        """Answer what was parked."""

    def choose_path(self) -> None:
        """Let the hot path answer the client, or not, as the poller says now."""


class ColdSwitch:
    """Decides from what the kernel has counted since the process began: page faults that waited for a disk, and pages
    read, also by the threads, whose reads are no faults. To start a process may take many of both.
    """

    def __init__(self, faults: int, reads: int, now: float) -> None:
        self.is_cold = False
        self._faults, self._reads, self._since = faults, reads, now

    def update(self, faults: int, reads: int, now: float) -> bool:
        """Take note of the counts. Returns whether data became cold, or warm."""
        span = COLD_SECONDS if self.is_cold else WARM_SECONDS
        if self.is_cold:
            has_changed = now - self._since >= span and reads - self._reads < WARM_READS
        else:
            has_changed = faults - self._faults >= COLD_FAULTS
        if has_changed or now - self._since >= span:
            self._faults, self._reads, self._since = faults, reads, now
        self.is_cold ^= has_changed
        return has_changed


class ColdData:
    """Parks what connections read while data is cold. ``ring`` makes the loop call ``unpark_warmed``."""

    def __init__(self, poller: Poller, warmer: PageWarmer, ring: Callable[[], None]) -> None:
        self._poller = poller
        self._warmer = warmer
        self._ring = ring
        self._switch = ColdSwitch(*_measure())
        self._parked: SimpleQueue[Parkable] = SimpleQueue()
        self._warmed: deque[Parkable] = deque()
        self._has_threads = False

    def check(self, connections: Mapping[int, Parkable]) -> None:
        """See whether data became cold or warm; if so, let ``connections``, which are all, take the path for that."""
        if self._switch.update(*_measure()):
            self.use(self._switch.is_cold, connections)

    def use(self, is_cold: bool, connections: Mapping[int, Parkable]) -> None:
        """Park from now on, or no longer. What is parked is answered in either case."""
        log.info("pages are read from disk before requests are answered" if is_cold else "the disk is left alone again")
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
                self._warmer.warm([connection.parked for connection in batch])
            except Exception:
                log.exception("pages could not be read ahead of requests")
            self._warmed.extend(batch)
            self._ring()


def _measure() -> tuple[int, int, float]:
    """The arguments of ``ColdSwitch.update``."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt, usage.ru_inblock // _BLOCKS_A_PAGE, time.monotonic()
