"""One `lookupdb` process of a pod: a server that is restarted when it dies, or a build that ends.

A process has a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which stops its processes in
order. `up` holds its standard input; the process ends when that is closed (see ``cli.leash``). So none outlives `up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.backoff import Backoff
from lookupdb_operator import names

log = logging.getLogger(__name__)

_PREFIX: Final = "LOOKUPDB_"
SERVER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PASSWORD", "LOOKUPDB_PASSWORD_FILE"}
)
"""The variables of lookupdb that shard servers and routers get. LOOKUPDB_PORT, for example, is not for shards."""
BUILDER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PROGRESS", "LOOKUPDB_SCRATCH", "LOOKUPDB_THREADS"}
)
"""Variables of lookupdb that a build gets."""

_READY_POLL_SECONDS: Final = 0.02
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 10.0
_STEADY_SECONDS: Final = 30.0
"""A server that ran this long restarts with the shortest delay."""
STOP_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 5.0
"""Longest time for which a starting server keeps others waiting. A router may take longer to be ready."""
_TAIL_LINES: Final = 15
_MAX_LOG_BYTES: Final = 1 << 20
"""A server that starts with a larger log begins a new one."""
SIGNALLED: Final = 128
"""Added to a signal's number to make the exit code of a process that it ended, as in a shell."""


def child_environment(keep: frozenset[str], variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``variables`` without those of lookupdb that are not in ``keep``."""
    return {name: value for name, value in variables.items() if not name.startswith(_PREFIX) or name in keep}


def renew_build_log(folder: Path, generation: str) -> Path:
    """Return an empty file in a dataset's run ``folder`` for the log of the build of ``generation``. The log of the
    build before stays. Raises OSError."""
    for _, old in list_build_logs(folder)[:-1]:
        old.unlink(missing_ok=True)
    path = folder / f"build-{generation}.log"
    path.write_bytes(b"")
    return path


def note_build_end(log_file: Path, report: str) -> None:
    """Write the message of a builder's ``report`` to the end of its log. Raises OSError."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        message = orjson.loads(report)["message"]
        with log_file.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


def list_build_logs(folder: Path) -> list[tuple[str, Path]]:
    """Return generations and the logs of their builds, oldest first."""
    logs = [(path.stem.partition("-")[2], path) for path in folder.glob("build-g*.log")]
    return sorted(logs, key=lambda found: names.read_number(found[0]))


async def start(
    arguments: list[str], variables: frozenset[str], output: Path | None, more: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start ``lookupdb ARGUMENTS…`` on a leash. Its output goes to the end of the file ``output``; if that is None,
    messages go to standard error, and results nowhere. ``more`` are variables besides its own. Raises OSError."""
    with contextlib.ExitStack() as stack:
        log_file = None if output is None else stack.enter_context(output.open("ab"))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "lookupdb.cli.leash",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL if log_file is None else log_file,
            stderr=log_file,
            env={**child_environment(variables), **(more or {})},
            start_new_session=True,
        )


async def end(process: asyncio.subprocess.Process, number: signal.Signals, grace_seconds: float) -> None:
    """Send signal ``number``, then SIGKILL after ``grace_seconds``. No error if the process has ended."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        async with asyncio.timeout(grace_seconds):  # wait_for could lose a cancellation at the same moment
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class LocalServer:
    """``lookupdb ARGUMENTS… --ready-file …``, restarted whenever it ends, until ``stop``.

    ``on_ready`` is called with what the ready file says, ``on_end`` with the exit code, and the log's end or a signal.
    """

    def __init__(
        self,
        arguments: list[str],
        place: Path,
        on_ready: Callable[[dict[str, Any]], None],
        on_end: Callable[[int, str], None],
        starts: asyncio.Semaphore,
    ) -> None:
        """``place``: the path of its log and ready file, without their endings. ``starts`` limits the number of servers
        that start at the same time."""
        self.arguments = arguments
        self.log_path = place.with_name(f"{place.name}.log")
        self._ready_path = place.with_name(f"{place.name}.ready")
        self._on_ready = on_ready
        self._on_end = on_end
        self._starts = starts
        self._process: asyncio.subprocess.Process | None = None
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {place.name}")

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if none runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Stop the process, and restart it no more."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])  # `await` would confuse its cancellation with that of this task
        if self._process:
            await end(self._process, signal.SIGTERM, grace_seconds)
        with contextlib.suppress(OSError):
            self._ready_path.unlink(missing_ok=True)

    async def _keep(self) -> None:
        backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._run()
            except OSError as error:
                log.error("%s cannot be started: %s", self._ready_path.stem, error)  # noqa: TRY400 - no more to say
                self._on_end(SIGNALLED - 1, str(error))
            if clock() - began > _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.fail())

    async def _run(self) -> None:
        """Run the process once. Raises OSError if it cannot be started."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        self._ready_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > _MAX_LOG_BYTES:
                self.log_path.unlink()
        words = [*self.arguments, "--ready-file", str(self._ready_path)]
        report = None
        async with self._starts:
            process = self._process = await start(words, SERVER_VARIABLES, self.log_path)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN_SECONDS):
                    report = await self._read_report(process)
                    if report is not None:
                        self._on_ready(report)
        if report is None and (report := await self._read_report(process)):
            self._on_ready(report)
        await process.wait()
        code = process.returncode or 0
        log.warning("%s ended; it is started again (log: %s)", self._ready_path.stem, self.log_path)
        tail = f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else self._read_tail()
        self._on_end(SIGNALLED - code if code < 0 else code, tail)

    async def _read_report(self, process: asyncio.subprocess.Process) -> dict[str, Any] | None:
        while process.returncode is None:
            with contextlib.suppress(FileNotFoundError):
                report: dict[str, Any] = orjson.loads(self._ready_path.read_bytes())
                return report
            await asyncio.sleep(_READY_POLL_SECONDS)
        return None

    def _read_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return ""
