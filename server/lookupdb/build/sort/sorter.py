"""Sorts records out of core, within a memory limit.

An external merge sort: records gather in memory; at the limit they are sorted and written as a *run*. At the end the
runs are merged, as many at once as memory and open files allow. Each pass writes each record once, and there are as few
passes as possible. DuckDB's ORDER BY was tried first: it is as fast, but runs out of memory when the source is a few
times larger than its limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from lookupdb import native
from lookupdb.build.scratch import scratch_errors
from lookupdb.build.sort import runs
from lookupdb.build.sort.record_buffer import RecordList, make_record_buffer
from lookupdb.build.sort.runs import Batch, Record, decode_place
from lookupdb.runtime.descriptors import enough_descriptors, free_descriptors

SPOOL_BYTES: Final = 32 << 10
"""A larger value waits in a separate file while its key is sorted, so that blocks of records stay small."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_MAX_MERGED_RUNS: Final = 512
"""Two passes merge a quarter of a million runs, however few records memory holds."""
_SPARE_DESCRIPTORS: Final = 16
_SPOOLED: Final = 1 << 62
"""A bit of a place: the record's value is a reference into its slice's spool file."""
_REFERENCE: Final = struct.Struct("<QQ")


class Sorter:
    """``put`` all records, then iterate, once. A context manager, which owns its files in ``scratch``.

    Records of equal keys come out in the order in which they were put.
    """

    def __init__(self, scratch: Path, memory: int, name: str = "sort") -> None:
        """``memory`` limits the bytes of records in memory; file names begin with ``name``."""
        self._scratch, self.memory, self._name = scratch, memory, name
        self.records = make_record_buffer()
        """Where ``put`` puts them. The native row kernels put records there themselves, with ``spill_if_full``."""
        self._kernels = native.kernels()
        self._runs: list[Path] = []
        self._file_count = 0
        self._spool: FileIO | None = None
        self._spools: dict[int, Path] = {}
        self._open = ExitStack()

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """Add a record. Raises NotEnoughRoom if scratch is full."""
        if len(value) > SPOOL_BYTES:
            place, value = place | _SPOOLED, self._spool_value(place, value)
        self.records.put(key, place, value)
        self.spill_if_full()

    def spill_if_full(self) -> bool:
        """Write the records of the buffer, if they take more memory than they may. Returns whether they did."""
        is_full = self.records.memory > self.memory
        if is_full:
            self._spill()
        return is_full

    def _spool_value(self, place: int, value: bytes) -> bytes:
        with scratch_errors(self._scratch):
            if self._spool is None:
                path = self._new_path()
                self._spool = self._open.enter_context(FileIO(path, "x"))
            self._spools[decode_place(place)[0]] = self._scratch / Path(str(self._spool.name)).name
            start = self._spool.tell()
            rest = memoryview(value)
            while rest:
                rest = rest[self._spool.write(rest) :]
        return _REFERENCE.pack(start, len(value))

    def _new_path(self) -> Path:
        """The path of a new file, which is deleted with this sorter."""
        self._file_count += 1
        return self._delete_at_exit(self._scratch / f"{self._name}-{self._file_count}")

    def _delete_at_exit(self, path: Path) -> Path:
        self._open.callback(path.unlink, missing_ok=True)
        return path

    def _spill(self) -> None:
        if self.records.memory:
            path = self._new_path()
            with scratch_errors(self._scratch):
                self.records.write_run(path)
            self._runs.append(path)

    def detach(self) -> tuple[list[str], str | None]:
        """Write all records, and leave all files to another sorter's ``adopt``: returns the names of the runs and of
        the spool."""
        self._spill()
        self._open.pop_all()
        if self._spool is None:
            return [run.name for run in self._runs], None
        self._spool.close()
        return [run.name for run in self._runs], Path(str(self._spool.name)).name

    def adopt(self, piece: int, folder: Path, names: Sequence[str], spool: str | None) -> None:
        """Take over the files in ``folder`` that another sorter detached: the records of slice ``piece``.

        The files move to this sorter's folder, which is on the same disk.
        """
        self._spill()
        if spool is not None:
            self._spools[piece] = self._delete_at_exit((folder / spool).rename(self._scratch / spool))
        self._runs += [self._delete_at_exit((folder / name).rename(self._scratch / name)) for name in names]

    def _reduce_runs(self) -> None:
        """Merge neighbouring runs until the rest can be merged at once."""
        width = self._max_merge_width()
        while (count := len(self._runs)) > width:
            surplus = count - width + 1
            if surplus > width:
                groups = [self._runs[start : start + width] for start in range(0, count, width)]
                self._runs = [self._merge(group) for group in groups]
            else:
                start = _find_smallest_window([run.stat().st_size for run in self._runs], surplus)
                self._runs[start : start + surplus] = [self._merge(self._runs[start : start + surplus])]

    def _max_merge_width(self) -> int:
        width = min(self.memory // runs.BLOCK_MEMORY, _MAX_MERGED_RUNS, free_descriptors() - _SPARE_DESCRIPTORS)
        return max(2, width)

    def _merge(self, group: Sequence[Path]) -> Path:
        if len(group) == 1:
            return group[0]
        merged = self._new_path()
        with scratch_errors(self._scratch):
            if self._kernels is not None:
                self._start_merge(group).write_run(merged)
            else:
                with self._open_runs(group) as files, FileIO(merged, "x") as run:
                    runs.write_run(run, runs.merge_runs(files))
        for path in group:
            path.unlink()
        return merged

    def _start_merge(self, group: Sequence[Path]) -> Any:
        assert self._kernels is not None
        with enough_descriptors("merge what it has sorted"):
            return self._kernels.Merge(group, self._spools)

    @contextmanager
    def _open_runs(self, group: Sequence[Path]) -> Iterator[list[FileIO]]:
        with ExitStack() as stack, enough_descriptors("merge what it has sorted"):
            yield [stack.enter_context(FileIO(path)) for path in group]

    def __iter__(self) -> Iterator[Batch]:
        """Batches of at most a few MiB, in key order. Raises NotEnoughRoom if scratch is full."""
        if not self._runs:
            if isinstance(self.records, RecordList):
                yield from self._split_into_batches([self.records.take_sorted()])
            else:
                buffer: Any = self.records
                yield from buffer.take_sorted(self._spools)
            return
        self._spill()
        self._reduce_runs()
        if self._kernels is not None:
            yield from self._start_merge(self._runs)
            return
        with self._open_runs(self._runs) as files:
            yield from self._split_into_batches(runs.merge_runs(files))

    def _split_into_batches(self, pieces: Iterable[list[Record]]) -> Iterator[list[Record]]:
        for piece in pieces:
            for start in range(0, len(piece), _BATCH_RECORDS):
                batch = piece[start : start + _BATCH_RECORDS]
                if self._spools:
                    yield from self._load_spooled(batch)
                else:
                    yield batch

    def _load_spooled(self, records: list[Record]) -> Iterator[list[Record]]:
        batch, loaded_bytes = [], 0
        for record in records:
            key, place, value = record
            if place & _SPOOLED:
                place ^= _SPOOLED
                start, length = _REFERENCE.unpack(value)
                with FileIO(self._spools[decode_place(place)[0]]) as spool:
                    spool.seek(start)
                    batch.append((key, place, runs.read_exactly(spool, length)))
                loaded_bytes += length
            else:
                batch.append(record)
            if loaded_bytes > _BATCH_BYTES:
                yield batch
                batch, loaded_bytes = [], 0
        if batch:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self.records, self._runs, self._spool, self._spools = make_record_buffer(), [], None, {}


def _find_smallest_window(sizes: Sequence[int], length: int) -> int:
    """The start of the ``length`` consecutive ``sizes`` with the smallest sum."""
    starts = range(len(sizes) - length + 1)
    return min(starts, key=lambda start: sum(sizes[start : start + length]))
