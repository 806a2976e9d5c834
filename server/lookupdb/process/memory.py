"""Memory figures: what a process owns, what its container may use, and what the page cache holds of a file.

Private memory is ``Pss_Anon`` and ``SwapPss`` of /proc/PID/smaps_rollup: the process's share of memory without a file,
which the kernel cannot drop. The resident set size includes the mapped shard, which all workers share and the kernel
may drop. ``Private_Dirty`` includes the shard, too, until a new file is on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KIB: Final = 1024


def private_bytes(pid: int) -> int | None:
    """Return the bytes that only process ``pid`` owns, in memory or swap; None if it is gone or unreadable."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return sum(int(fields[name].split()[0]) * _KIB for name in ("Pss_Anon", "SwapPss") if name in fields)


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What Prometheus' libraries report of a process, in seconds and bytes."""

    cpu: float
    virtual: int
    resident: int
    started: float
    """Seconds since 1970."""
    open_files: int


_TICKS: Final = os.sysconf("SC_CLK_TCK")


def process_figures(pid: int) -> ProcessFigures | None:
    """Return the figures of process ``pid``; None if it is gone or unreadable."""
    fields = _read_stat(pid)
    try:
        open_files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    if not fields:
        return None
    user, system, start, virtual, pages = (int(fields[place]) for place in (11, 12, 19, 20, 21))
    boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line[:5] == "btime")
    return ProcessFigures(
        cpu=(user + system) / _TICKS,
        virtual=virtual,
        resident=pages * mmap.PAGESIZE,
        started=boot + start / _TICKS,
        open_files=open_files,
    )


def major_faults(pid: int) -> int | None:
    """Return the page faults of process ``pid`` that waited for the disk; None if it is gone."""
    fields = _read_stat(pid)
    return int(fields[9]) if fields else None


def is_in_disk_sleep(pid: int) -> bool:
    """Return whether process ``pid`` waits for a disk, during which not even SIGKILL ends it."""
    return _read_stat(pid)[:1] == ["D"]


def _read_stat(pid: int) -> list[str]:
    """Return the fields after the command name, which may contain spaces, or none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """The figures of this process's control group in bytes, None without one."""

    limit: int | None
    anon: int | None
    """Memory of processes, which the kernel cannot drop."""
    file: int | None
    """Page cache, including the mapped shard."""


_UNLIMITED: Final = 1 << 60
"""Version 1 reports "no limit" as a number near 2**63."""


def container_memory(root: Path = Path("/")) -> ContainerMemory:
    """Return the figures of this process's control group, version 2 or 1; all None without one."""
    for directory, limit_name, anon, file in _find_memory_groups(root):
        try:
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if anon in stat:
            limits, group = [], directory
            while group != root and group.is_dir():
                with contextlib.suppress(OSError, ValueError):  # "max", or the root group, which has no limit
                    limits.append(int((group / limit_name).read_text()))
                group = group.parent
            lowest = min((limit for limit in limits if limit < _UNLIMITED), default=None)
            return ContainerMemory(lowest, int(stat[anon]), int(stat[file]))
    return ContainerMemory(None, None, None)


def _find_memory_groups(root: Path) -> list[tuple[Path, str, str, str]]:
    """Return the possible places of memory.stat, best first: (directory, limit file, anon field, file field)."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if not controllers:
            for base in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                groups.append((root / base / path.strip("/"), "memory.max", "anon", "file"))
        elif "memory" in controllers.split(","):
            # In a container, the path is the host's, and the mount point is the container's group.
            for inside in (path.strip("/"), ""):
                directory = root / "sys/fs/cgroup/memory" / inside
                groups.append((directory, "memory.limit_in_bytes", "total_rss", "total_cache"))
    return groups


def page_cache_room() -> int:
    """Return the bytes of a file that the page cache can hold, by the container's limit and the machine's memory."""
    available = next(
        int(line.split()[1]) * _KIB
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    group = container_memory()
    if group.limit is None:
        return available
    return min(available, max(0, group.limit - (group.anon or 0)))


_WINDOW: Final = 1 << 28
"""Bytes mapped at a time: limits the result vector to 64 KiB."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (*(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), *(ctypes.c_int, ctypes.c_int, ctypes.c_long))
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def resident_bytes(path: Path) -> int | None:
    """Return the bytes of the file in the page cache, or None if the kernel would not tell the truth.

    mincore works only for those that own or may write the file, and reports everything as resident to others.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if os.geteuid() not in (0, status.st_uid) and not os.access(path, os.W_OK):
            return None
        pages = sum(
            _mincore(file, start, min(_WINDOW, status.st_size - start)) for start in range(0, status.st_size, _WINDOW)
        )
        return min(pages * mmap.PAGESIZE, status.st_size)
    except OSError:
        return None
    finally:
        os.close(file)


def _mincore(file: int, start: int, length: int) -> int:
    """Return the resident pages of a part of the open file."""
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, start)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _libc.mincore(address, length, pages):
            raise OSError(ctypes.get_errno(), "mincore")
        # Only the lowest bit of each byte is defined.
        return sum(pages.raw.count(value) * (value & 1) for value in set(pages.raw))
    finally:
        _libc.munmap(address, length)
