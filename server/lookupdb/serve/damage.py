"""The reply and the log line for a lookup whose stored value, or the page that it is on, is damaged."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from lookupdb.resp.replies import error
from lookupdb.serve import shard_counters

log = logging.getLogger(__name__)

DAMAGED: Final = error(
    "ERR the stored value of this key is damaged: fetch the shard file or build its generation again"
)
"""The reply for such a key: that of a GET, or in the key's place in that of an MGET."""
LOG_SECONDS: Final = 60.0
"""A damaged key may be asked for thousands of times a second: it is logged at once, then once
in this time."""


class DamageReport:
    """Counts damaged lookups in ``slot``, and logs them at a bounded rate."""

    def __init__(self, path: Path, slot: memoryview) -> None:
        self._path = path
        self._slot = slot
        self._logged_at: float | None = None
        self._logged_count = slot[shard_counters.DAMAGED_LOOKUPS]

    def add(self, problem: Exception, lookups: int = 1) -> None:
        """Count lookups that ended in ``problem``, and log it unless one was logged a short while ago."""
        self._slot[shard_counters.DAMAGED_LOOKUPS] += lookups
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            return
        count = self._slot[shard_counters.DAMAGED_LOOKUPS]
        log.error(
            "%s: a stored value is damaged, and its key is answered with an error: %s; fetch or build the file again",
            self._path,
            problem,
            extra={"lookups": count - self._logged_count},
        )
        self._logged_at, self._logged_count = now, count
