"""The worker's side of supervision: boot configuration, counters, heartbeat and reports.

A worker starts with the number of a memory file that holds its ``WorkerBoot`` as JSON, so that no secret appears in a
process listing. It inherits its listening sockets, the counters, and two pipes. The pipe ``alive`` closes when the
supervisor ends, and that ends the worker. Into ``reports`` the worker writes one JSON object per line.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from lookupdb import native, telemetry
from lookupdb.errors import LookupdbError

if TYPE_CHECKING:
    import asyncio  # not at run time: a shard's worker does without it


# Counters in shared memory, without locks, system calls or a metrics library on the hot path. The memory belongs to the
# supervisor, so a restarted worker continues to count where the dead one stopped.


_CACHE_LINE: Final = 64
_ITEM: Final = 8


class Counters:
    """Counters called ``names`` in anonymous shared memory, with a slot of 64-bit numbers for each of ``slots``
    workers. A slot has all counters ``blocks`` times, for example once for each dataset.

    ``index[name]`` is the place of a counter in ``slot(i)``. ``fd`` maps the memory of another process's Counters of
    the same names, slots and blocks; without it, new memory is made, all zero. The worker's heartbeat follows the
    counters of a slot.
    """

    def __init__(self, names: Iterable[str], slots: int, blocks: int = 1, *, fd: int | None = None) -> None:
        self.names = tuple(names)
        self.slots = slots
        self.blocks = blocks
        self.index = {name: place for place, name in enumerate(self.names)}
        # A slot fills whole cache lines, so that no two workers write to the same one.
        self._beat_at = blocks * len(self.names)
        self._stride = -(-(self._beat_at + 1) * _ITEM // _CACHE_LINE) * _CACHE_LINE // _ITEM
        size = self._stride * _ITEM * slots
        if fd is None:
            fd = os.memfd_create("lookupdb-counters")
            os.truncate(fd, size)
        self.fd = fd
        self._numbers = memoryview(mmap.mmap(fd, size)).cast("Q")

    def slot(self, number: int, block: int = 0) -> memoryview:
        """Return the writable counters of worker ``number``: ``slot[index[name]] += 1``."""
        start = number * self._stride + block * len(self.names)
        return self._numbers[start : start + len(self.names)]

    def value(self, name: str, slot: int, block: int = 0) -> int:
        """Return a counter of worker ``slot``."""
        return self._numbers[slot * self._stride + block * len(self.names) + self.index[name]]

    def beat(self, slot: int) -> None:
        """Count a heartbeat of worker ``slot``."""
        self._numbers[slot * self._stride + self._beat_at] += 1

    def beats(self, slot: int) -> int:
        """Return the heartbeats of worker ``slot``. It is alive while they increase."""
        return self._numbers[slot * self._stride + self._beat_at]

    def values(self, name: str, block: int = 0) -> list[int]:
        """Return a counter of each worker."""
        return [self.value(name, slot, block) for slot in range(self.slots)]

    def total(self, name: str, block: int = 0) -> int:
        """Return the sum of a counter over all workers."""
        return sum(self.values(name, block))


# Histograms of requests, made of counters: some for the buckets, and one for the sum.


REQUEST_SECONDS: Final = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""The upper bounds of the buckets; the last bucket has none. Native histograms of Prometheus would need its protobuf
format: the text format that the admin port writes cannot carry them."""
REQUEST_BOUNDS: Final = tuple(round(seconds * 1e9) for seconds in REQUEST_SECONDS)
"""The same in nanoseconds."""
_SUM_AT: Final = len(REQUEST_BOUNDS) + 1
"""The place of the sum, in nanoseconds, counted from the first bucket."""


def histogram_names(name: str) -> tuple[str, ...]:
    """Return the adjacent counters of the histogram ``name``. Pass the index of the first to ``observe``."""
    return tuple(f"{name}_{number}" for number in range(_SUM_AT + 1))


def observe(counters: memoryview, histogram: int, arrived: int, count: int = 1, counter: int | None = None) -> None:
    """Add ``count`` requests that arrived at ``arrived`` (by ``monotonic_ns``) and are answered now. Also add them to
    ``counter``."""
    nanoseconds = monotonic_ns() - arrived
    counters[histogram + bisect_left(REQUEST_BOUNDS, nanoseconds)] += count
    counters[histogram + _SUM_AT] += count * nanoseconds
    if counter is not None:
        counters[counter] += count


def make_observer(counters: memoryview) -> Callable[..., None]:
    """Return ``observe`` with ``counters``, native if possible: it runs for every request."""
    kernels = native.kernels()
    if kernels is None:
        return partial(observe, counters)
    record: Callable[..., None] = kernels.RequestHistograms(counters, REQUEST_BOUNDS).observe
    return record


BEAT_SECONDS: Final = 1.0
"""Interval of a worker's heartbeats (see ``supervisor``)."""
MAX_REPORT_BYTES: Final = 60_000
"""Limit of a report, which must fit the pipe (64 KiB) so that writing to an empty pipe never blocks."""


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """A worker's configuration, and what it inherits."""

    index: int
    workers: int
    config: dict[str, Any]
    sockets: Sequence[int]
    counter_names: Sequence[str]
    counter_blocks: int
    counters_fd: int
    alive_fd: int
    reports_fd: int
    drain_seconds: float
    log_format: str

    def to_json(self) -> bytes:
        """Return the content of the memory file."""
        return orjson.dumps(asdict(self))

    @classmethod
    def read(cls, fd: int) -> Self:
        """Read and close the memory file ``fd``."""
        with open(fd, "rb") as file:
            return cls(**orjson.loads(file.read()))

    def listeners(self) -> list[socket.socket]:
        """Return the inherited listening sockets, non-blocking."""
        listeners = [socket.socket(fileno=fd) for fd in self.sockets]
        for listener in listeners:
            listener.setblocking(False)
        return listeners

    def counters(self) -> Counters:
        """Return all workers' counters; this worker's own are ``counters().slot(index)``."""
        return Counters(self.counter_names, self.workers, self.counter_blocks, fd=self.counters_fd)

    def make_heartbeat(self) -> Callable[[], None]:
        """Return a function to call every ``BEAT_SECONDS`` in the event loop. A worker that stops calling it is
        killed."""
        counters, index = self.counters(), self.index
        return lambda: counters.beat(index)

    def start_heartbeat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beat every ``BEAT_SECONDS`` while ``loop`` runs."""
        beat = self.make_heartbeat()

        def beat_again() -> None:
            beat()
            loop.call_later(BEAT_SECONDS, beat_again)

        beat_again()

    def report(self, **members: Any) -> None:
        """Send ``members`` to the supervisor, which shows the last value of each in /status."""
        line = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) > MAX_REPORT_BYTES:
            raise ValueError(f"a report of {len(line)} bytes, the limit is {MAX_REPORT_BYTES}")
        os.write(self.reports_fd, line)

    def report_ready(self, **members: Any) -> None:
        """Report that this worker is ready, and with which kernels, because the supervisor loads none."""
        self.report(state="ready", kernels=native.kind(), **members)


def run_worker(main: Callable[[WorkerBoot], None]) -> None:
    """Read the configuration, run ``main(boot)``, and report a failure: the ``start()`` of a worker module.

    ``main`` must return after SIGTERM and the drain. Until it handles SIGTERM, the signal ends the process.
    """
    boot = WorkerBoot.read(int(sys.argv[1]))
    die_with_supervisor(boot.alive_fd)
    telemetry.configure_logging(boot.log_format)
    try:
        main(boot)
    except LookupdbError as error:
        boot.report(failed={"reason": error.reason, "message": error.message, "hint": error.hint})
        sys.exit(error.exit_code)


def die_with_supervisor(alive_fd: int) -> None:
    """Make the kernel end this process when the other end of the pipe is closed, whatever it is doing.

    The kernel sends SIGIO for the end of the pipe, which by default ends the process.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(alive_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive_fd, fcntl.F_SETFL, fcntl.fcntl(alive_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([alive_fd], [], [], 0)[0]:
        sys.exit("the supervisor is gone")
