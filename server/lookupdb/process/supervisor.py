"""The supervisor: keeps a fleet of workers running, restarts and kills them, and ends them in order.

``Restarts`` decides when a worker is started again, ``Liveness`` whether it hangs. ``WorkerProcess`` runs one worker,
``Supervisor`` the fleet. The supervisor holds no data and answers no lookup, so that no client can harm it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from lookupdb.backoff import delay_after
from lookupdb.errors import LookupdbError
from lookupdb.process import START, memory
from lookupdb.process.worker import BEAT_SECONDS, MAX_REPORT_BYTES, Counters, WorkerBoot

START_ATTEMPTS: Final = 3
"""A worker that was never ready is given up after this many attempts, because its problem will persist."""
FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 5.0
"""Seconds. A worker that was ready once is always restarted, because what killed it may pass."""
STEADY_SECONDS: Final = 30.0
"""A worker that was ready for this long has recovered: its next restart is quick again."""


@dataclass(slots=True)
class Restarts:
    """The history of one worker's starts and ends."""

    failures: int = 0
    """Number of failures in a row; a steady run resets it."""
    was_ready: bool = False
    count: int = 0

    def note_end(self, ready_seconds: float | None) -> float | None:
        """Record the end of a worker that was ready for ``ready_seconds`` (None if never in this run).

        Return the seconds until the next start, or None to give up.
        """
        self.was_ready = self.was_ready or ready_seconds is not None
        steady = ready_seconds is not None and ready_seconds >= STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        if not self.was_ready and self.failures >= START_ATTEMPTS:
            return None
        self.count += 1
        return delay_after(self.failures, FIRST_DELAY, LONGEST_DELAY)


# A worker beats every ``BEAT_SECONDS`` from its event loop. Its silence is the time for which the supervisor has
# *watched* it without a beat. Each check adds at most two intervals, however long ago the previous one was. So a paused
# container, a sleeping machine or a supervisor without CPU cannot make all workers look dead.


STALE_SECONDS: Final = 5.0
"""A worker without a beat for this long is not ready. Its longest turn, the 500 lookups of one read, takes as long on a
cold disk with 10 ms per lookup."""
HUNG_SECONDS: Final = 15.0
"""A worker without a beat for this long is killed. The limit is higher, because a worker that recovers keeps its
clients' connections."""
START_SECONDS: Final = 120.0
"""Time until the first beat, in which the worker imports modules and opens its file."""


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """Limits of silence. Only tests use others, because they cannot wait that long."""

    stale_seconds: float = STALE_SECONDS
    hung_seconds: float = HUNG_SECONDS
    start_seconds: float = START_SECONDS


class LivenessVerdict(enum.Enum):
    """The verdict on one worker."""

    ALIVE = enum.auto()
    STALE = enum.auto()
    HUNG = enum.auto()


@dataclass(slots=True)
class Liveness:
    """The heartbeat of one process of a worker. ``beats`` is the counter when the process started."""

    beats: int
    judged_at: float
    limits: LivenessLimits = field(default_factory=LivenessLimits)
    has_begun: bool = False
    """True if it has sent a heartbeat or reported that it is ready."""
    silence: float = 0.0
    """Seconds watched without a beat."""

    def begin(self) -> None:
        """Expect heartbeats from now on, because the worker is ready."""
        self.has_begun, self.silence = True, 0.0

    def judge(self, now: float, beats: int, *, waits_for_disk: bool = False) -> LivenessVerdict:
        """Return the verdict at time ``now`` with the counter at ``beats``.

        A worker that waits for the disk is not ready, but it is not killed, because the next one would wait, too.
        """
        self.silence += min(now - self.judged_at, 2 * BEAT_SECONDS)
        self.judged_at = now
        if beats != self.beats:
            self.beats, self.has_begun, self.silence = beats, True, 0.0
        if not self.has_begun:
            return LivenessVerdict.HUNG if self.silence >= self.limits.start_seconds else LivenessVerdict.ALIVE
        if waits_for_disk:
            self.silence = min(self.silence, self.limits.stale_seconds)
        if self.silence >= self.limits.hung_seconds:
            return LivenessVerdict.HUNG
        return LivenessVerdict.STALE if self.silence >= self.limits.stale_seconds else LivenessVerdict.ALIVE


log = logging.getLogger(__name__)


class WorkerState(enum.StrEnum):
    """The state of a worker, and of a whole service."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STALLED = "stalled"
    """It was ready, but its event loop no longer runs."""
    STOPPED = "stopped"
    """It has ended, and may be restarted."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of one service: module, configuration, and what they inherit."""

    module: str
    """The module whose ``start()`` calls ``run_worker``."""
    configs: Sequence[Mapping[str, Any]]
    """One configuration per worker, as JSON."""
    sockets: Sequence[Sequence[socket.socket]]
    counters: Counters
    drain_seconds: float
    """Seconds for which a worker keeps serving after SIGTERM, before it finishes and closes."""
    log_format: str = "text"
    environment: Mapping[str, str] = field(default_factory=dict)
    liveness: LivenessLimits = field(default_factory=LivenessLimits)


def reported_error(report: Mapping[str, Any]) -> str:
    """Return what keeps a worker from being ready, or what ended it, according to ``report``; empty for nothing."""
    failure = report.get("failed")
    return str(failure["message"] if failure else report.get("error") or "")


class WorkerProcess:
    """A worker's process, which may be started many times. ``run_once`` starts it, and returns when it has ended."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.fleet = fleet
        self.index = index
        self.state = WorkerState.STOPPED
        self.pid: int | None = None
        self.restarts = Restarts()
        self.kills = 0
        self.report: dict[str, Any] = {}
        """The last value of every member that the running process reported."""
        self.ready = asyncio.Event()
        """Set once it has been ready for the first time."""
        self._liveness: Liveness | None = None
        self._faults: int | None = None
        """Major page faults at the last check."""
        self._is_draining = False

    async def run_once(self) -> tuple[int, float | None]:
        """Start the process and wait until it ends. Return its exit status, and the seconds that it was ready, or
        None."""
        fleet = self.fleet
        self.report, self.state = {}, WorkerState.STARTING
        with contextlib.ExitStack() as resources:
            process, reports = await self._start(resources)
            self.pid = process.pid
            self._liveness = Liveness(fleet.counters.beats(self.index), time.monotonic(), fleet.liveness)
            if self._is_draining:
                self.drain()
            try:
                ready_at = await self._follow(reports)
                status = await process.wait()
            finally:
                self.pid = self._liveness = None
                self.state = WorkerState.STOPPED
        return status, None if ready_at is None else time.monotonic() - ready_at

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def check(self, now: float) -> None:
        """Check the heartbeat once a second. Without one the process is not ready, and is killed after a while."""
        if self.pid is None or self._liveness is None or self._is_draining:
            return
        beats = self.fleet.counters.beats(self.index)
        # Does it wait for the disk, or has it since the last check?
        previous, self._faults = self._faults, memory.major_faults(self.pid)
        waits_for_disk = self._faults != previous or memory.is_in_disk_sleep(self.pid)
        match self._liveness.judge(now, beats, waits_for_disk=waits_for_disk):
            case LivenessVerdict.ALIVE if self.state is WorkerState.STALLED:
                self.state = WorkerState.READY
            case LivenessVerdict.STALE if self.state is WorkerState.READY:
                self.state = WorkerState.STALLED
                log.warning("worker not ready: no heartbeat", extra={"worker": self.index, "pid": self.pid})
            case LivenessVerdict.HUNG:
                log.error("worker killed: no heartbeat", extra={"worker": self.index, "pid": self.pid})
                self.kills += 1
                self.send(signal.SIGKILL)
                self._liveness = None

    def drain(self) -> None:
        """Make the process drain and end."""
        self._is_draining = True
        if self.pid is not None:
            self.state = WorkerState.DRAINING
            self.send(signal.SIGTERM)

    def failure(self, status: int) -> LookupdbError:
        """Return why the process could not start: its reported error, or how it ended."""
        failure = self.report.get("failed")
        if failure:
            kinds: list[type[LookupdbError]] = [LookupdbError]
            for kind in kinds:
                kinds += kind.__subclasses__()
            kind = next((kind for kind in kinds if kind.reason == failure["reason"]), LookupdbError)
            return kind(failure["message"], hint=failure["hint"])
        ending = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return LookupdbError(
            f"worker {self.index} ({self.fleet.module}) {ending} before it was ready",
            hint="see what it wrote to standard error",
        )

    def describe(self) -> dict[str, Any]:
        """Return the worker's part of /status."""
        return {
            "index": self.index,
            "pid": self.pid,
            "state": self.state,
            "restarts": self.restarts.count,
            "report": self.report,
        }

    async def _start(self, resources: contextlib.ExitStack) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        """Start the process. Return the process and a reader of its reports."""
        fleet = self.fleet
        read_fd, reports_fd = os.pipe()
        reader = asyncio.StreamReader(limit=2 * MAX_REPORT_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
        )
        resources.callback(transport.close)
        alive_fd, lifeline_fd = os.pipe()
        resources.callback(os.close, lifeline_fd)
        boot_fd = os.memfd_create("lookupdb-boot")
        inherited = (boot_fd, alive_fd, reports_fd)
        boot = WorkerBoot(
            index=self.index,
            workers=len(fleet.configs),
            config=dict(fleet.configs[self.index]),
            sockets=tuple(listener.fileno() for listener in fleet.sockets[self.index]),
            counter_names=fleet.counters.names,
            counter_blocks=fleet.counters.blocks,
            counters_fd=fleet.counters.fd,
            alive_fd=alive_fd,
            reports_fd=reports_fd,
            drain_seconds=fleet.drain_seconds,
            log_format=fleet.log_format,
        )
        os.pwrite(boot_fd, boot.to_json(), 0)
        try:
            process = await asyncio.create_subprocess_exec(
                *(*START, fleet.module, str(boot_fd)),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **fleet.environment},
                pass_fds=(*inherited, boot.counters_fd, *boot.sockets),
                process_group=0,  # the supervisor handles Ctrl-C
            )
        finally:
            for fd in inherited:
                os.close(fd)
        return process, reader

    async def _follow(self, reports: asyncio.StreamReader) -> float | None:
        """Read reports until the process closes the pipe, or ends. Return the time at which it became ready."""
        ready_at: float | None = None
        while (line := await reports.readline()).endswith(b"\n"):
            members = orjson.loads(line)
            if members.pop("state", None) == "ready" and self.state is WorkerState.STARTING:
                self.state = WorkerState.READY
                ready_at = time.monotonic()
                if self._liveness:
                    self._liveness.begin()
                self.ready.set()
            self.report.update(members)
        return ready_at


STOP_SECONDS: Final = 5.0
"""Time for a worker to finish after its drain time; then it is killed."""


class Supervisor:
    """Runs ``fleet``: ``run()`` until ``drain()``. Make and use it within one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.workers = [WorkerProcess(fleet, index) for index in range(len(fleet.configs))]
        self._draining = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def state(self) -> WorkerState:
        """READY if every worker is; DRAINING from the first ``drain`` on."""
        if self._draining.is_set():
            return WorkerState.DRAINING
        ready = all(worker.state is WorkerState.READY for worker in self.workers)
        return WorkerState.READY if ready else WorkerState.STARTING

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of running workers by name: ``worker-0``, …"""
        return {f"worker-{worker.index}": worker.pid for worker in self.workers if worker.pid}

    async def wait_ready(self) -> None:
        """Return when every worker has been ready once."""
        for worker in self.workers:
            await worker.ready.wait()

    async def run(self) -> None:
        """Keep all workers running until drained. Raises a worker's error if it cannot be started."""
        tasks = [asyncio.create_task(self._keep(worker)) for worker in self.workers]
        checks = asyncio.create_task(self._check())
        try:
            await asyncio.gather(*tasks)
        finally:
            checks.cancel()
            self.kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._deadline:
                self._deadline.cancel()

    def drain(self) -> None:
        """End the fleet: the first call lets the workers finish, the second kills them."""
        if self._draining.is_set():
            self.kill("second request to stop")
            return
        self._draining.set()
        log.info("draining", extra={"seconds": self.fleet.drain_seconds})
        for worker in self.workers:
            worker.drain()
        seconds = self.fleet.drain_seconds + STOP_SECONDS
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.kill, "the drain time is over")

    def kill(self, reason: str | None = None) -> None:
        """End all workers at once. Log the ``reason``, if there is one."""
        if reason:
            log.warning("%s: killing the remaining workers", reason, extra={"pids": self.pids})
        for worker in self.workers:
            worker.send(signal.SIGKILL)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for worker in self.workers:
                worker.check(time.monotonic())

    async def _keep(self, worker: WorkerProcess) -> None:
        """Restart ``worker`` whenever it ends, until the fleet drains."""
        while not self._draining.is_set():
            status, ready_seconds = await worker.run_once()
            if self._draining.is_set():
                return
            delay = worker.restarts.note_end(ready_seconds)
            if delay is None:
                raise worker.failure(status)
            log.warning(
                "worker ended: restarting it",
                extra={
                    "worker": worker.index,
                    "status": status,
                    "delay": round(delay, 2),
                    **({"reason": reason} if (reason := reported_error(worker.report)) else {}),
                },
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), delay)
