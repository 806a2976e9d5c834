"""Read /proc for processes, by their pid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether the process runs. One that has ended and is not reaped does not run: nobody reaps it if its parent
    is gone and the machine's first process reaps nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """The processes that the main thread of ``pid`` has started and that run."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [child for child in map(int, listed) if is_running(child)]


def descendants(pid: int) -> Iterator[int]:
    """The children of ``pid``, theirs, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)
