"""Writes one shard file: records in key order, in transactions whose ends depend on the records alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from lookupdb import disk, shard_name
from lookupdb.build.write.packing import Item, ShareSums, overflows_page
from lookupdb.errors import NotEnoughRoom, StoreError
from lookupdb.manifest import ShardFile
from lookupdb.shardfile import META, META_DICTIONARY, META_FORMAT, META_MANIFEST, RECORDS, ShardMeta
from lookupdb.store.dataset import file_sha256

_FIRST_MAP_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_NODE_BYTES: Final = 16
"""What LMDB adds to a record, approximately."""
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
    """The errno that keeps the file at ``path`` from growing; 0 if it can grow.

    LMDB reports an input/output error when a disk takes only the first part of a write; a write of our own gets the
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
    hint = "make room there, or give another --store (of `lookupdb up`: --data-dir)"
    return NotEnoughRoom(f"no room left for {path}: {reason}", hint=hint)


@dataclass(slots=True)
class ShardSums:
    """The sums over a shard's records, in bytes."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    overflow_bytes: int = 0
    """Of stored values on overflow pages."""
    largest_value_bytes: int = 0
    """Of one value as lookups return it."""


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
        """Add records, which follow all earlier ones in key order.

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
        # LMDB does not raise for a key that is out of order or a duplicate: it stops, or counts less.
        if not consumed == added == len(items):
            raise AssertionError(f"{self.path}: {added} of {len(items)} records were appended: keys out of order")
        self._pending += cost
        if self._pending > self._transaction_bytes:
            self._commit()  # a single record is larger than a transaction may be: do not keep it in memory

    def _make_room(self, needed_bytes: int) -> None:
        """Grow the map until it can take ``needed_bytes`` more bytes of records.

        Three times as much, because a record of half a page may fill a whole one, and a branch page holds seven long
        keys.
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
        """Write the file's metadata, sync it to the disk, and describe it."""
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
            return ShardFile(self.path.name, size, self.sums.records, file_sha256(self.path))

    def close(self) -> None:
        """Abandon the file as it is. May be called twice."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        self._env.close()
