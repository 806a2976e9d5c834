"""The worker's side of supervision: what it is told, what it reports, and that it never outlives its supervisor.

A worker is started as ``python -m MODULE FD``, FD being a memory file that holds ``Boot`` as JSON (so that no
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

from lookupdb import logs
from lookupdb.errors import LookupdbError
from lookupdb.runtime.counters import Counters

if TYPE_CHECKING:
    import asyncio  # for those who have it loaded anyway

BEAT_SECONDS: Final = 1.0
"""How often a worker's event loop says that it runs (see ``liveness``)."""
MAX_REPORT_BYTES: Final = 60_000
"""A report must fit into the pipe (64 KiB) so that writing it never blocks an idle pipe's writer."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What a worker is told at its start."""

    index: int
    """Which worker this is, from 0."""
    workers: int
    config: dict[str, Any]
    """The role's own configuration: anything JSON can say."""
    sockets: tuple[int, ...]
    counter_names: tuple[str, ...]
    counters_fd: int
    alive_fd: int
    reports_fd: int
    drain_seconds: float
    log_format: str

    def to_json(self) -> bytes:
        """For the memory file."""
        return orjson.dumps(asdict(self))

    @classmethod
    def read(cls, fd: int) -> Self:
        """From the memory file ``fd``, which is closed."""
        with open(fd, "rb") as file:
            members = orjson.loads(file.read())
        for name in ("sockets", "counter_names"):
            members[name] = tuple(members[name])
        return cls(**members)

    def listeners(self) -> list[socket.socket]:
        """The inherited listening sockets, non-blocking."""
        listeners = [socket.socket(fileno=fd) for fd in self.sockets]
        for listener in listeners:
            listener.setblocking(False)
        return listeners

    def counters(self) -> Counters:
        """All workers' counters; this worker's own are ``counters().slot(index)``."""
        return Counters(self.counter_names, self.workers, fd=self.counters_fd)

    def heartbeat(self) -> Callable[[], None]:
        """What the event loop is to call every ``BEAT_SECONDS``: once begun, a worker without it is killed as hung."""
        counters, index = self.counters(), self.index
        return lambda: counters.beat(index)

    def beat_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``loop`` do so, for as long as it runs."""
        beat = self.heartbeat()

        def again() -> None:
            beat()
            loop.call_later(BEAT_SECONDS, again)

        again()

    def report(self, **members: Any) -> None:
        """Tell the supervisor something; it keeps the last value of each member and shows it in /status."""
        line = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) > MAX_REPORT_BYTES:
            raise ValueError(f"a report of {len(line)} bytes, the limit is {MAX_REPORT_BYTES}")
        os.write(self.reports_fd, line)

    def ready(self, **members: Any) -> None:
        """Tell the supervisor that this worker answers from now on."""
        self.report(state="ready", **members)


def run(main: Callable[[Boot], None]) -> None:
    """A worker module's whole ``__main__``: read what it is told, run ``main(boot)``, report why it cannot.

    ``main`` returns when it has drained after SIGTERM; until it handles SIGTERM, that ends the process.
    """
    boot = Boot.read(int(sys.argv[1]))
    die_with(boot.alive_fd)
    logs.configure_logging(boot.log_format)
    try:
        main(boot)
    except LookupdbError as error:
        boot.report(failed={"reason": error.reason, "message": error.message, "hint": error.hint})
        sys.exit(error.exit_code)


def die_with(alive_fd: int) -> None:
    """Let the kernel end this process when the other end of the pipe is closed, whatever it is busy with.

    The kernel sends SIGIO for the end of the pipe, and SIGIO's default action is to end the process.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(alive_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive_fd, fcntl.F_SETFL, fcntl.fcntl(alive_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([alive_fd], [], [], 0)[0]:
        sys.exit("the supervisor is gone")
