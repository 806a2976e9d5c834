"""What child processes get of the environment: all but what was meant for another command.

``LOOKUPDB_PORT`` is the router's, not each shard server's; ``LOOKUPDB_GENERATION`` was meant for `lookupdb get`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_PREFIX: Final = "LOOKUPDB_"
SERVER: Final = frozenset({"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_PASSWORD", "LOOKUPDB_PASSWORD_FILE"})
"""What a shard server or router may be told so, beside what `up` tells it by flags."""
BUILDER: Final = frozenset({"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_PROGRESS", "LOOKUPDB_SCRATCH", "LOOKUPDB_THREADS"})
"""What a build may be told so."""


def environment(keep: frozenset[str], given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``given`` without the variables of lookupdb's own that are not in ``keep``."""
    return {name: value for name, value in given.items() if not name.startswith(_PREFIX) or name in keep}
