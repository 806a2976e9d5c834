"""The number of files and sockets that this process may have open.

Distributions keep the soft limit at 1,024 for programs that use ``select``, and leave it to all others to raise it.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lookupdb.disk import OPEN_FILES_ERRNOS, RAISE_OPEN_FILES
from lookupdb.errors import NotEnoughRoom

MAX_DESCRIPTORS: Final = 1 << 20
"""More is never asked for: some hosts allow a thousand million, and nothing here could use them."""
_OPEN_DESCRIPTORS: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard one. Returns how many it may have open from now on.

    Processes that are started from here on inherit the limit. One that cannot be raised stays as it is.
    """
    soft, hard = (_as_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    goal = min(hard, MAX_DESCRIPTORS)
    if soft < goal:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # a sandbox may refuse what the kernel would allow
            return soft
        return goal
    return min(soft, MAX_DESCRIPTORS)


def free_descriptors() -> int:
    """Return how many more files this process can open, after raising its limit."""
    return max(0, raise_limit() - open_descriptors())


def open_descriptors() -> int:
    """Return how many files and sockets this process has open."""
    try:
        return sum(1 for _ in _OPEN_DESCRIPTORS.iterdir()) - 1  # listing them takes one
    except OSError:
        return 0


def require_descriptors(count: int, purpose: str, remedy: str) -> None:
    """Raise NotEnoughRoom when this process may not have ``count`` files open, as ``purpose`` needs.

    ``remedy`` says what would help besides raising the limit.
    """
    limit = raise_limit()
    if limit < count:
        raise NotEnoughRoom(
            f"{purpose} needs {count:,} open files, the limit is {limit:,}",
            hint=f"{RAISE_OPEN_FILES}, or {remedy}",
        )


@contextmanager
def enough_descriptors(purpose: str) -> Iterator[None]:
    """Turn "too many open files" into NotEnoughRoom."""
    try:
        yield
    except OSError as error:
        if error.errno not in OPEN_FILES_ERRNOS:
            raise
        raise NotEnoughRoom(
            f"a build could not {purpose}: {error.strerror}, the limit is {raise_limit():,}",
            hint=RAISE_OPEN_FILES,
        ) from error


def _as_number(limit: int) -> int:
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit
