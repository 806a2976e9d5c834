"""Sorts records out of core, within a memory limit.

An external merge sort: records gather in memory, are sorted and written as a *run* when they reach the limit, and the
runs are merged when all are there: as many at once as memory and open files allow, in as few passes as that takes, so
that a record is written once for each pass and no more. DuckDB's ORDER BY was tried first: it is as fast, but runs out
of memory once a source is a few times larger than its limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb.build.sort import runs
from lookupdb.build.sort.runs import Record, key_of, piece_and_row
from lookupdb.build.source.fetch import room_in
from lookupdb.runtime.descriptors import enough_descriptors, free_descriptors

SPOOL_BYTES: Final = 32 << 10
"""A value larger than this waits in a file of its own while its key is sorted, so that a block of records is small
however large values are."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_MOST_AT_ONCE: Final = 512
"""Runs: two passes merge a quarter of a million of them, however few records memory holds."""
_SPARE_DESCRIPTORS: Final = 16
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
        self._held: list[Record] = []
        self._held_bytes = 0
        self._runs: list[Path] = []
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
                path = self._new_path()
                self._spool = self._open.enter_context(FileIO(path, "x"))
            self._spools[piece_and_row(place)[0]] = self._scratch / Path(str(self._spool.name)).name
            start = self._spool.tell()
            rest = memoryview(value)
            while rest:
                rest = rest[self._spool.write(rest) :]
        return _REFERENCE.pack(start, len(value))

    def _new_path(self) -> Path:
        """Of a file that goes when this sorter does."""
        self._made += 1
        return self._own(self._scratch / f"{self._name}-{self._made}")

    def _own(self, path: Path) -> Path:
        self._open.callback(path.unlink, missing_ok=True)
        return path

    def _spill(self) -> None:
        if self._held:
            self._held.sort(key=key_of)
            self._runs.append(self._write_run([self._held]))
            self._held, self._held_bytes = [], 0

    def _write_run(self, batches: Iterable[list[Record]]) -> Path:
        path = self._new_path()
        with room_in(self._scratch), FileIO(path, "x") as run:
            runs.write(run, batches)
        return path

    def detach(self) -> tuple[list[str], str | None]:
        """Write what is held, leave all files to another sorter's ``adopt``: the names of the runs and of the spool."""
        self._spill()
        self._open.pop_all()
        if self._spool is None:
            return [run.name for run in self._runs], None
        self._spool.close()
        return [run.name for run in self._runs], Path(str(self._spool.name)).name

    def adopt(self, piece: int, folder: Path, names: Sequence[str], spool: str | None) -> None:
        """Take over what another sorter, of ``folder``, detached: the records of slice ``piece``.

        Its files move to this sorter's own folder, which is on the same disk.
        """
        self._spill()
        if spool is not None:
            self._spools[piece] = self._own((folder / spool).rename(self._scratch / spool))
        self._runs += [self._own((folder / name).rename(self._scratch / name)) for name in names]

    def _merge_down(self) -> None:
        """Merge runs that stand one behind the other until no more are left than can be merged at once."""
        most = self._most_at_once()
        while (count := len(self._runs)) > most:
            surplus = count - most + 1
            if surplus > most:
                groups = [self._runs[start : start + most] for start in range(0, count, most)]
                self._runs = [self._merge(group) for group in groups]
            else:
                start = _smallest_window([run.stat().st_size for run in self._runs], surplus)
                self._runs[start : start + surplus] = [self._merge(self._runs[start : start + surplus])]

    def _most_at_once(self) -> int:
        most = min(self._memory // runs.BLOCK_MEMORY, _MOST_AT_ONCE, free_descriptors() - _SPARE_DESCRIPTORS)
        return max(2, most)

    def _merge(self, group: Sequence[Path]) -> Path:
        if len(group) == 1:
            return group[0]
        with self._opened(group) as files:
            merged = self._write_run(runs.merged(files))
        for path in group:
            path.unlink()
        return merged

    @contextmanager
    def _opened(self, group: Sequence[Path]) -> Iterator[list[FileIO]]:
        with ExitStack() as stack, enough_descriptors("merge what it has sorted"):
            yield [stack.enter_context(FileIO(path)) for path in group]

    def __iter__(self) -> Iterator[list[Record]]:
        """Batches of at most a few MiB, in the order of keys. Raises NotEnoughRoom when scratch is full."""
        if not self._runs:
            self._held.sort(key=key_of)
            yield from self._batches([self._held])
            return
        self._spill()
        self._merge_down()
        with self._opened(self._runs) as files:
            yield from self._batches(runs.merged(files))

    def _batches(self, pieces: Iterable[list[Record]]) -> Iterator[list[Record]]:
        for piece in pieces:
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


def _smallest_window(sizes: Sequence[int], length: int) -> int:
    """Where the ``length`` consecutive ``sizes`` begin that are smallest together."""
    starts = range(len(sizes) - length + 1)
    return min(starts, key=lambda start: sum(sizes[start : start + length]))
