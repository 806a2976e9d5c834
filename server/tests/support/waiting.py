"""Waiting for something to become so, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """The first truthy value of ``look()``; AssertionError naming ``what`` when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)
    return found


async def soon(look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """As ``until``, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.02)
    return found
