"""The worker's side of supervision: its configuration, its reports, and that it never outlives its supervisor.

A worker is started with the number of a memory file (see ``start``) that holds ``WorkerBoot`` as JSON (so that no
secret shows in a process listing). It inherits its listening sockets, the counters, and two pipes: ``alive``,
which ends when the supervisor does, and ``reports``, into which it writes one JSON object a line.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from lookupdb import logs, native
from lookupdb.errors import LookupdbError

if TYPE_CHECKING:
    import asyncio  # the worker of a router has it loaded anyway


# Counters in shared memory: a slot of unsigned 64-bit numbers for each worker, summed when scraped.
#
# A worker adds to its own slot with plain arithmetic: no lock, no system call, no metrics library on the hot path.
# The memory belongs to the supervisor, so a restarted worker goes on counting where the dead one stopped.


_CACHE_LINE: Final = 64
_ITEM: Final = 8


class Counters:
    """``slots`` copies of the counters called ``names``, in anonymous shared memory.

    ``index[name]`` is a counter's place within ``slot(i)``. With ``fd`` the memory of another process's
    Counters of the same names and slots is mapped; without, new memory is made, all zero.

    Behind a slot's counters stands the worker's heartbeat.
    """

    def __init__(self, names: Iterable[str], slots: int, *, fd: int | None = None) -> None:
        self.names = tuple(names)
        self.slots = slots
        self.index = {name: place for place, name in enumerate(self.names)}
        # A slot fills whole cache lines, so that two workers never write to the same one.
        self._stride = -(-(len(self.names) + 1) * _ITEM // _CACHE_LINE) * _CACHE_LINE // _ITEM
        size = self._stride * _ITEM * slots
        if fd is None:
            fd = os.memfd_create("lookupdb-counters")
            os.truncate(fd, size)
        self.fd = fd
        self._numbers = memoryview(mmap.mmap(fd, size)).cast("Q")

    def slot(self, number: int) -> memoryview:
        """Return the counters of worker ``number``, writable, one item a name: ``slot[index[name]] += 1``."""
        start = number * self._stride
        return self._numbers[start : start + len(self.names)]

    def value(self, name: str, slot: int) -> int:
        """Return what worker ``slot`` has counted."""
        number: int = self._numbers[slot * self._stride + self.index[name]]
        return number

    def beat(self, slot: int) -> None:
        """Count a heartbeat of worker ``slot``."""
        self._numbers[slot * self._stride + len(self.names)] += 1

    def beats(self, slot: int) -> int:
        """Return how many heartbeats worker ``slot`` has counted. While it changes, the worker is alive."""
        number: int = self._numbers[slot * self._stride + len(self.names)]
        return number

    def total(self, name: str) -> int:
        """Return what all workers have counted together."""
        return sum(self.value(name, slot) for slot in range(self.slots))


BEAT_SECONDS: Final = 1.0
"""How often a worker's event loop beats (see ``liveness``)."""
MAX_REPORT_BYTES: Final = 60_000
"""A report must fit into the pipe (64 KiB) so that writing it never blocks an idle pipe's writer."""


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """A worker's configuration, and what it inherits."""

    index: int
    """Which worker this is, from 0."""
    workers: int
    config: dict[str, Any]
    """The role's own configuration: any JSON."""
    sockets: tuple[int, ...]
    counter_names: tuple[str, ...]
    counters_fd: int
    alive_fd: int
    reports_fd: int
    drain_seconds: float
    log_format: str

    def to_json(self) -> bytes:
        """Return it as the content of the memory file."""
        return orjson.dumps(asdict(self))

    @classmethod
    def read(cls, fd: int) -> Self:
        """Read it from the memory file ``fd``, and close that."""
        with open(fd, "rb") as file:
            members = orjson.loads(file.read())
        for name in ("sockets", "counter_names"):
            members[name] = tuple(members[name])
        return cls(**members)

    def listeners(self) -> list[socket.socket]:
        """Return the inherited listening sockets, non-blocking."""
        listeners = [socket.socket(fileno=fd) for fd in self.sockets]
        for listener in listeners:
            listener.setblocking(False)
        return listeners

    def counters(self) -> Counters:
        """Return all workers' counters; this worker's own are ``counters().slot(index)``."""
        return Counters(self.counter_names, self.workers, fd=self.counters_fd)

    def make_heartbeat(self) -> Callable[[], None]:
        """Return what the event loop calls every ``BEAT_SECONDS``. A worker that ceases to do so is killed as hung."""
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
        """Send ``members`` to the supervisor, which keeps the last value of each and shows it in /status."""
        line = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) > MAX_REPORT_BYTES:
            raise ValueError(f"a report of {len(line)} bytes, the limit is {MAX_REPORT_BYTES}")
        os.write(self.reports_fd, line)

    def report_ready(self, **members: Any) -> None:
        """Tell the supervisor, which loads no kernels, that this worker answers from now on, and by which of them."""
        self.report(state="ready", kernels=native.kind(), **members)


def run_worker(main: Callable[[WorkerBoot], None]) -> None:
    """Read the configuration, run ``main(boot)``, and report why it fails: a worker module's whole ``start()``.

    ``main`` returns when it has drained after SIGTERM; until it handles SIGTERM, that ends the process.
    """
    boot = WorkerBoot.read(int(sys.argv[1]))
    die_with_supervisor(boot.alive_fd)
    logs.configure_logging(boot.log_format)
    try:
        main(boot)
    except LookupdbError as error:
        boot.report(failed={"reason": error.reason, "message": error.message, "hint": error.hint})
        sys.exit(error.exit_code)


def die_with_supervisor(alive_fd: int) -> None:
    """Let the kernel end this process when the other end of the pipe is closed, whatever it is busy with.

    The kernel sends SIGIO for the end of the pipe, and SIGIO's default action is to end the process.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(alive_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive_fd, fcntl.F_SETFL, fcntl.fcntl(alive_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([alive_fd], [], [], 0)[0]:
        sys.exit("the supervisor is gone")
