"""Sorts records out of core, within a memory limit.

An external merge sort: records gather in memory, are sorted and written as a *run* when they reach the limit, and the
runs are merged. DuckDB's ORDER BY was tried first: it is as fast, but runs out of memory once a source is a few times
larger than its limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb.build import runs
from lookupdb.build.fetch import room_in
from lookupdb.build.runs import Record, key_of, piece_and_row

SPOOL_BYTES: Final = 32 << 10
"""A value larger than this waits in a file of its own while its key is sorted, so that a block of records is small
however large values are."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_SPOOLED: Final = 1 << 62
"""Bit of a place whose value is a reference into the spool of its slice."""
_REFERENCE: Final = struct.Struct("<QQ")


class Sorter:
    """``put`` all records, then iterate, once. A context manager: it owns files in ``scratch``.

    Records of equal keys come in the order in which they were put.
    """

    def __init__(self, scratch: Path, memory: int, name: str = "sort") -> None:
        """``memory``, in bytes, is what the records held at any time may take; files are called after ``name``."""
        self._scratch, self._memory, self._name = scratch, memory, name
        self._most_runs = max(2, memory // runs.BLOCK_MEMORY)
        self._held: list[Record] = []
        self._held_bytes = 0
        self._runs: list[FileIO] = []
        self._made = 0
        self._spool: FileIO | None = None
        self._spools: dict[int, Path] = {}
        self._open = ExitStack()

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """One record; ``place`` comes back with it. Raises NotEnoughRoom when scratch is full."""
        if len(value) > SPOOL_BYTES:
            place, value = place | _SPOOLED, self._spooled(place, value)
        self._held.append((key, place, value))
        self._held_bytes += len(key) + len(value) + runs.RECORD_MEMORY
        if self._held_bytes > self._memory:
            self._spill()

    def _spooled(self, place: int, value: bytes) -> bytes:
        with room_in(self._scratch):
            if self._spool is None:
                self._spool = self._new_file()
            self._spools[piece_and_row(place)[0]] = self._path(self._spool)
            start = self._spool.tell()
            rest = memoryview(value)
            while rest:
                rest = rest[self._spool.write(rest) :]
        return _REFERENCE.pack(start, len(value))

    def _new_file(self) -> FileIO:
        self._made += 1
        return self._opened(self._scratch / f"{self._name}-{self._made}", "x+b")

    def _opened(self, path: Path, mode: str) -> FileIO:
        with room_in(self._scratch):
            file = self._open.enter_context(FileIO(path, mode))
        self._open.callback(path.unlink, missing_ok=True)
        return file

    def _path(self, file: FileIO) -> Path:
        return self._scratch / Path(str(file.name)).name

    def _spill(self) -> None:
        if self._held:
            self._held.sort(key=key_of)
            run = self._new_file()
            with room_in(self._scratch):
                runs.write(run, [self._held])
            self._held, self._held_bytes = [], 0
            self._add(run)

    def _add(self, run: FileIO) -> None:
        self._runs.append(run)
        if len(self._runs) == self._most_runs:
            merged = self._new_file()
            with room_in(self._scratch):
                runs.write(merged, runs.merged(self._runs))
            for done in self._runs:
                done.close()
                self._path(done).unlink()
            self._runs = [merged]

    def detach(self) -> tuple[list[str], str | None]:
        """Write what is held, leave all files to another sorter's ``adopt``: the names of the runs and of the spool."""
        self._spill()
        self._open.pop_all()
        for file in (*self._runs, self._spool):
            if file is not None:
                file.close()
        spool = None if self._spool is None else self._path(self._spool).name
        return [self._path(run).name for run in self._runs], spool

    def adopt(self, piece: int, folder: Path, names: Sequence[str], spool: str | None) -> None:
        """Take over what another sorter, of ``folder``, detached: the records of slice ``piece``.

        Its files move to this sorter's own folder, which is on the same disk.
        """
        self._spill()
        if spool is not None:
            self._spools[piece] = (folder / spool).rename(self._scratch / spool)
            self._open.callback(self._spools[piece].unlink, missing_ok=True)
        for name in names:
            self._add(self._opened((folder / name).rename(self._scratch / name), "r+b"))

    def __iter__(self) -> Iterator[list[Record]]:
        """Batches of at most a few MiB, in the order of keys. Raises NotEnoughRoom when scratch is full."""
        if self._runs:
            self._spill()
        self._held.sort(key=key_of)
        for piece in runs.merged(self._runs) if self._runs else [self._held]:
            for start in range(0, len(piece), _BATCH_RECORDS):
                batch = piece[start : start + _BATCH_RECORDS]
                if self._spools:
                    yield from self._unspooled(batch)
                else:
                    yield batch

    def _unspooled(self, records: list[Record]) -> Iterator[list[Record]]:
        batch, held = [], 0
        for record in records:
            key, place, value = record
            if place & _SPOOLED:
                place ^= _SPOOLED
                start, length = _REFERENCE.unpack(value)
                with FileIO(self._spools[piece_and_row(place)[0]]) as spool:
                    spool.seek(start)
                    batch.append((key, place, runs.read_exactly(spool, length)))
                held += length
            else:
                batch.append(record)
            if held > _BATCH_BYTES:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._held, self._runs, self._spool, self._spools = [], [], None, {}
