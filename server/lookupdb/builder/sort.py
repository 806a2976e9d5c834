"""Sort records out of core, within a memory limit.

An external merge sort: a buffer gathers records in memory; at the limit they are sorted and written as a *run*. At the
end the runs are merged, as many at once as memory and open files allow, in as few passes as possible. DuckDB's ORDER BY
is as fast, but runs out of memory when the source is a few times larger than its limit.

The parts: runs, the buffer, the sample for the compression dictionary, and the ``Sorter``.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from xxhash import xxh3_64_intdigest as rank_key

from lookupdb import native
from lookupdb.builder.options import scratch_errors
from lookupdb.process.limits import enough_descriptors, free_descriptors

# Runs: files of sorted records. Native runs have another format, so a build and its crew use the same kernels.


Record = tuple[bytes, int, bytes]
"""Encoded key, place, value. The place says where in the source the record was: see ``encode_place``."""


class Batch(Protocol):
    """Some records of a stream in key order: a list, or native."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...


BLOCK_MEMORY: Final = 1 << 20
"""Memory of a merge for each of its runs."""
RECORD_MEMORY: Final = 200
"""Python's memory for a record, in addition to the bytes of its key and value."""
_HEADER: Final = struct.Struct("<IQI")
"""The header of a record in a run: the size of its key, its place, and the size of its value."""
_ROW_BITS: Final = 40
_ROW_MASK: Final = (1 << _ROW_BITS) - 1

record_key = itemgetter(0)


def encode_place(piece: int, row: int) -> int:
    """Encode row ``row`` of slice ``piece`` as one integer below 2**62. Places sort in the source's order."""
    return piece << _ROW_BITS | row


def decode_place(place: int) -> tuple[int, int]:
    """Return the slice and the row of ``place``."""
    return place >> _ROW_BITS, place & _ROW_MASK


def as_native(kernels: Any, batch: Batch) -> Any:
    """Return ``batch`` as a batch of the ``kernels``."""
    return batch if isinstance(batch, kernels.RecordBatch) else kernels.RecordBatch(list(batch))


def write_run(path: Path, records: Iterable[Record]) -> None:
    """Write sorted records into the new file ``path``."""
    with path.open("xb") as run:
        for key, place, value in records:
            run.write(_HEADER.pack(len(key), place, len(value)) + key + value)


def read_run(run: IO[bytes]) -> Iterator[Record]:
    """Yield the records of ``run``."""
    while header := run.read(_HEADER.size):
        key_bytes, place, value_bytes = _HEADER.unpack(header)
        yield run.read(key_bytes), place, run.read(value_bytes)


def merge_runs(runs: Iterable[IO[bytes]]) -> Iterator[Record]:
    """Yield the records of ``runs`` in key order; among equal keys, those of an earlier run first."""
    return heapq.merge(*map(read_run, runs), key=record_key)


# The buffer: records in memory until they are written as a run.


class RecordBuffer:
    """Unsorted records: the Python fallback of the native buffer."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self.memory = 0

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """Add a record."""
        self._records.append((key, place, value))
        self.memory += len(key) + len(value) + RECORD_MEMORY

    def write_run(self, path: Path) -> None:
        """Write the records, sorted, as a run into the new file ``path``, and forget them."""
        write_run(path, self.take_sorted())

    def take_sorted(self) -> list[Record]:
        """Return the records, sorted, and forget them."""
        records, self._records, self.memory = self._records, [], 0
        records.sort(key=record_key)
        return records


def make_record_buffer() -> RecordBuffer:
    """Return an empty buffer."""
    kernels = native.kernels()
    return RecordBuffer() if kernels is None else kernels.RecordBuffer()


# The sample of values to train the compression dictionary on. It depends on the records, not on their order.


_MAX_VALUES: Final = 200_000
_RANK_BYTES: Final = 8
_RANKS: Final = 1 << 8 * _RANK_BYTES
_AMPLE: Final = 8
"""The sample fills up if values are more than an eighth of the source; otherwise it stays proportionally smaller."""


class Sample:
    """Keeps the values whose keys have the smallest hashes, up to a number of bytes: the Python fallback of the native
    sample."""

    def __init__(self, max_bytes: int, last_rank: int | None) -> None:
        """``last_rank`` is the largest hash to keep; None keeps nothing."""
        self._max_bytes = max_bytes
        self._bound = 0 if last_rank is None else last_rank + 1
        self._entries: list[tuple[int, int, bytes]] = []
        self._bytes = 0

    def offer(self, key: bytes, place: int, value: bytes) -> None:
        """Keep ``value`` if its key's hash is small enough; ``place`` orders equal keys."""
        self._keep(rank_key(key), place, value)

    def _keep(self, rank: int, place: int, value: bytes) -> None:
        if rank >= self._bound:
            return
        self._entries.append((rank, place, value))
        self._bytes += len(value)
        if self._bytes > 2 * self._max_bytes or len(self._entries) > 2 * _MAX_VALUES:
            self._trim()

    def _trim(self) -> None:
        self._entries.sort()
        kept_count = kept_bytes = 0
        for _, _, value in self._entries[:_MAX_VALUES]:
            if kept_bytes + len(value) > self._max_bytes and kept_count:
                break
            kept_bytes += len(value)
            kept_count += 1
        if kept_count < len(self._entries):
            self._bound = self._entries[kept_count][0]
            del self._entries[kept_count:]
            self._bytes = kept_bytes

    def write_run(self, path: Path) -> None:
        """Write the sample as a run into the new file ``path``, with hashes as keys."""
        self._trim()
        write_run(path, ((rank.to_bytes(_RANK_BYTES, "big"), place, value) for rank, place, value in self._entries))

    def add_run(self, path: Path) -> None:
        """Add another sample, written as the run at ``path``."""
        with path.open("rb") as run:
            for rank_bytes, place, value in read_run(run):
                self._keep(int.from_bytes(rank_bytes, "big"), place, value)

    def take_values(self) -> list[bytes]:
        """Return the sampled values, ordered by their keys' hashes, and forget them."""
        self._trim()
        entries, self._entries = self._entries, []
        return [value for _, _, value in entries]


def make_sample(max_bytes: int, source_bytes: int = 0) -> Sample:
    """Return an empty sample; one of ``max_bytes`` 0 keeps nothing.

    Most values that a source of ``source_bytes`` would displace later are skipped from the start: filling and trimming
    the sample for every slice of a large source took an eighth of the reading time.
    """
    bound = min(_RANKS, _RANKS * _AMPLE * max_bytes // max(1, source_bytes)) if max_bytes else 0
    last_rank = bound - 1 if bound else None
    kernels = native.kernels()
    return Sample(max_bytes, last_rank) if kernels is None else kernels.Sample(max_bytes, last_rank)


SPOOL_BYTES: Final = 32 << 10
"""A larger value waits in a separate file while its key is sorted, so that blocks stay small."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_MAX_MERGED_RUNS: Final = 512
"""Two passes merge a quarter of a million runs, whatever the number of records in memory."""
_SPARE_DESCRIPTORS: Final = 16
_SPOOLED: Final = 1 << 62
"""A bit of a place: the record's value is a reference into its slice's spool file."""
_REFERENCE: Final = struct.Struct("<QQ")


class Sorter:
    """``put`` all records, then iterate once. A context manager that owns its files in ``scratch``.

    Records of equal keys come out in the order they were put.
    """

    def __init__(self, scratch: Path, memory: int, name: str = "sort") -> None:
        """``memory`` limits the bytes of records in memory; file names begin with ``name``."""
        self._scratch, self.memory, self._name = scratch, memory, name
        self.records = make_record_buffer()
        """The buffer for ``put``. Native row kernels put records there themselves, with ``spill_if_full``."""
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
        """Write the buffered records if they exceed the memory limit. Return whether they did."""
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
        """Return the path of a new file, which is deleted with this sorter."""
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
        """Write all records, and leave all files to another sorter's ``adopt``: return the names of the runs and of the
        spool."""
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
        width = min(self.memory // BLOCK_MEMORY, _MAX_MERGED_RUNS, free_descriptors() - _SPARE_DESCRIPTORS)
        return max(2, width)

    def _merge(self, group: Sequence[Path]) -> Path:
        if len(group) == 1:
            return group[0]
        merged = self._new_path()
        with scratch_errors(self._scratch):
            if self._kernels is not None:
                self._start_merge(group).write_run(merged)
            else:
                with self._open_runs(group) as files:
                    write_run(merged, merge_runs(files))
        for path in group:
            path.unlink()
        return merged

    def _start_merge(self, group: Sequence[Path]) -> Any:
        assert self._kernels is not None
        with enough_descriptors("merge what it has sorted"):
            return self._kernels.Merge(group, self._spools)

    @contextmanager
    def _open_runs(self, group: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
        with ExitStack() as stack, enough_descriptors("merge what it has sorted"):
            yield [stack.enter_context(path.open("rb")) for path in group]

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches of at most a few MiB, in key order. Raises NotEnoughRoom if scratch is full."""
        if not self._runs:
            if isinstance(self.records, RecordBuffer):
                yield from self._make_batches(self.records.take_sorted())
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
            yield from self._make_batches(merge_runs(files))

    def _make_batches(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        batch_bytes = 0
        for record in records:
            loaded = self._load(record) if record[1] & _SPOOLED else record
            batch.append(loaded)
            batch_bytes += len(loaded[2])
            if len(batch) == _BATCH_RECORDS or batch_bytes > _BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
        if batch:
            yield batch

    def _load(self, record: Record) -> Record:
        key, place, reference = record
        place ^= _SPOOLED
        start, length = _REFERENCE.unpack(reference)
        with self._spools[decode_place(place)[0]].open("rb") as spool:
            spool.seek(start)
            return key, place, spool.read(length)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self.records, self._runs, self._spool, self._spools = make_record_buffer(), [], None, {}


def _find_smallest_window(sizes: Sequence[int], length: int) -> int:
    """Return the start of the ``length`` consecutive ``sizes`` with the smallest sum."""
    starts = range(len(sizes) - length + 1)
    return min(starts, key=lambda start: sum(sizes[start : start + length]))
