"""Memory of a process, as the kernel counts it."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes from /proc/PID/smaps_rollup."""

    private: int
    """Pages that no other process maps (Private_Clean, Private_Dirty)."""
    shared: int
    """Pages that other processes map too."""
    anonymous: int
    """The process's share of heap and stack (Pss_Anon). The kernel cannot drop any of it."""
    file: int
    """The process's share of mapped files (Pss_File), in the page cache, which the kernel may drop."""

    @property
    def resident(self) -> int:
        """RSS, as in `ps` and `top`."""
        return self.private + self.shared


def read_memory(pid: int | None = None) -> Memory:
    """Return the memory of process ``pid``, by default of this one. Raises OSError if it is gone."""
    lines = Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
    return Memory(
        private=fields["Private_Clean"] + fields["Private_Dirty"],
        shared=fields["Shared_Clean"] + fields["Shared_Dirty"],
        anonymous=fields["Pss_Anon"],
        file=fields["Pss_File"],
    )


def peak_resident() -> int:
    """Return the peak resident memory of this process in bytes (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def reset_peak() -> None:
    """Reset ``peak_resident`` to the current value."""
    Path("/proc/self/clear_refs").write_text("5")


def in_child(function: Callable[[], Any]) -> Any:
    """Return the result of ``function`` in a forked child, as JSON. Raises RuntimeError after the child has printed its
    error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(function, writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as stream:
            text = stream.read()
    except BaseException:  # interrupted
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    if status:
        raise RuntimeError("the child process has failed")
    return json.loads(text)


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    """Run ``function`` in the child, and exit without cleaning up what it inherited."""
    status = 1
    try:
        with os.fdopen(writer, "w") as stream:
            json.dump(function(), stream)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)
