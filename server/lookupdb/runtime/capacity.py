"""How many clients a worker may have, by the files and sockets that the kernel lets it open."""

from __future__ import annotations

import logging
from typing import Final

from lookupdb.errors import UsageError

log = logging.getLogger(__name__)

RESERVED: Final = 96
"""A worker's own: its shard or table, listeners, pipes, counters, names that are looked up, and clients that are told
that there are too many."""
LEAST: Final = 160
"""Below this limit of open files no server starts: what its supervisor and a worker need for themselves, and a few
clients."""


def most_connections(limit: int, endpoints: int = 0) -> int:
    """Of clients, where ``limit`` descriptors may be open and ``endpoints`` have a connection each.

    The next routing table may bring as many endpoints again before those of this one go: of what is left they may have
    as much, but no more than half.
    """
    left = max(0, limit - RESERVED - endpoints)
    return max(1, left - min(endpoints, left // 2))


def affordable(wanted: int, limit: int) -> int:
    """How many connections a worker takes of the ``wanted``; one log line where that is fewer. Raises UsageError."""
    if limit < LEAST:
        raise UsageError(
            f"this process may open {limit} files and sockets, a server needs {LEAST} at least",
            hint="raise the hard limit: ulimit -Hn",
        )
    possible = most_connections(limit)
    if possible < wanted:
        log.warning(
            "a worker takes %d connections, not %d: %s",
            *(possible, wanted, f"it may open {limit} files and sockets; raise the hard limit (ulimit -Hn)"),
        )
    return min(wanted, possible)
