"""Retries for a store that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, StoreDenied, StoreError

log = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS: Final = 0.25
_MAX_DELAY_SECONDS: Final = 2.0
_FINAL: Final = (CorruptFile, GenerationExists, GenerationMissing, StoreDenied)
"""Errors that a retry cannot help."""

T = TypeVar("T")


def call_with_retries(request: Callable[[], T], seconds: float) -> T:
    """Return what ``request`` returns; retry for at most ``seconds`` while it raises a StoreError that may pass."""
    deadline = time.monotonic() + seconds
    delay = _FIRST_DELAY_SECONDS
    while True:
        try:
            return request()
        except _FINAL:
            raise
        except StoreError as error:
            if time.monotonic() + delay > deadline:
                raise
            log.warning("the store failed, the request is retried", extra={"reason": error.message, "delay": delay})
        time.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY_SECONDS)
