"""How many files and sockets this process may have open.

Distributions keep the soft limit at 1,024 for programs that use ``select``, and leave it to all others to raise it.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

MOST: Final = 1 << 20
"""More is never asked for: some hosts allow a thousand million, and nothing here could use them."""
_OPEN: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard one; how many it may have open from now on.

    Processes that are started from here on inherit the limit. One that cannot be raised stays as it is.
    """
    soft, hard = (_as_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    goal = min(hard, MOST)
    if soft < goal:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # a sandbox may refuse what the kernel would allow
            return soft
        return goal
    return min(soft, MOST)


def free_descriptors() -> int:
    """How many more files this process can open now, after raising its limit."""
    return max(0, raise_limit() - open_descriptors())


def open_descriptors() -> int:
    """How many this process has open."""
    try:
        return sum(1 for _ in _OPEN.iterdir()) - 1  # listing them takes one
    except OSError:
        return 0


def _as_number(limit: int) -> int:
    return MOST if limit == resource.RLIM_INFINITY else limit
