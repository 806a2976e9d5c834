"""Writes all shard files of a generation side by side from one stream in key order.

What a file holds byte for byte depends on its records alone: transactions end where records say, never where a batch
of the stream happened to end or where memory ran short.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import lmdb

from lookupdb import disk, shardfile
from lookupdb.build.budget import transaction_bytes
from lookupdb.build.sort.runs import Record
from lookupdb.build.write.compression import Compressor
from lookupdb.errors import NotEnoughRoom, StoreError
from lookupdb.keys import MAX_KEY_BYTES, shard_of
from lookupdb.manifest import ShardFile, Totals
from lookupdb.runtime.descriptors import require_descriptors
from lookupdb.shardfile import META, META_DICTIONARY, META_FORMAT, META_MANIFEST, RECORDS, ShardMeta, frame
from lookupdb.store.dataset import sha256_of

_FIRST_MAP_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_NODE_BYTES: Final = 16
"""What LMDB adds to a record, about."""
_BATCHES_AHEAD: Final = 3
_PROBE_PAGES: Final = 256
_FILES_A_SHARD: Final = 2
_OTHER_FILES: Final = 128
"""Sockets of the store, pipes, and runs to merge, which are the fewer the fewer files may be open."""
_LARGEST_NODE: Final = 2038
"""LMDB puts a value on pages of its own when key, value and 8 bytes are together longer than this."""

Item = tuple[bytes, bytes]
"""Key, stored value."""


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what LMDB and the file system say into the error a user can act on."""
    try:
        yield
    except lmdb.Error as error:
        cause = _refusal(path)
        if cause in disk.FULL:
            raise _full(path, os.strerror(cause)) from error
        raise StoreError(f"cannot write {path}: {os.strerror(cause) if cause else error}") from error
    except OSError as error:
        if error.errno in disk.FULL:
            raise _full(path, os.strerror(error.errno)) from error
        raise StoreError(f"cannot write {path}: {error}") from error


def _refusal(path: Path) -> int:
    """Why the file at ``path`` cannot grow, as an errno, or 0 if it can.

    LMDB calls it an input/output error when a disk takes only the first part of a write; the disk says it better.
    """
    try:
        with path.open("ab", buffering=0) as file:
            for _ in range(_PROBE_PAGES):
                file.write(bytes(_PAGE_BYTES))
    except OSError as error:
        return error.errno or 0
    return 0


def _full(path: Path, reason: str) -> NotEnoughRoom:
    return NotEnoughRoom(f"no room left for {path}: {reason}", hint="make room there, or give another --store")


@dataclass(slots=True)
class Sums:
    """What a shard's records amount to, in bytes."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    overflow_bytes: int = 0
    """Of stored values on pages of their own."""


class ShardWriter:
    """One shard file in the making."""

    def __init__(self, path: Path, transaction_bytes: int) -> None:
        self.path = path
        self.sums = Sums()
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

    def append(self, items: list[Item], value_bytes: int) -> None:
        """Add records, in key order after all that were added; ``value_bytes`` are their values' before storing.

        Raises NotEnoughRoom, StoreError.
        """
        if not items:
            return
        keys, stored = zip(*items, strict=True)
        key_bytes, stored_bytes = sum(map(len, keys)), sum(map(len, stored))
        overflows = []
        if max(map(len, stored)) > _LARGEST_NODE - MAX_KEY_BYTES:
            overflows = [len(one) for key, one in items if _overflows(key, one)]
        cost = key_bytes + stored_bytes + _NODE_BYTES * len(items) + _PAGE_BYTES * len(overflows)
        with write_errors(self.path):
            if self._pending + cost <= self._transaction_bytes:
                self._put(items, cost)
            else:
                self._put_one_by_one(items)
        sums = self.sums
        sums.records += len(items)
        sums.key_bytes += key_bytes
        sums.value_bytes += value_bytes
        sums.stored_bytes += stored_bytes
        sums.overflow_bytes += sum(overflows)

    def _put_one_by_one(self, items: list[Item]) -> None:
        """Ends a transaction at the very record that would make it too large."""
        begin = 0
        total = 0
        for end, (key, stored) in enumerate(items):
            cost = len(key) + len(stored) + _NODE_BYTES + (_PAGE_BYTES if _overflows(key, stored) else 0)
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
        # LMDB does not raise for a key that is out of order or there already: it stops, or counts less.
        if not consumed == added == len(items):
            raise AssertionError(f"{self.path}: {added} of {len(items)} records were appended: keys out of order")
        self._pending += cost
        if self._pending > self._transaction_bytes:
            self._commit()  # one record, larger than a transaction may be: it must not stay in memory

    def _make_room(self, needed: int) -> None:
        """Let the map hold ``needed`` more bytes of records.

        Three times that, because a page may hold one record of half its size, and a branch page seven long keys.
        """
        used = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES
        while self._map_bytes < used + 3 * needed + _FIRST_MAP_BYTES // 2:
            self._map_bytes *= 2
        self._env.set_mapsize(self._map_bytes)

    def _commit(self) -> None:
        if self._txn is not None:
            self._txn.commit()
            self._txn = None
            self._pending = 0

    def finish(self, meta: ShardMeta, dictionary: bytes) -> ShardFile:
        """Write what the file says of itself, put everything on the disk, and describe the file."""
        with write_errors(self.path):
            self._commit()
            self._make_room(len(dictionary) + _PAGE_BYTES)
            with self._env.begin(write=True, db=self._meta) as txn:
                txn.put(META_FORMAT, b"%d" % shardfile.FORMAT_VERSION)
                txn.put(META_MANIFEST, meta.to_json())
                if dictionary:
                    txn.put(META_DICTIONARY, dictionary)
            size = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES
            self.close()
            with self.path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o444)
            return ShardFile(self.path.name, size, self.sums.records, sha256_of(self.path))

    def close(self) -> None:
        """Give the file up as it is. May be called twice."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        self._env.close()


def _overflows(key: bytes, stored: bytes) -> bool:
    return len(key) + len(stored) + 8 > _LARGEST_NODE


class GenerationWriter:
    """All shard files of a generation. Use as a context manager: leaving it closes the files."""

    def __init__(self, folder: Path, meta: ShardMeta, dictionary: bytes, threads: int) -> None:
        """``meta`` describes every shard but for its number and records."""
        self._meta = meta
        self._dictionary = dictionary
        self._threads = threads
        self._compressor = Compressor(dictionary, threads) if meta.compression == "zstd" else None
        check_open_files(meta.shards)
        share = transaction_bytes(meta.shards)
        self._stack = ExitStack()
        with self._stack as stack:
            names = [shardfile.file_name(number, meta.shards) for number in range(meta.shards)]
            self._shards = [stack.enter_context(closing(ShardWriter(folder / name, share))) for name in names]
            self._stack = stack.pop_all()

    def write(self, batches: Iterable[list[Record]]) -> Iterator[int]:
        """Write records in key order, each key once; yields how many were written, batch by batch.

        Some batches are compressed in another thread while those before them are written.
        """
        ahead: deque[tuple[list[Record], Future[list[bytes]]]] = deque()
        with ThreadPoolExecutor(1, "compress") as pool:
            for batch in batches:
                ahead.append((batch, pool.submit(self._store, [frame(record[2]) for record in batch])))
                if len(ahead) > _BATCHES_AHEAD:
                    yield self._append(*ahead.popleft())
            while ahead:
                yield self._append(*ahead.popleft())

    def _store(self, framed: list[bytes]) -> list[bytes]:
        return self._compressor.store(framed) if self._compressor else framed

    def _append(self, batch: list[Record], stored: Future[list[bytes]]) -> int:
        shards = len(self._shards)
        groups: list[list[Item]] = [[] for _ in range(shards)]
        value_bytes = [0] * shards
        for (key, _, value), one in zip(batch, stored.result(), strict=True):
            number = shard_of(key, shards)
            groups[number].append((key, one))
            value_bytes[number] += len(value)
        for shard, group, length in zip(self._shards, groups, value_bytes, strict=True):
            shard.append(group, length)
        return len(batch)

    def finish(self) -> tuple[tuple[ShardFile, ...], Totals]:
        """Complete every file; what they are, and what they amount to."""
        with ThreadPoolExecutor(self._threads, "finish") as pool:
            files = tuple(pool.map(self._finish_one, range(len(self._shards))))
        sums = [shard.sums for shard in self._shards]
        return files, Totals(
            records=sum(one.records for one in sums),
            key_bytes=sum(one.key_bytes for one in sums),
            value_bytes=sum(one.value_bytes for one in sums),
            stored_bytes=sum(one.stored_bytes for one in sums),
            file_bytes=sum(file.bytes for file in files),
        )

    def _finish_one(self, number: int) -> ShardFile:
        shard = self._shards[number]
        return shard.finish(describe(self._meta, number, shard.sums), self._dictionary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def open_files(shards: int) -> int:
    """How many files a build of ``shards`` shards has open at once, at most."""
    return _FILES_A_SHARD * shards + _OTHER_FILES


def check_open_files(shards: int) -> None:
    """Raise this process's own limit of open files. Raises NotEnoughRoom when it may not be raised far enough."""
    require_descriptors(open_files(shards), "this build", "give the dataset fewer shards")


def describe(meta: ShardMeta, number: int, sums: Sums) -> ShardMeta:
    """``meta`` for one shard, with its sums as further fields."""
    extra = {name: value for name, value in asdict(sums).items() if name != "records"}
    return replace(meta, shard=number, records=sums.records, extra=extra)
