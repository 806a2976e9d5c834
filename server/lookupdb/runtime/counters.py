"""Counters in shared memory: a slot of unsigned 64-bit numbers for each worker, summed when scraped.

A worker adds to its own slot with plain arithmetic: no lock, no system call, no metrics library on the hot path.
The memory belongs to the supervisor, so a restarted worker goes on counting where the dead one stopped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Final

_CACHE_LINE: Final = 64
_ITEM: Final = 8


class Counters:
    """``slots`` copies of the counters called ``names``, in anonymous shared memory.

    ``index[name]`` is a counter's place within ``slot(i)``. With ``fd`` the memory of another process's
    Counters of the same names and slots is mapped; without, new memory is made, all zero.

    Behind a slot's counters stands the worker's heartbeat.
    """

    def __init__(self, names: Iterable[str], slots: int, *, fd: int | None = None) -> None:
        self.names = tuple(names)
        self.slots = slots
        self.index = {name: place for place, name in enumerate(self.names)}
        # A slot fills whole cache lines, so that two workers never write to the same one.
        self._stride = -(-(len(self.names) + 1) * _ITEM // _CACHE_LINE) * _CACHE_LINE // _ITEM
        size = self._stride * _ITEM * slots
        if fd is None:
            fd = os.memfd_create("lookupdb-counters")
            os.truncate(fd, size)
        self.fd = fd
        self._numbers = memoryview(mmap.mmap(fd, size)).cast("Q")

    def slot(self, number: int) -> memoryview:
        """Return the counters of worker ``number``, writable, one item a name: ``slot[index[name]] += 1``."""
        start = number * self._stride
        return self._numbers[start : start + len(self.names)]

    def value(self, name: str, slot: int) -> int:
        """Return what worker ``slot`` has counted."""
        number: int = self._numbers[slot * self._stride + self.index[name]]
        return number

    def beat(self, slot: int) -> None:
        """Count a heartbeat of worker ``slot``."""
        self._numbers[slot * self._stride + len(self.names)] += 1

    def beats(self, slot: int) -> int:
        """Return how many heartbeats worker ``slot`` has counted. While it changes, the worker is alive."""
        number: int = self._numbers[slot * self._stride + len(self.names)]
        return number

    def total(self, name: str) -> int:
        """Return what all workers have counted together."""
        return sum(self.value(name, slot) for slot in range(self.slots))
