"""Waiting for something to become so, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Return the first truthy value of ``look()``. Raises AssertionError with ``what`` if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)
    return found


async def soon(look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Like ``until``, while the event loop runs."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.02)
    return found
