"""Evicts a file from the page cache while a server maps it, as the kernel does when memory is short."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import memory
from benchmarks.machine import BenchError

_PROCESS_MADVISE: Final = 440
"""The system call's number, the same on every architecture; Linux 5.10 and newer."""
_PAGEOUT: Final = 21
_REMAINS: Final = 0.02
_TRIES: Final = 5

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Stretch(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def evict(file: Path, pids: Sequence[int]) -> None:
    """Evict ``file``, which only the processes ``pids`` and their descendants map. A page that two processes map stays,
    so each side's round begins by evicting what the other touched. Raises BenchError if much of the file stays."""
    for _ in range(_TRIES):
        for process in [descendant for pid in pids for descendant in memory.tree(pid)]:
            for start, end in _mappings(process, file):
                _page_out(process, start, end)
        _drop_unmapped(file)
        if memory.cached([file]) <= _REMAINS * file.stat().st_size:
            return
    raise BenchError(
        f"the kernel keeps {memory.cached([file]):,} bytes of {file} in memory: does another process map it?"
    )


def _mappings(pid: int, file: Path) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith(f" {file.resolve()}"):
            start, _, end = line.partition(" ")[0].partition("-")
            yield int(start, 16), int(end, 16)


def _page_out(pid: int, start: int, end: int) -> None:
    stretch = _Stretch(start, end - start)
    process = os.pidfd_open(pid)
    try:
        if _libc.syscall(_PROCESS_MADVISE, process, ctypes.byref(stretch), ctypes.c_size_t(1), _PAGEOUT, 0) < 0:
            problem = os.strerror(ctypes.get_errno())
            raise BenchError(f"process_madvise: {problem}; the row of cold data needs Linux 5.10 and CAP_SYS_PTRACE")
    finally:
        os.close(process)


def _drop_unmapped(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
