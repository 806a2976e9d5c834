"""A worker as its supervisor sees it: its process, its state, its last report."""

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
from lookupdb.runtime.liveness import Liveness, LivenessLimits, LivenessVerdict
from lookupdb.runtime.restarts import Restarts
from lookupdb.runtime.worker import MAX_REPORT_BYTES, WorkerBoot

log = logging.getLogger(__name__)


class WorkerState(enum.StrEnum):
    """The state of a worker, and of a whole service."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STALLED = "stalled"
    """It was ready, and its event loop no longer runs."""
    STOPPED = "stopped"
    """It has ended, and may be started again."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of one service: their module, their configuration, what they inherit."""

    module: str
    """Its ``start()`` calls ``run_worker``."""
    configs: Sequence[Mapping[str, Any]]
    """One for each worker: any JSON."""
    sockets: Sequence[Sequence[socket.socket]]
    """One list for each worker, in the order in which the worker finds them."""
    counters: Counters
    drain_seconds: float
    """How long a worker goes on serving after SIGTERM, before it finishes and closes."""
    log_format: str = "text"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    forward_hangup: bool = False
    """Pass SIGHUP on to the workers."""
    liveness: LivenessLimits = field(default_factory=LivenessLimits)


def reported_error(report: Mapping[str, Any]) -> str:
    """What keeps a worker from being ready, or has ended it, by its ``report``; empty for nothing."""
    failure = report.get("failed")
    return str(failure["message"] if failure else report.get("error") or "")


class WorkerProcess:
    """A worker's process, which may be started many times: ``run_once`` starts it and returns when it has ended."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.fleet = fleet
        self.index = index
        self.state = WorkerState.STOPPED
        self.pid: int | None = None
        self.restarts = Restarts()
        self.kills = 0
        """How often it was killed because it hung."""
        self.report: dict[str, Any] = {}
        """The last value of every member that the running process reported."""
        self.ready = asyncio.Event()
        """Set once it has been ready for the first time."""
        self._ready_at: float | None = None
        self._kernels: str | None = None
        """Those of the process that was ready last."""
        self._liveness: Liveness | None = None
        self._faults: int | None = None
        """Major page faults at the last check."""
        self._is_draining = False

    async def run_once(self) -> tuple[int, float | None]:
        """Start the process and wait until it ends. Returns its exit status, and the seconds it was ready or None."""
        fleet = self.fleet
        self.report, self._ready_at, self.state = {}, None, WorkerState.STARTING
        with contextlib.ExitStack() as resources:
            reports = await self._reports(resources)
            process = await self._start(resources)
            self.pid = process.pid
            self._liveness = Liveness(fleet.counters.beats(self.index), time.monotonic(), fleet.liveness)
            if self._is_draining:
                self.drain()
            try:
                await self._follow(reports)
                status = await process.wait()
            finally:
                self.pid = self._liveness = None
                self.state = WorkerState.STOPPED
        return status, self._ready_seconds()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def check(self, now: float) -> None:
        """Check its heartbeat, once a second: a process without one is not ready, and after a while it is killed."""
        if self.pid is None or self._liveness is None or self._is_draining:
            return
        beats = self.fleet.counters.beats(self.index)
        match self._liveness.judge(now, beats, waits_for_disk=self._waits_for_disk(self.pid)):
            case LivenessVerdict.ALIVE if self.state is WorkerState.STALLED:
                self.state = WorkerState.READY
            case LivenessVerdict.STALE if self.state is WorkerState.READY:
                self.state = WorkerState.STALLED
                log.warning("a worker does not answer: it is not ready", extra={"worker": self.index, "pid": self.pid})
            case LivenessVerdict.HUNG:
                log.error("a worker hangs: it is killed", extra={"worker": self.index, "pid": self.pid})
                self.kills += 1
                self.send(signal.SIGKILL)
                self._liveness = None

    def _waits_for_disk(self, pid: int) -> bool:
        """Return whether it waits for the disk now, or has since the last check."""
        previous, self._faults = self._faults, memory.major_faults(pid)
        return self._faults != previous or memory.is_in_disk_sleep(pid)

    def drain(self) -> None:
        """Tell the process to drain and end."""
        self._is_draining = True
        if self.pid is not None:
            self.state = WorkerState.DRAINING
            self.send(signal.SIGTERM)

    def failure(self, status: int) -> LookupdbError:
        """Return why it could not start: the error that it reported, or how it ended."""
        failure = self.report.get("failed")
        if failure:
            return _error_class(failure["reason"])(failure["message"], hint=failure["hint"])
        ending = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return LookupdbError(
            f"worker {self.index} ({self.fleet.module}) {ending} before it was ready",
            hint="what it wrote to standard error tells more",
        )

    def describe(self) -> dict[str, Any]:
        """Return its part of /status."""
        return {
            "index": self.index,
            "pid": self.pid,
            "state": self.state,
            "restarts": self.restarts.count,
            "report": self.report,
        }

    def _ready_seconds(self) -> float | None:
        return None if self._ready_at is None else time.monotonic() - self._ready_at

    async def _reports(self, resources: contextlib.ExitStack) -> asyncio.StreamReader:
        """Return a reader of what the process will report; ``self._reports_fd`` is the process's end."""
        read_fd, self._reports_fd = os.pipe()
        reader = asyncio.StreamReader(limit=2 * MAX_REPORT_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
        )
        resources.callback(transport.close)
        return reader

    async def _start(self, resources: contextlib.ExitStack) -> asyncio.subprocess.Process:
        alive_fd, lifeline_fd = os.pipe()
        resources.callback(os.close, lifeline_fd)
        boot_fd = os.memfd_create("lookupdb-boot")
        inherited = (boot_fd, alive_fd, self._reports_fd)
        boot = self._boot(alive_fd)
        os.pwrite(boot_fd, boot.to_json(), 0)
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "lookupdb.runtime.start", self.fleet.module, str(boot_fd)),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **self.fleet.environment},
                pass_fds=(*inherited, boot.counters_fd, *boot.sockets),
                process_group=0,  # the supervisor handles Ctrl-C
            )
        finally:
            for fd in inherited:
                os.close(fd)

    def _boot(self, alive_fd: int) -> WorkerBoot:
        fleet = self.fleet
        return WorkerBoot(
            index=self.index,
            workers=len(fleet.configs),
            config=dict(fleet.configs[self.index]),
            sockets=tuple(listener.fileno() for listener in fleet.sockets[self.index]),
            counter_names=fleet.counters.names,
            counters_fd=fleet.counters.fd,
            alive_fd=alive_fd,
            reports_fd=self._reports_fd,
            drain_seconds=fleet.drain_seconds,
            log_format=fleet.log_format,
        )

    async def _follow(self, reports: asyncio.StreamReader) -> None:
        """Read reports until the process closes the pipe, or ends."""
        while (line := await reports.readline()).endswith(b"\n"):
            members = orjson.loads(line)
            if members.pop("state", None) == "ready" and self.state is WorkerState.STARTING:
                self.state = WorkerState.READY
                self._ready_at = time.monotonic()
                if self._liveness:
                    self._liveness.begin()
                self.ready.set()
                self._compare_kernels(members["kernels"])
            self.report.update(members)

    def _compare_kernels(self, kernels: str) -> None:
        """Say that the process answers by other kernels than the one before, at another cost: what is installed has
        changed meanwhile.
        """
        before, self._kernels = self._kernels, kernels
        if before not in (None, kernels):
            log.warning(
                "a worker is back with other kernels than before",
                extra={"worker": self.index, "before": before, "kernels": kernels},
            )


def _error_class(reason: str) -> type[LookupdbError]:
    found: type[LookupdbError] = LookupdbError
    candidates: list[type[LookupdbError]] = [LookupdbError]
    while candidates:
        kind = candidates.pop()
        found = kind if kind.reason == reason else found
        candidates += kind.__subclasses__()
    return found
