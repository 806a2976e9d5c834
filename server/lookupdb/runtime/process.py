"""One worker as its supervisor sees it: its process, its state, its last report."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.runtime import memory
from lookupdb.runtime.counters import Counters
from lookupdb.runtime.liveness import Liveness, LivenessLimits, Verdict
from lookupdb.runtime.restarts import Restarts
from lookupdb.runtime.worker import MAX_REPORT_BYTES, Boot

log = logging.getLogger(__name__)


class State(enum.StrEnum):
    """Of a worker, and of a whole service."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STALLED = "stalled"
    """It was ready, and its event loop does not run any more."""
    STOPPED = "stopped"
    """Ended, and waiting to be started again or not."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of one service: what they run, what they are told, what they inherit."""

    module: str
    """Run by ``python -m``; its ``__main__`` calls ``worker.run``."""
    configs: Sequence[Mapping[str, Any]]
    """One a worker: anything JSON can say."""
    sockets: Sequence[Sequence[socket.socket]]
    """One list a worker, in the order in which the worker finds them."""
    counters: Counters
    drain_seconds: float
    """How long a worker goes on serving after SIGTERM, before it finishes and closes."""
    log_format: str = "text"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    forward_hangup: bool = False
    """Pass SIGHUP on to the workers."""
    liveness: LivenessLimits = field(default_factory=LivenessLimits)


class Worker:
    """One worker's process, again and again: ``run_once`` starts it and returns when it has ended."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.fleet = fleet
        self.index = index
        self.state = State.STOPPED
        self.pid: int | None = None
        self.restarts = Restarts()
        self.kills = 0
        """How often it was killed because it hung."""
        self.report: dict[str, Any] = {}
        """The last value of every member the running process reported."""
        self.ready = asyncio.Event()
        """Set once it has been ready for the first time."""
        self._ready_at: float | None = None
        self._liveness: Liveness | None = None
        self._faults: int | None = None
        """Major page faults at the last look."""
        self._draining = False

    async def run_once(self) -> tuple[int, float | None]:
        """Start the process and wait until it ends: (exit status, seconds it was ready or None)."""
        fleet = self.fleet
        self.report, self._ready_at, self.state = {}, None, State.STARTING
        with contextlib.ExitStack() as held:
            reports = await self._reports(held)
            process = await self._start(held)
            self.pid = process.pid
            self._liveness = Liveness(fleet.counters.beats(self.index), time.monotonic(), fleet.liveness)
            if self._draining:
                self.drain()
            try:
                await self._follow(reports)
                status = await process.wait()
            finally:
                self.pid = self._liveness = None
                self.state = State.STOPPED
        return status, self._ready_seconds()

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if there is one."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def check(self, now: float) -> None:
        """Look for its heartbeat: a process without one is not ready, and after a while it is killed. Once a second."""
        if self.pid is None or self._liveness is None or self._draining:
            return
        beats = self.fleet.counters.beats(self.index)
        match self._liveness.look(now, beats, waits_for_disk=self._waits_for_disk(self.pid)):
            case Verdict.ALIVE if self.state is State.STALLED:
                self.state = State.READY
            case Verdict.STALE if self.state is State.READY:
                self.state = State.STALLED
                log.warning("a worker does not answer: it is not ready", extra={"worker": self.index, "pid": self.pid})
            case Verdict.HUNG:
                log.error("a worker hangs: it is killed", extra={"worker": self.index, "pid": self.pid})
                self.kills += 1
                self.send(signal.SIGKILL)
                self._liveness = None

    def _waits_for_disk(self, pid: int) -> bool:
        """Whether it waits for the disk now, or has since the last look."""
        before, self._faults = self._faults, memory.major_faults(pid)
        return self._faults != before or memory.is_in_disk_sleep(pid)

    def drain(self) -> None:
        """Tell the process to drain and end."""
        self._draining = True
        if self.pid is not None:
            self.state = State.DRAINING
            self.send(signal.SIGTERM)

    def failure(self, status: int) -> LookupdbError:
        """Why it could not start, in its own words if it left any."""
        told = self.report.get("failed")
        if told:
            return _error_class(told["reason"])(told["message"], hint=told["hint"])
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return LookupdbError(
            f"worker {self.index} ({self.fleet.module}) {how} before it was ready",
            hint="what it wrote to standard error tells more",
        )

    def describe(self) -> dict[str, Any]:
        """For /status."""
        return {
            "index": self.index,
            "pid": self.pid,
            "state": self.state,
            "restarts": self.restarts.count,
            "report": self.report,
        }

    def _ready_seconds(self) -> float | None:
        return None if self._ready_at is None else time.monotonic() - self._ready_at

    async def _reports(self, held: contextlib.ExitStack) -> asyncio.StreamReader:
        """A reader of what the process will report; ``self._reports_fd`` is the process's end."""
        ours, self._reports_fd = os.pipe()
        reader = asyncio.StreamReader(limit=2 * MAX_REPORT_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0)
        )
        held.callback(transport.close)
        return reader

    async def _start(self, held: contextlib.ExitStack) -> asyncio.subprocess.Process:
        alive, lifeline = os.pipe()
        held.callback(os.close, lifeline)
        boot_fd = os.memfd_create("lookupdb-boot")
        inherited = (boot_fd, alive, self._reports_fd)
        boot = self._boot(alive)
        os.pwrite(boot_fd, boot.to_json(), 0)
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self.fleet.module, str(boot_fd)),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **self.fleet.environment},
                pass_fds=(*inherited, boot.counters_fd, *boot.sockets),
                process_group=0,  # Ctrl-C is the supervisor's to handle
            )
        finally:
            for fd in inherited:
                os.close(fd)

    def _boot(self, alive: int) -> Boot:
        fleet = self.fleet
        return Boot(
            index=self.index,
            workers=len(fleet.configs),
            config=dict(fleet.configs[self.index]),
            sockets=tuple(listener.fileno() for listener in fleet.sockets[self.index]),
            counter_names=fleet.counters.names,
            counters_fd=fleet.counters.fd,
            alive_fd=alive,
            reports_fd=self._reports_fd,
            drain_seconds=fleet.drain_seconds,
            log_format=fleet.log_format,
        )

    async def _follow(self, reports: asyncio.StreamReader) -> None:
        """Take in reports until the process closes the pipe, which its end does at the latest."""
        while (line := await reports.readline()).endswith(b"\n"):
            members = orjson.loads(line)
            if members.pop("state", None) == "ready" and self.state is State.STARTING:
                self.state = State.READY
                self._ready_at = time.monotonic()
                if self._liveness:
                    self._liveness.begin()
                self.ready.set()
            self.report.update(members)


def _error_class(reason: str) -> type[LookupdbError]:
    found: type[LookupdbError] = LookupdbError
    look: list[type[LookupdbError]] = [LookupdbError]
    while look:
        kind = look.pop()
        found = kind if kind.reason == reason else found
        look += kind.__subclasses__()
    return found
