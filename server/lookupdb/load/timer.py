"""A timer of the kernel's clock: an event loop's own wakes a millisecond late, which is more than a lookup takes."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import time
from collections.abc import Callable
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_ABSOLUTE: Final = 1
_NANOSECONDS: Final = 10**9


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class ClockTimer:
    """Calls ``wake`` in the event loop at the instants of time.monotonic() for which it is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Raises OSError."""
        self._descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")
        self._loop, self._wake = loop, wake
        self._setting = _Itimerspec()
        self._reference = ctypes.byref(self._setting)
        loop.add_reader(self._descriptor, self._expire)

    def set(self, instant: float) -> None:
        """Wake at ``instant``, or at once if it has passed; an earlier setting is forgotten."""
        fraction, seconds = math.modf(instant)
        value = self._setting.value
        value.seconds, value.nanoseconds = int(seconds), max(1, int(fraction * _NANOSECONDS))
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, self._reference, None)

    def close(self) -> None:
        """Wake no more."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _expire(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        self._wake()
