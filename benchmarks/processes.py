"""Child processes, pinned to a core, ended by pid, with their costs. None outlives the benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import memory
from benchmarks.machine import BenchError

_STOP_SECONDS: Final = 20
_SAMPLE_SECONDS: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def pinned(words: Sequence[str], core: int | None) -> list[str]:
    """Return the command that runs ``words`` on ``core`` only (None: anywhere) and ends with this process."""
    leash = ["setpriv", "--pdeathsig", "TERM"]
    return [*leash, *(["taskset", "-c", str(core)] if core is not None else []), *words]


def free_port() -> int:
    """Return a port on which nothing listens."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def output(words: Sequence[str], timeout: float = 60) -> str:
    """Return the command's output. Raises BenchError with its errors if it fails or takes longer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{' '.join(words)} took longer than {timeout:.0f} s") from error
    if done.returncode:
        raise BenchError(f"{' '.join(words)} failed ({done.returncode}): {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Server:
    """A server that was started here. ``log`` has its output."""

    def __init__(
        self, words: Sequence[str], log: Path, *, core: int | None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.words, self.log = words, log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                pinned(words, core),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                process_group=0,  # stop() ends its workers too
            )

    @property
    def pid(self) -> int:
        """The server's own pid: setpriv and taskset exec it."""
        return self._process.pid

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait until ``condition()`` is true. Raises BenchError, with the log's end, if the server ends first."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                fate = "ended" if self._process.poll() is not None else f"has not come up in {seconds:.0f} s"
                tail = self.log.read_text(errors="replace")[-2000:]
                raise BenchError(f"{' '.join(self.words)} {fate} before {what}; {self.log} ends:\n{tail}")
            time.sleep(0.02)

    def wait_for_port(self, port: int, seconds: float = 30) -> None:
        """Wait until something listens on ``port``."""
        self.wait_for(lambda: _listens(port), f"port {port} was open", seconds)

    def pin(self, core: int) -> None:
        """Move the server, its threads and children to ``core``."""
        for pid in memory.tree(self.pid):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), {core})

    def pin_children(self, cores: Sequence[int]) -> None:
        """Move each child process, in the order of their start, to one of ``cores``."""
        children = sorted(pid for pid in memory.tree(self.pid) if pid != self.pid)
        for pid, core in zip(children, cores, strict=True):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})

    def cpu_seconds(self) -> float:
        """Return the processor time of the server and its running children."""
        return sum(_cpu_seconds(pid) for pid in memory.tree(self.pid))

    def stop(self) -> None:
        """Terminate it, and kill what is left of it and its workers."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a program's run."""

    seconds: float
    peak_bytes: int
    """Peak resident memory, summed over the program and its children; shared pages count in each."""
    output: str


def measured(words: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None) -> Cost:
    """Run a program on any core, and return its cost. Raises BenchError if it fails or takes longer."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            pinned(words, None), stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, env=environment
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(memory.resident(pid) for pid in memory.tree(process.pid)))
            if time.monotonic() - started > timeout:
                process.kill()
                process.wait()
                raise BenchError(f"{' '.join(words)} took longer than {timeout:.0f} s")
            time.sleep(_SAMPLE_SECONDS)
        seconds = time.monotonic() - started
        printed.seek(0)
        errors.seek(0)
        if process.returncode:
            raise BenchError(f"{' '.join(words)} failed ({process.returncode}): {errors.read()[-2000:]}")
        return Cost(seconds, peak, printed.read())


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
