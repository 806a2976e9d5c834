"""Run one `lookupdb` process: start it, wait until it is ready, restart it when it dies, stop it. Read its output."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.backoff import Backoff
from lookupdb.errors import LookupdbError
from lookupdb.up.run_state import NotWritten

# The environment of child processes: all variables except those meant for another command.
#
# ``LOOKUPDB_PORT`` is for the router, not for shard servers; ``LOOKUPDB_GENERATION`` is for `lookupdb get`.


_PREFIX: Final = "LOOKUPDB_"
SERVER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PASSWORD", "LOOKUPDB_PASSWORD_FILE"}
)
"""Variables that shard servers and the router get, in addition to their flags."""
BUILDER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PROGRESS", "LOOKUPDB_SCRATCH", "LOOKUPDB_THREADS"}
)
"""Variables that a build gets."""


def child_environment(keep: frozenset[str], variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``variables`` without those of lookupdb that are not in ``keep``."""
    return {name: value for name, value in variables.items() if not name.startswith(_PREFIX) or name in keep}


# A child has a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which stops its children in
# order. `up` holds a child's standard input; the child ends when that is closed (see ``cli.leash``). So no child
# outlives a killed `up`.


log = logging.getLogger(__name__)

READY_POLL_SECONDS: Final = 0.05
FIRST_BACKOFF_SECONDS: Final = 0.1
LONGEST_BACKOFF_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""A child that ran this long after it was ready restarts with the shortest delay."""
STOP_SECONDS: Final = 5.0
"""Time for a process to stop after an error in handling it. After that it is killed."""
TAIL_LINES: Final = 15


class ChildFailed(LookupdbError):
    """A child could not be started, or ended before it was ready. In the second case the message has the end of its
    log."""

    reason = "ProcessFailed"


class Child:
    """``lookupdb ARGUMENTS… --ready-file …``, with its log in ``directory``.

    ``on_ready`` is called with the content of the ready file each time the process becomes ready. ``prepare`` is called
    before each start. It provides what the process needs, returns more arguments, and raises NotWritten if it fails.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        directory: Path,
        on_ready: Callable[[dict[str, Any]], None],
        prepare: Callable[[], list[str]] = list,
    ) -> None:
        self.name = name
        self.failed_starts = 0
        """Number of consecutive starts that ended before the process was ready; 0 while it is ready."""
        self.log_path = directory / f"{name}.log"
        self._ready_path = directory / f"{name}.ready"
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "lookupdb.cli.leash",
            *arguments,
            "--ready-file",
            str(self._ready_path),
        ]
        self._on_ready = on_ready
        self._prepare = prepare
        self._kernels: str | None = None
        """The kernels of the process that was ready last."""
        self._first_ready: asyncio.Future[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if none runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises ChildFailed if it cannot start or ends before it is
        ready."""
        with suppress(OSError):  # if the log cannot be removed, it is appended to, or opening it reports why not
            self.log_path.unlink()
        self._first_ready = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._run_until_cancelled(), name=f"keep {self.name}")
        await self._first_ready

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM, then SIGKILL after ``grace_seconds``. It is no error if the process has already ended."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])  # `await` would confuse its cancellation with that of this task
        if self._process:
            await self._end(self._process, grace_seconds)

    async def _end(self, process: asyncio.subprocess.Process, grace_seconds: float) -> None:
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):  # wait_for could lose a cancellation at the same moment
                await process.wait()
        except TimeoutError:
            log.warning("%s did not stop within %.0f s: killed", self.name, grace_seconds)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def note_ready(self, report: dict[str, Any]) -> None:
        """Pass on the content of the ready file. Log a warning if the process uses other kernels than the one
        before."""
        before, self._kernels = self._kernels, report["kernels"]
        if before not in (None, self._kernels):
            log.warning("%s is back with %s kernels: before, it had %s ones", self.name, self._kernels, before)
        self._on_ready(report)

    async def _run_until_cancelled(self) -> None:
        """Run the process, and restart it whenever it ends. Only a failure of the first start is final."""
        assert self._first_ready is not None
        backoff = Backoff(FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)
        while True:
            ready_at = failure = None
            try:
                self._process = await self._start_process()
            except (OSError, NotWritten) as error:
                log.error("%s cannot be started: %s", self.name, error)  # noqa: TRY400 - the traceback says no more
                failure = self._describe_failed_start(error)
            else:
                ready_at = await self._attend(self._process)
            if not self._first_ready.done():
                self._first_ready.set_exception(
                    failure or ChildFailed(f"{self.name} ended before it was ready\n{self._tail()}")
                )
                return
            if ready_at is None:
                self.failed_starts += 1
            if ready_at and asyncio.get_running_loop().time() - ready_at > STEADY_SECONDS:
                backoff.reset()
            delay = backoff.fail()
            log.warning("%s ended; starting it again in %.1f s (log: %s)", self.name, delay, self.log_path)
            await asyncio.sleep(delay)

    async def _start_process(self) -> asyncio.subprocess.Process:
        """Start the process. Raises OSError or NotWritten; then no process runs."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it while `up` runs
        self._ready_path.unlink(missing_ok=True)
        prepared = self._prepare()
        with self.log_path.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *self._command,
                *prepared,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=child_environment(SERVER_VARIABLES),
                start_new_session=True,
            )

    async def _attend(self, process: asyncio.subprocess.Process) -> float | None:
        """Wait until ``process`` has ended. Returns the loop time at which it became ready, or None.

        After an error here, stop the process: otherwise it would run beside the next one.
        """
        assert self._first_ready is not None
        ready_at = None
        try:
            if report := await self._ready_report(process):
                self.note_ready(report)
                self.failed_starts = 0
                ready_at = asyncio.get_running_loop().time()
                if not self._first_ready.done():
                    self._first_ready.set_result(None)
            await process.wait()
        except Exception:
            log.exception("stopping %s: handling its ready file %s failed", self.name, self._ready_path)
            await self._end(process, STOP_SECONDS)
        return ready_at

    async def _ready_report(self, process: asyncio.subprocess.Process) -> dict[str, Any] | None:
        while process.returncode is None:
            with suppress(FileNotFoundError):
                report: dict[str, Any] = orjson.loads(self._ready_path.read_bytes())
                return report
            await asyncio.sleep(READY_POLL_SECONDS)
        return None

    def _describe_failed_start(self, error: OSError | NotWritten) -> ChildFailed:
        return ChildFailed(
            f"{self.name} cannot be started: {error}",
            hint=f"it must be able to start a process, and to write its log in {self.log_path.parent}",
        )

    def _tail(self) -> str:
        with suppress(OSError):
            lines = self.log_path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            return "\n".join(f"  {line}" for line in lines)
        return ""


class OutputPipe(asyncio.Protocol):
    """Keeps the last bytes that are written to a pipe.

    asyncio's own pipes end only when all processes that hold them have ended, and so does its ``Process.wait()``. A
    process that a child started may outlive it.
    """

    def __init__(self, write_end: int, limit: int) -> None:
        """``limit``: number of bytes to keep. One more is kept if there were more, to show that some are missing."""
        self.write_end = write_end
        """The file descriptor that the child writes to."""
        self._limit = limit
        self._kept = bytearray()
        self._ended = asyncio.Event()

    def close_write_end(self) -> None:
        """Close this process's copy of the write end, so that only the child has it. May be called twice."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end = -1

    def data_received(self, data: bytes) -> None:
        """Keep the end of the data received so far."""
        self._kept += data
        del self._kept[: -self._limit - 1]

    def connection_lost(self, _error: Exception | None) -> None:
        """Note that no process holds the write end any more."""
        self._ended.set()

    async def read(self, seconds: float) -> bytes:
        """Return what was written. Waits up to ``seconds`` for all processes to close the write end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return bytes(self._kept)


@asynccontextmanager
async def open_output_pipe(limit: int) -> AsyncIterator[OutputPipe]:
    """Open a pipe of which the last ``limit`` bytes are kept."""
    reading, writing = os.pipe()
    pipe = OutputPipe(writing, limit)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, os.fdopen(reading, "rb", 0))
        try:
            yield pipe
        finally:
            transport.close()
    finally:  # also if the task is cancelled while the pipe is opened
        pipe.close_write_end()
