"""Writes all shard files of a generation side by side from one stream in key order.

What a file holds byte for byte depends on its records alone: transactions end where records say, never where a batch
of the stream happened to end or where memory ran short.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import lmdb

from lookupdb import shardfile
from lookupdb.build.compress import Compressor
from lookupdb.build.duplicates import Record
from lookupdb.errors import NotEnoughRoom, StoreError
from lookupdb.keys import shard_of
from lookupdb.manifest import ShardFile, Totals
from lookupdb.shardfile import META, META_DICTIONARY, META_FORMAT, META_MANIFEST, RECORDS, ShardMeta, frame
from lookupdb.store.dataset import sha256_of

DIRTY_BYTES: Final = 32 << 20
"""What all shards together hold in memory before it is written; a transaction's share of it is at least
``_MIN_TRANSACTION_BYTES``, because each costs some pages."""
_MIN_TRANSACTION_BYTES: Final = 256 << 10
_FIRST_MAP_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_LARGEST_NODE: Final = 2038
"""LMDB puts a value on pages of its own when key, value and 8 bytes are together longer than this."""

Item = tuple[bytes, bytes, int]
"""Key, stored value, length of the value as the source gave it."""


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what LMDB and the file system say into the error a user can act on."""
    try:
        yield
    except lmdb.Error as error:
        if any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
            raise _full(path, error) from error
        raise StoreError(f"cannot write {path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _full(path, error) from error
        raise StoreError(f"cannot write {path}: {error}") from error


def _full(path: Path, error: Exception) -> NotEnoughRoom:
    return NotEnoughRoom(f"the disk is full while writing {path}: {error}", hint="make room, or give another --store")


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

    def append(self, items: list[Item]) -> None:
        """Add records, in key order after all that were added. Raises NotEnoughRoom, StoreError."""
        with write_errors(self.path):
            cost = sum([_cost(key, stored) for key, stored, _ in items])
            if self._pending + cost <= self._transaction_bytes:
                self._put(items, cost)
            else:
                self._put_one_by_one(items)
        sums = self.sums
        sums.records += len(items)
        sums.key_bytes += sum([len(key) for key, _, _ in items])
        sums.value_bytes += sum([length for _, _, length in items])
        sums.stored_bytes += sum([len(stored) for _, stored, _ in items])
        sums.overflow_bytes += sum([len(stored) for key, stored, _ in items if _overflows(key, stored)])

    def _put_one_by_one(self, items: list[Item]) -> None:
        """Ends the transaction at the very record that would make it too large."""
        for item in items:
            cost = _cost(item[0], item[1])
            if self._pending + cost > self._transaction_bytes:
                self._commit()
            self._put([item], cost)

    def _put(self, items: list[Item], cost: int) -> None:
        if not items:
            return
        if self._txn is None:
            self._make_room(max(cost, self._transaction_bytes))
            self._txn = self._env.begin(write=True, db=self._records)
        with self._txn.cursor() as cursor:
            consumed, added = cursor.putmulti([(key, stored) for key, stored, _ in items], append=True)
        # LMDB does not raise for a key that is out of order or there already: it stops, or counts less.
        if not consumed == added == len(items):
            raise AssertionError(f"{self.path}: {added} of {len(items)} records were appended: keys out of order")
        self._pending += cost

    def _make_room(self, needed: int) -> None:
        """Let the map hold ``needed`` more bytes of records; twice, because append may leave pages half full."""
        used = (self._env.info()["last_pgno"] + 1) * _PAGE_BYTES
        while self._map_bytes < used + 2 * needed + _FIRST_MAP_BYTES // 2:
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


def _cost(key: bytes, stored: bytes) -> int:
    """About what a record takes in the file."""
    return len(key) + len(stored) + (_PAGE_BYTES if _overflows(key, stored) else 16)


class GenerationWriter:
    """All shard files of a generation. Use as a context manager: leaving it closes the files."""

    def __init__(self, folder: Path, meta: ShardMeta, dictionary: bytes, threads: int) -> None:
        """``meta`` describes every shard but for its number and records."""
        self._meta = meta
        self._dictionary = dictionary
        self._threads = threads
        self._compressor = Compressor(dictionary, threads) if meta.compression == "zstd" else None
        share = max(_MIN_TRANSACTION_BYTES, DIRTY_BYTES // meta.shards)
        self._stack = ExitStack()
        with self._stack as stack:
            names = [shardfile.file_name(number, meta.shards) for number in range(meta.shards)]
            self._shards = [stack.enter_context(closing(ShardWriter(folder / name, share))) for name in names]
            self._stack = stack.pop_all()

    def write(self, batches: Iterable[list[Record]]) -> Iterator[int]:
        """Write records in key order, each key once; yields how many were written, batch by batch.

        While one batch is compressed, the one before it is written.
        """
        with ThreadPoolExecutor(1, "compress") as pool:
            ahead: tuple[list[Record], Future[list[bytes]]] | None = None
            for batch in batches:
                following = batch, pool.submit(self._store, [frame(value) for _, value, _, _ in batch])
                if ahead:
                    yield self._append(ahead[0], ahead[1].result())
                ahead = following
            if ahead:
                yield self._append(ahead[0], ahead[1].result())

    def _store(self, framed: list[bytes]) -> list[bytes]:
        return self._compressor.store(framed) if self._compressor else framed

    def _append(self, batch: list[Record], stored: list[bytes]) -> int:
        shards = len(self._shards)
        groups: list[list[Item]] = [[] for _ in range(shards)]
        for (key, value, _, _), one in zip(batch, stored, strict=True):
            groups[shard_of(key, shards)].append((key, one, len(value)))
        for shard, group in zip(self._shards, groups, strict=True):
            shard.append(group)
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


def describe(meta: ShardMeta, number: int, sums: Sums) -> ShardMeta:
    """``meta`` for one shard, with its sums as further fields."""
    extra = {name: value for name, value in asdict(sums).items() if name != "records"}
    return replace(meta, shard=number, records=sums.records, extra=extra)
