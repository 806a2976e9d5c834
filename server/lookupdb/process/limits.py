"""Open files and sockets: the limit of this process, and the number of clients that it allows.

Distributions keep the soft limit at 1,024 for programs that use ``select``; others must raise it.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lookupdb.disk import OPEN_FILES_ERRNOS, RAISE_OPEN_FILES
from lookupdb.errors import NotEnoughRoom, UsageError

log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS: Final = 96
"""Descriptors that a worker keeps for its shard or table, listeners, pipes, counters, name resolution and refused
clients."""
MIN_DESCRIPTORS: Final = 160
"""The least limit with which a server starts: for supervisor, worker and a few clients."""


def max_client_connections(limit: int, endpoints: int = 0) -> int:
    """Return the number of clients that may connect with ``limit`` descriptors, one of which each of ``endpoints``
    needs.

    The next routing table may add as many endpoints before the current ones close. They get as many of the available
    descriptors, but at most half.
    """
    available = max(0, limit - RESERVED_DESCRIPTORS - endpoints)
    return max(1, available - min(endpoints, available // 2))


def limit_connections(requested: int, limit: int) -> int:
    """Return the number of ``requested`` connections that a worker accepts; log if it is less. Raises UsageError."""
    if limit < MIN_DESCRIPTORS:
        raise UsageError(
            f"this process may open {limit} files and sockets, a server needs {MIN_DESCRIPTORS} at least",
            hint="raise the hard limit: ulimit -Hn",
        )
    possible = max_client_connections(limit)
    if possible < requested:
        log.warning(
            "a worker takes %d connections, not %d: %s",
            *(possible, requested, f"it may open {limit} files and sockets; raise the hard limit (ulimit -Hn)"),
        )
    return min(requested, possible)


MAX_DESCRIPTORS: Final = 1 << 20
"""Limit of what is requested: some hosts allow a thousand million, which nothing here could use."""
_OPEN_DESCRIPTORS: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard limit. Return the resulting limit.

    Processes started afterwards inherit it. A limit that cannot be raised stays.
    """
    soft, hard = (
        (MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    goal = min(hard, MAX_DESCRIPTORS)
    if soft < goal:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # a sandbox may forbid what the kernel would allow
            return soft
        return goal
    return min(soft, MAX_DESCRIPTORS)


def free_descriptors() -> int:
    """Return the number of files that this process can still open, after raising its limit."""
    try:
        open_files = sum(1 for _ in _OPEN_DESCRIPTORS.iterdir()) - 1  # listing them takes one
    except OSError:
        open_files = 0
    return max(0, raise_limit() - open_files)


def require_descriptors(count: int, purpose: str, remedy: str) -> None:
    """Raise NotEnoughRoom if this process may not open ``count`` files, as ``purpose`` needs.

    ``remedy`` says what else would help besides raising the limit.
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
