"""Memory figures: what a process really owns, and what its container may use.

Private memory is ``Pss_Anon`` and ``SwapPss`` of /proc/PID/smaps_rollup: the process's share of memory that no file
backs, so that the kernel cannot drop it. Resident set size would count the mapped shard, which all workers share and
the kernel may take back at any time; even ``Private_Dirty`` would, while a file just built is not yet on disk.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KIB: Final = 1024
_M_MMAP_THRESHOLD: Final = -3
"""Of mallopt: larger blocks are mapped by themselves."""


def private_bytes(pid: int) -> int | None:
    """Return the bytes that only process ``pid`` owns, in memory or swap. None when it is gone or may not be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return sum(int(fields[name].split()[0]) * _KIB for name in ("Pss_Anon", "SwapPss") if name in fields)


def major_faults(pid: int) -> int | None:
    """Return the page faults of process ``pid`` that had to wait for the disk. None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, in parentheses, may hold spaces: count the fields behind it.
    return int(text.rpartition(")")[2].split()[9])


def is_in_disk_sleep(pid: int) -> bool:
    """Return whether process ``pid`` waits for a disk now: not even SIGKILL ends it before the disk answers."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    except OSError:
        return False


def peak_resident() -> int:
    """Return the most bytes that this process had resident since its program began.

    VmHWM, because getrusage would also count what its parent had before the program was executed.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmHWM:"))


def return_large_blocks() -> None:
    """Give memory back to the system when a block of 1 MiB or more is freed.

    glibc keeps such blocks, of up to 32 MiB, once the first was freed; what several threads free side by side came to
    100 MiB in a build of values of 11 MB.
    """
    import ctypes  # by a build alone: it is no part of a worker's memory

    with contextlib.suppress(AttributeError):  # another C library has no such setting
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """The figures of this process's control group, in bytes; None where it has none."""

    limit: int | None
    anon: int | None
    """Memory of processes: cannot be dropped."""
    file: int | None
    """Page cache: the mapped shard is here."""


_UNLIMITED: Final = 1 << 60
"""Version 1 says "no limit" by a number near 2**63."""


def container_memory(root: Path = Path("/")) -> ContainerMemory:
    """Return the figures of this process's control group, version 2 or 1; all None outside of any."""
    for directory, limit_name, anon, file in _find_memory_groups(root):
        try:
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if anon in stat:
            limit = _lowest_limit(directory, limit_name, root)
            return ContainerMemory(limit, int(stat[anon]), int(stat[file]))
    return ContainerMemory(None, None, None)


def _find_memory_groups(root: Path) -> list[tuple[Path, str, str, str]]:
    """Return where this process's memory.stat may be, best first: (directory, limit file, anon field, file field)."""
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
            # Inside a container the path is the host's, and the mount point itself is the container's group.
            for inside in (path.strip("/"), ""):
                directory = root / "sys/fs/cgroup/memory" / inside
                groups.append((directory, "memory.limit_in_bytes", "total_rss", "total_cache"))
    return groups


def _lowest_limit(directory: Path, name: str, root: Path) -> int | None:
    """Return the lowest limit from ``directory`` upwards."""
    limits = []
    while directory != root and (directory / name).parent.is_dir():
        with contextlib.suppress(OSError, ValueError):  # "max", or the root group, which has no limit
            limits.append(int((directory / name).read_text()))
        directory = directory.parent
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def page_cache_room() -> int:
    """Return how many bytes of a file the page cache can hold: the container's limit and the machine's memory say."""
    available = next(
        int(line.split()[1]) * _KIB
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    group = container_memory()
    if group.limit is None:
        return available
    return min(available, max(0, group.limit - (group.anon or 0)))
