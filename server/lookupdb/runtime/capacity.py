"""How many clients a worker may have, by the files and sockets that the kernel lets it open."""

from __future__ import annotations

import logging
from typing import Final

from lookupdb.errors import UsageError

log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS: Final = 96
"""A worker keeps these for its shard or table, listeners, pipes, counters, names that are looked up, and clients that
are refused."""
MIN_DESCRIPTORS: Final = 160
"""Below this limit of open files no server starts: supervisor and worker need them, and a few clients."""


def max_client_connections(limit: int, endpoints: int = 0) -> int:
    """Return how many clients may connect where ``limit`` descriptors may be open, one for each of ``endpoints``.

    The next routing table may bring as many endpoints again before those of this one go. They get as many of the
    available descriptors, but no more than half.
    """
    available = max(0, limit - RESERVED_DESCRIPTORS - endpoints)
    return max(1, available - min(endpoints, available // 2))


def limit_connections(requested: int, limit: int) -> int:
    """Return how many of the ``requested`` connections a worker accepts; log when it is fewer. Raises UsageError."""
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
