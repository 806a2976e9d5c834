"""Memory as the kernel counts it: of processes (from /proc), and of files in the page cache."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MAPPING: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's memory, in bytes."""

    private: int
    """Pages that no other process maps, clean or dirty, except a shard file's: the page cache keeps those once for all
    processes, and can reclaim them."""
    anonymous: int
    """Heap and stacks, which cannot be reclaimed. A part of ``private``."""
    shard: int
    """Mapped and touched pages of shard files."""


def of(pid: int) -> Memory:
    """Return the current memory of process ``pid``."""
    private = anonymous = shard = 0
    in_shard = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if _MAPPING.match(line):
            in_shard = line.endswith(".lmdb")
            continue
        name, _, rest = line.partition(":")
        if in_shard and name == "Rss":
            shard += _bytes(rest)
        elif not in_shard and name in ("Private_Clean", "Private_Dirty"):
            private += _bytes(rest)
        elif not in_shard and name == "Anonymous":
            anonymous += _bytes(rest)
    return Memory(private, anonymous, shard)


def resident(pid: int) -> int:
    """Return the resident bytes of process ``pid``, 0 after its end."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """Return the proportional bytes of process ``pid``: a shared page counts in parts, so that sums are right."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(_bytes(line.partition(":")[2]) for line in lines if line.startswith("Pss:"))


def tree(pid: int) -> Iterator[int]:
    """Return ``pid`` and its running descendants."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def cached(files: Iterable[Path]) -> int:
    """Return the bytes of ``files`` in the page cache."""
    words = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    return sum(map(int, subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()))


def _bytes(kilobytes: str) -> int:
    return int(kilobytes.split()[0]) * 1024
