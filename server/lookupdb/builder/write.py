"""Sort records, and write the shard files of a generation side by side, from one stream in key order.

A transaction's end depends only on the records and the number of shards, so that equal builds write equal bytes."""

from __future__ import annotations

import hashlib
import heapq
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from io import FileIO
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol, Self

import lmdb
import zstandard
from xxhash import xxh3_64_intdigest as rank_key

from lookupdb import keys, native
from lookupdb.builder.options import scratch_errors
from lookupdb.disk import enough_descriptors, free_descriptors
from lookupdb.errors import DISK_FULL_ERRNOS, NotEnoughRoom, StoreError
from lookupdb.keys import shard_number
from lookupdb.manifest import ShardFile
from lookupdb.shardfile import META, META_DICTIONARY, META_FORMAT, META_MANIFEST, RECORDS, ShardMeta, frame

# Sort records out of core, within a memory limit.
#
# An external merge sort: a buffer gathers records in memory; at the limit they are sorted and written as a *run*. At
# the end the runs are merged, as many at once as memory and open files allow, in as few passes as possible. DuckDB's
# ORDER BY is as fast, but runs out of memory when the source is a few times larger than its limit.


# Runs: files of sorted records. Native runs have another format, so a build and its crew use the same kernels.


Record = tuple[bytes, int, bytes]
"""Encoded key, place, value. The place says where in the source the record was: see ``encode_place``."""


class Batch(Protocol):
    """Some records of a stream in key order: a list, or a native batch."""

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

    For a source of ``source_bytes``, it skips most values that later ones would displace. Filling and trimming the
    sample for every slice of a large source took an eighth of the reading time."""
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
        """The buffer for ``put``. Native row kernels put records into it themselves, and call ``spill_if_full``."""
        self._kernels = native.kernels()
        self._runs: list[Path] = []
        self._file_count = 0
        self._spool: FileIO | None = None
        self._spools: dict[int, Path] = {}
        self._open = ExitStack()

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """Add a record. Raises NotEnoughRoom if scratch is full."""
        if len(value) > SPOOL_BYTES:
            with scratch_errors(self._scratch):
                if self._spool is None:
                    self._spool = self._open.enter_context(FileIO(self._new_path(), "x"))
                self._spools[decode_place(place)[0]] = self._scratch / Path(str(self._spool.name)).name
                start, rest = self._spool.tell(), memoryview(value)
                while rest:
                    rest = rest[self._spool.write(rest) :]
            place, value = place | _SPOOLED, _REFERENCE.pack(start, len(value))
        self.records.put(key, place, value)
        self.spill_if_full()

    def spill_if_full(self) -> bool:
        """Write the buffered records if they exceed the memory limit. Return whether they did."""
        is_full = self.records.memory > self.memory
        if is_full:
            self._spill()
        return is_full

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
        """Write all records, and return the names of the runs and of the spool. Another sorter's ``adopt`` takes these
        files over."""
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
        width = max(2, min(self.memory // BLOCK_MEMORY, _MAX_MERGED_RUNS, free_descriptors() - _SPARE_DESCRIPTORS))
        while (count := len(self._runs)) > width:
            surplus = count - width + 1
            if surplus > width:
                groups = [self._runs[start : start + width] for start in range(0, count, width)]
                self._runs = [self._merge(group) for group in groups]
            else:
                sizes = [run.stat().st_size for run in self._runs]
                start = min(range(width), key=lambda start: sum(sizes[start : start + surplus]))
                self._runs[start : start + surplus] = [self._merge(self._runs[start : start + surplus])]

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
            loaded = record
            if record[1] & _SPOOLED:
                place, (start, length) = record[1] ^ _SPOOLED, _REFERENCE.unpack(record[2])
                with self._spools[decode_place(place)[0]].open("rb") as spool:
                    spool.seek(start)
                    loaded = record[0], place, spool.read(length)
            batch.append(loaded)
            batch_bytes += len(loaded[2])
            if len(batch) == _BATCH_RECORDS or batch_bytes > _BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
        if batch:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self.records, self._runs, self._spool, self._spools = make_record_buffer(), [], None, {}


# Compress each value if that makes it smaller. The result is deterministic.


LEVEL: Final = 3
"""Values of ten product ids shrink to 45% at level 1, which hardly uses the dictionary, 14.0% at 3 and 13.7% at 5."""


def compression_parameters() -> zstandard.ZstdCompressionParameters:
    """Return the parameters that all values are compressed with."""
    return zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
    )


class Compressor:
    """Compresses values."""

    def __init__(self, dictionary: bytes) -> None:
        parameters = compression_parameters()
        prepared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        if prepared:
            # Otherwise zstd would digest the dictionary for each value: 3 ms for 1 MiB, the cost of a thousand values.
            prepared.precompute_compress(compression_params=parameters)
        self._zstd = zstandard.ZstdCompressor(dict_data=prepared, compression_params=parameters)

    def store(self, framed: Sequence[bytes]) -> list[bytes]:
        """Return what to store for each RESP bulk string: its zstd frame if that is smaller, else the string."""
        return [min(value, self._zstd.compress(value), key=len) for value in framed]


# Pack records as shards store them: framed, compressed if smaller, grouped by shard.


LARGEST_RECORD = 2030
"""LMDB puts a value on overflow pages if key and value together are longer."""

Item = tuple[bytes, bytes]
"""A key and its stored value."""


class ShareSums(NamedTuple):
    """Sums over a shard's records in a batch."""

    key_bytes: int
    value_bytes: int
    """Bytes of values before compression."""
    stored_bytes: int
    overflows: int
    """Number of stored values on overflow pages."""
    overflow_bytes: int
    largest_value_bytes: int
    """Bytes of the largest value before compression."""


class Packer:
    """Packs batches: the Python fallback of the native packer."""

    def __init__(self, shards: int, compressor: Compressor | None) -> None:
        self._shards, self._compressor = shards, compressor

    def pack(self, batch: Batch) -> PackedRecords:
        """Pack ``batch``."""
        framed = [frame(record[2]) for record in batch]
        stored_values = self._compressor.store(framed) if self._compressor else framed
        items: list[list[Item]] = [[] for _ in range(self._shards)]
        sizes: list[list[int]] = [[] for _ in range(self._shards)]
        for (key, _, value), stored in zip(batch, stored_values, strict=True):
            number = shard_number(key, self._shards)
            items[number].append((key, stored))
            sizes[number].append(len(value))
        return PackedRecords(items, sizes)


class PackedRecords:
    """A batch as shards store it."""

    def __init__(self, items: list[list[Item]], sizes: list[list[int]]) -> None:
        self._items, self._sizes = items, sizes

    def items(self, shard: int) -> tuple[list[Item], ShareSums]:
        """Return the records of ``shard`` in key order, and their sums."""
        return self._items[shard], sum_items(self._items[shard], self._sizes[shard])


def sum_items(items: Sequence[Item], sizes: Sequence[int]) -> ShareSums:
    """Return the sums over ``items``; ``sizes`` are the values' sizes before compression."""
    overflows = [len(stored) for key, stored in items if overflows_page(key, stored)]
    return ShareSums(
        sum(len(key) for key, _ in items),
        sum(sizes),
        sum(len(stored) for _, stored in items),
        len(overflows),
        sum(overflows),
        max(sizes, default=0),
    )


def overflows_page(key: bytes, stored: bytes) -> bool:
    """Return whether LMDB puts this record's value on overflow pages."""
    return len(key) + len(stored) > LARGEST_RECORD


def make_packer(shards: int, *, compressed: bool, dictionary: bytes) -> Any:
    """Return the packer of a generation. A native one is not a ``Packer``, and allows any number of concurrent callers.
    Raises UsageError if native kernels are required but would write other bytes."""
    kernels = native.kernels()
    if kernels is not None and compressed and kernels.ZSTD_VERSION != zstandard.ZSTD_VERSION:
        # Only equal versions of zstd promise equal bytes.
        ours, theirs = (".".join(map(str, version)) for version in (kernels.ZSTD_VERSION, zstandard.ZSTD_VERSION))
        native.set_aside(f"it compresses with zstd {ours}, python-zstandard with {theirs}: files would differ")
        kernels = None
    if kernels is None:
        return Packer(shards, Compressor(dictionary) if compressed else None)
    return kernels.Packer(shards, LARGEST_RECORD, dictionary, compression_parameters() if compressed else None)


# Write one shard file: records in key order, in transactions that depend on the records alone.


_FIRST_MAP_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_NODE_BYTES: Final = 16
"""LMDB's overhead for a record, approximately."""
_PROBE_PAGES: Final = 256


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn errors of LMDB and the file system into errors that a user can act on."""
    try:
        yield
    except lmdb.Error as error:
        cause = _find_write_error(path)
        if cause in DISK_FULL_ERRNOS:
            raise _no_room_error(path, os.strerror(cause)) from error
        raise StoreError(f"cannot write {path}: {os.strerror(cause) if cause else error}") from error
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise _no_room_error(path, os.strerror(error.errno)) from error
        raise StoreError(f"cannot write {path}: {error}") from error


def _find_write_error(path: Path) -> int:
    """Return the errno that keeps the file at ``path`` from growing; 0 if it can grow.

    LMDB reports an input/output error when a disk accepts only the first part of a write; a write of our own shows the
    cause.
    """
    try:
        with path.open("ab", buffering=0) as file:
            for _ in range(_PROBE_PAGES):
                file.write(bytes(_PAGE_BYTES))
    except OSError as error:
        return error.errno or 0
    return 0


def _no_room_error(path: Path, reason: str) -> NotEnoughRoom:
    hint = "make room there, or choose another --store (`lookupdb up`: --data-dir)"
    return NotEnoughRoom(f"no room left for {path}: {reason}", hint=hint)


@dataclass(slots=True)
class ShardSums:
    """The sums over a shard's records."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    overflow_bytes: int = 0
    """Bytes of stored values on overflow pages."""
    largest_value_bytes: int = 0
    """Bytes of the largest value as lookups return it."""


class ShardWriter:
    """An open shard file."""

    def __init__(self, path: Path, transaction_bytes: int) -> None:
        self.path = path
        self.sums = ShardSums()
        self._transaction_bytes = transaction_bytes
        self._pending = 0
        self._txn: lmdb.Transaction | None = None
        with write_errors(path):
            self._env = lmdb.open(
                str(path), subdir=False, lock=False, sync=False, map_size=_FIRST_MAP_BYTES, max_dbs=2, mode=0o644
            )
            self._map_bytes = _FIRST_MAP_BYTES
            self._records = self._env.open_db(RECORDS)
            self._meta = self._env.open_db(META)

    def append(self, items: list[Item], share: ShareSums) -> None:
        """Append records, which follow all earlier ones in key order.

        Raises NotEnoughRoom, StoreError.
        """
        if not items:
            return
        cost = share.key_bytes + share.stored_bytes + _NODE_BYTES * len(items) + _PAGE_BYTES * share.overflows
        with write_errors(self.path):
            if self._pending + cost <= self._transaction_bytes:
                self._put(items, cost)
            else:
                self._put_singly(items)
        sums = self.sums
        sums.records += len(items)
        sums.key_bytes += share.key_bytes
        sums.value_bytes += share.value_bytes
        sums.stored_bytes += share.stored_bytes
        sums.overflow_bytes += share.overflow_bytes
        sums.largest_value_bytes = max(sums.largest_value_bytes, share.largest_value_bytes)

    def _put_singly(self, items: list[Item]) -> None:
        """Put records, and end each transaction exactly where the next record would make it too large."""
        begin = 0
        total = 0
        for end, (key, stored) in enumerate(items):
            cost = len(key) + len(stored) + _NODE_BYTES + (_PAGE_BYTES if overflows_page(key, stored) else 0)
            if self._pending + total + cost > self._transaction_bytes:
                self._put(items[begin:end], total)
                self._commit()
                begin, total = end, 0
            total += cost
        self._put(items[begin:], total)

    def _put(self, items: list[Item], cost: int) -> None:
        if not items:
            return
        if self._txn is None:
            self._make_room(max(cost, self._transaction_bytes))
            self._txn = self._env.begin(write=True, db=self._records)
        with self._txn.cursor() as cursor:
            consumed, added = cursor.putmulti(items, append=True)
        # LMDB does not raise for an unordered or duplicate key: it stops, or counts fewer records.
        if not consumed == added == len(items):
            raise AssertionError(f"{self.path}: {added} of {len(items)} records were appended: keys out of order")
        self._pending += cost
        if self._pending > self._transaction_bytes:
            self._commit()  # one record exceeds the transaction limit: do not keep it in memory

    def _make_room(self, needed_bytes: int) -> None:
        """Grow the map until it has room for ``needed_bytes`` more bytes of records.

        It grows by three times as much: a record of half a page may fill a whole one, and a branch page holds only
        seven long keys.
        """
        used_bytes = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES
        while self._map_bytes < used_bytes + 3 * needed_bytes + _FIRST_MAP_BYTES // 2:
            self._map_bytes *= 2
        self._env.set_mapsize(self._map_bytes)

    def _commit(self) -> None:
        if self._txn is not None:
            self._txn.commit()
            self._txn = None
            self._pending = 0

    def finish(self, meta: ShardMeta, dictionary: bytes) -> ShardFile:
        """Write the file's metadata, sync it to the disk, and return its description."""
        with write_errors(self.path):
            self._commit()
            self._make_room(len(dictionary) + _PAGE_BYTES)
            with self._env.begin(write=True, db=self._meta) as txn:
                txn.put(META_FORMAT, b"%d" % keys.FORMAT_VERSION)
                txn.put(META_MANIFEST, meta.to_json())
                if dictionary:
                    txn.put(META_DICTIONARY, dictionary)
            size = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES
            self.close()
            with self.path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o444)
            with self.path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    offset = content.rfind(dictionary) if dictionary else 0
            return ShardFile(self.path.name, size, self.sums.records, sha256, offset)

    def close(self) -> None:
        """Abandon the file as it is. May be called twice."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        self._env.close()


_NOT_IN_FILES: Final = frozenset({"records", "largest_value_bytes"})
"""Sums that a shard file does not store as extra fields: ``records`` is a field already, and the other would change the
bytes of every file for a number that only a build needs."""


def describe_shard(meta: ShardMeta, number: int, sums: ShardSums) -> ShardMeta:
    """Return ``meta`` for one shard, with its sums as extra fields."""
    extra = {name: value for name, value in asdict(sums).items() if name not in _NOT_IN_FILES}
    return replace(meta, shard=number, records=sums.records, extra=extra)
