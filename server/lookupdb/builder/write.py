"""Write the shard files of a generation side by side, from one stream in key order.

The parts follow a record: compression and the choice of its dictionary, duplicates, packing for shards, one shard file,
and the whole generation. The bytes of a file depend on its records alone: transactions end where the records say, not
where a batch ends or memory runs short.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import zstandard

from lookupdb import disk, native, shard_name
from lookupdb.builder.options import SAMPLE_BYTES
from lookupdb.builder.sort import Batch, as_native
from lookupdb.errors import NotEnoughRoom, StoreError
from lookupdb.keys import shard_number
from lookupdb.manifest import ShardFile
from lookupdb.shardfile import META, META_DICTIONARY, META_FORMAT, META_MANIFEST, RECORDS, ShardMeta, frame

# Compress each value if that makes it smaller. The result is deterministic.


LEVEL: Final = 3
"""Measured with ten product ids a value: level 1 hardly uses the dictionary (0.45), 3 gives 0.140, 5 gives 0.137."""


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
            # Otherwise each value would digest it again: 3 ms for 1 MiB, the cost of a thousand values.
            prepared.precompute_compress(compression_params=parameters)
        self._zstd = zstandard.ZstdCompressor(dict_data=prepared, compression_params=parameters)

    def store(self, framed: Sequence[bytes]) -> list[bytes]:
        """Return what to store for each RESP bulk string: its zstd frame if that is smaller, else the string."""
        return [min(value, self._zstd.compress(value), key=len) for value in framed]


# Choose the compression dictionary that makes the shard files smallest.
#
# A dictionary holds what many values share, so that short values compress well. Each candidate size is trained on one
# part of the sample and judged on the other. Limits are bytes and counts, never time, so that the same sample gives the
# same dictionary on every machine.


ROUNDS: Final = ((16 << 10, 110 << 10), (512 << 10, 1 << 20))
"""Dictionary sizes to try, side by side within a round. The first round shows which sizes of the second can pay."""

_SEGMENT: Final = 200
_MATCH: Final = 8
"""The trainer's parameters: runs of ``_SEGMENT`` bytes rich in ``_MATCH``-byte strings that many samples share. The
trainer's own search for them takes ten seconds or more, and gained nothing measurable."""
_ACCELERATION: Final = 4
"""The trainer skips three of four strings: this halves its time, and no dictionary got 1 % worse."""
_TRAINING_SHARE: Final = 18
_MIN_TRAINING_BYTES: Final = 2 << 20
"""A dictionary is trained on ``_TRAINING_SHARE`` bytes for each of its own, and on at least this many. More did not
improve small ones; large ones need the whole sample."""

_EVALUATION_BYTES: Final = 1 << 20
_EVALUATION_SHARE: Final = 8
"""One in this many sampled records is kept for evaluation."""
_MIN_SAMPLES: Final = 64
"""Fewer records have too little in common to train on."""
_MIN_GAIN: Final = 0.02
"""A larger dictionary must save at least this share of the stored bytes, because each worker keeps it in memory."""
_MAX_SAMPLE_VALUE_BYTES: Final = 64 << 10
"""A longer value compresses well alone, and would crowd others out of the sample."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A dictionary, and the size of all files with it: stored values, and a copy of the dictionary in each."""

    dictionary: bytes
    stored_bytes: float
    shards: int

    @property
    def size(self) -> int:
        return len(self.dictionary)

    @property
    def cost(self) -> float:
        return self.stored_bytes + self.size * self.shards


def choose_dictionary(sample: Sequence[bytes], *, records: int, shards: int, threads: int = 1) -> bytes:
    """Return the dictionary that makes ``records`` records in ``shards`` files smallest; empty if none pays.

    ``sample`` holds uncompressed values, in an order that is independent of their content. Each shard file holds a copy
    of the dictionary.
    """
    framed = [frame(value) for value in _take_first(sample, SAMPLE_BYTES) if len(value) <= _MAX_SAMPLE_VALUE_BYTES]
    evaluation = _take_first(framed[::_EVALUATION_SHARE], _EVALUATION_BYTES)
    training = [value for number, value in enumerate(framed) if number % _EVALUATION_SHARE]
    if len(training) < _MIN_SAMPLES:
        return b""

    def judge(dictionary: bytes) -> _Trial:
        return _Trial(dictionary, _stored_bytes(evaluation, dictionary) * records / len(evaluation), shards)

    with ThreadPoolExecutor(threads, "train") as pool:
        return _choose(judge(b""), lambda sizes: pool.map(lambda size: judge(_train(size, training)), sizes))


def _choose(none: _Trial, try_sizes: Callable[[Iterable[int]], Iterable[_Trial]]) -> bytes:
    """Return the best dictionary of all rounds; ``none`` is the trial without one."""
    best = largest = none
    for sizes in ROUNDS:
        promising = [size for size in sizes if _least_cost(size, none, largest) < best.cost * (1 - _MIN_GAIN)]
        for trial in try_sizes(promising):
            largest = max(largest, trial, key=lambda tried: tried.size)
            if trial.cost < best.cost * (1 - _MIN_GAIN):
                best = trial
    return best.dictionary


def _least_cost(size: int, none: _Trial, largest: _Trial) -> float:
    """Return the least that a dictionary of ``size`` bytes can cost, judged by ``largest``, the largest one tried.

    The best content comes first: a larger dictionary saves no more per byte.
    """
    most_saved = none.stored_bytes
    if largest.size:
        most_saved = min(most_saved, (none.stored_bytes - largest.stored_bytes) * size / largest.size)
    return none.stored_bytes - most_saved + size * none.shards


def _take_first(values: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """Return the first values that together have at most ``limit`` bytes; at least one."""
    total = 0
    for number, value in enumerate(values):
        total += len(value)
        if total > limit and number:
            return values[:number]
    return values


def _train(size: int, training: Sequence[bytes]) -> bytes:
    """Train a dictionary of ``size`` bytes; empty if the sample is too small."""
    texts = _take_first(training, max(_TRAINING_SHARE * size, _MIN_TRAINING_BYTES))
    if sum(map(len, texts)) < size:
        return b""
    try:
        trained = zstandard.train_dictionary(size, list(texts), k=_SEGMENT, d=_MATCH, accel=_ACCELERATION)
    except zstandard.ZstdError:
        return b""  # the samples have too little in common
    return trained.as_bytes()


def _stored_bytes(values: Sequence[bytes], dictionary: bytes) -> int:
    return sum(map(len, Compressor(dictionary).store(values)))


# Rows with the same key: fail, keep the first, or keep the last.


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
    """Return the sums over ``items``; ``sizes`` are those of their values before compression."""
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


class NativePacker(Packer):
    """Pack batches natively."""

    def __init__(self, kernels: Any, shards: int, dictionary: bytes, compressed: bool) -> None:
        parameters = compression_parameters() if compressed else None
        self._kernels, self._packer = kernels, kernels.Packer(shards, LARGEST_RECORD, dictionary, parameters)

    def pack(self, batch: Batch) -> PackedRecords:
        """Pack ``batch``."""
        packed: PackedRecords = self._packer.pack(as_native(self._kernels, batch))
        return packed


def make_packer(shards: int, *, compressed: bool, dictionary: bytes) -> Packer:
    """Return the packer of a generation. A native one allows any number of callers. Raises UsageError if native kernels
    are required but would write other bytes."""
    kernels = native.kernels()
    if kernels is None or (compressed and not _has_same_zstd(kernels)):
        return Packer(shards, Compressor(dictionary) if compressed else None)
    return NativePacker(kernels, shards, dictionary, compressed)


def _has_same_zstd(kernels: Any) -> bool:
    """Return whether both packers compress to the same bytes, which zstd promises only for one version."""
    if kernels.ZSTD_VERSION == zstandard.ZSTD_VERSION:
        return True
    ours, theirs = (".".join(map(str, version)) for version in (kernels.ZSTD_VERSION, zstandard.ZSTD_VERSION))
    native.set_aside(f"it compresses with zstd {ours}, python-zstandard with {theirs}: files would differ")
    return False


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
        if cause in disk.DISK_FULL_ERRNOS:
            raise _no_room_error(path, os.strerror(cause)) from error
        raise StoreError(f"cannot write {path}: {os.strerror(cause) if cause else error}") from error
    except OSError as error:
        if error.errno in disk.DISK_FULL_ERRNOS:
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
    """The sums over a shard's records, in bytes."""

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
                str(path),
                subdir=False,
                lock=False,
                sync=False,
                metasync=False,
                map_size=_FIRST_MAP_BYTES,
                max_dbs=2,
                mode=0o644,
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
        """Put records one at a time, to end a transaction exactly where the next record would make it too large."""
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
        # LMDB does not raise for an unordered or duplicate key: it stops, or counts less.
        if not consumed == added == len(items):
            raise AssertionError(f"{self.path}: {added} of {len(items)} records were appended: keys out of order")
        self._pending += cost
        if self._pending > self._transaction_bytes:
            self._commit()  # one record exceeds the transaction limit: do not keep it in memory

    def _make_room(self, needed_bytes: int) -> None:
        """Grow the map until it has room for ``needed_bytes`` more bytes of records.

        It grows by three times as much: a record of half a page may fill a whole one, and a branch page holds seven
        long keys.
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
                txn.put(META_FORMAT, b"%d" % shard_name.FORMAT_VERSION)
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
            return ShardFile(self.path.name, size, self.sums.records, sha256)

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
