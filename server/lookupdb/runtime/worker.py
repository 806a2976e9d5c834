"""The worker's side of supervision: its configuration, its reports, and that it never outlives its supervisor.

A worker is started with the number of a memory file (see ``start``) that holds ``WorkerBoot`` as JSON (so that no
secret shows in a process listing). It inherits its listening sockets, the counters, and two pipes: ``alive``,
which ends when the supervisor does, and ``reports``, into which it writes one JSON object a line.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from lookupdb import logs, native
from lookupdb.errors import LookupdbError
from lookupdb.runtime.counters import Counters

if TYPE_CHECKING:
    import asyncio  # the worker of a router has it loaded anyway

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
