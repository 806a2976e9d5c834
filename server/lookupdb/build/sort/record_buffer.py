"""Records in memory, until they are written as a run: natively, or in a list."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Protocol

from lookupdb import native
from lookupdb.build.sort import runs
from lookupdb.build.sort.runs import Record, record_key


class RecordBuffer(Protocol):
    """Unsorted records."""

    @property
    def memory(self) -> int:
        """The memory that they take, in bytes."""

    def put(self, key: bytes, place: int, value: bytes, /) -> None:
        """Add a record."""

    def write_run(self, path: Path, /) -> None:
        """Write the records, sorted, as a run into the new file ``path``, and forget them."""


class RecordList:
    """The twin of the native buffer."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self.memory = 0

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """Add a record."""
        self._records.append((key, place, value))
        self.memory += len(key) + len(value) + runs.RECORD_MEMORY

    def write_run(self, path: Path) -> None:
        """Write the records, sorted, as a run into the new file ``path``, and forget them."""
        with FileIO(path, "x") as run:
            runs.write_run(run, [self.take_sorted()])

    def take_sorted(self) -> list[Record]:
        """The records, sorted; the buffer forgets them."""
        records, self._records, self.memory = self._records, [], 0
        records.sort(key=record_key)
        return records


def make_record_buffer() -> RecordBuffer:
    """An empty buffer."""
    kernels = native.kernels()
    return RecordList() if kernels is None else kernels.RecordBuffer()
