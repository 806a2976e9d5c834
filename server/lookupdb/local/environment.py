"""The environment of child processes: all variables but those meant for another command.

``LOOKUPDB_PORT`` is the router's, not each shard server's; ``LOOKUPDB_GENERATION`` was meant for `lookupdb get`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_PREFIX: Final = "LOOKUPDB_"
SERVER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PASSWORD", "LOOKUPDB_PASSWORD_FILE"}
)
"""Variables that a shard server or router gets, beside the flags of `up`."""
BUILDER_VARIABLES: Final = frozenset(
    {"LOOKUPDB_LOG_FORMAT", "LOOKUPDB_NATIVE", "LOOKUPDB_PROGRESS", "LOOKUPDB_SCRATCH", "LOOKUPDB_THREADS"}
)
"""Variables that a build gets."""


def child_environment(keep: frozenset[str], variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``variables`` without those of lookupdb that are not in ``keep``."""
    return {name: value for name, value in variables.items() if not name.startswith(_PREFIX) or name in keep}
