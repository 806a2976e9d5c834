"""Files as LMDB writes them, of any history, and where in their bytes pages and nodes are."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import lmdb

from lookupdb import shardfile

PAGE: Final = 4096
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
"""A page's flags."""

Changes = Mapping[bytes, bytes | None]
"""The values that a transaction puts; None deletes."""


def write_lmdb(
    path: Path, transactions: Sequence[Changes], *, dictionary: bytes = b"", dupsort: bool = False, spare_pages: int = 0
) -> Path:
    """Write a file with these transactions on ``records``. Cut it ``spare_pages`` after its last page."""
    with lmdb.open(str(path), subdir=False, lock=False, sync=False, max_dbs=2, map_size=1 << 30) as env:
        records, meta = env.open_db(shardfile.RECORDS, dupsort=dupsort), env.open_db(shardfile.META)
        for changes in transactions:
            with env.begin(write=True, db=records) as txn:
                for key, value in changes.items():
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value)
        if dictionary:
            with env.begin(write=True, db=meta) as txn:
                txn.put(shardfile.META_DICTIONARY, dictionary)
        pages = env.info()["last_pgno"] + 1 + spare_pages
    os.truncate(path, pages * PAGE)
    return path


def read_lmdb(path: Path, keys: Sequence[bytes] = ()) -> tuple[list[tuple[bytes, bytes]], list[bytes | None]]:
    """All records as py-lmdb reads them, and what it finds under ``keys``."""
    with lmdb.open(str(path), subdir=False, lock=False, readonly=True, max_dbs=2) as env:
        records = env.open_db(shardfile.RECORDS, create=False)
        with env.begin(db=records) as txn, txn.cursor() as cursor:
            return list(cursor), [txn.get(key) if key else None for key in keys]


def u16(content: bytes | bytearray, offset: int) -> int:
    """The number there."""
    return int(struct.unpack_from("<H", content, offset)[0])


def pages_of(content: bytes | bytearray, kind: int) -> Iterator[int]:
    """The numbers of the pages that have the flags ``kind`` and begin with their own number."""
    for number in range(len(content) // PAGE):
        if struct.unpack_from("<Q", content, number * PAGE)[0] == number and u16(content, number * PAGE + 10) == kind:
            yield number


def nodes_of(content: bytes | bytearray, page: int) -> Iterator[int]:
    """The offsets in the file of a page's nodes."""
    start = page * PAGE
    for slot in range(start + 16, start + u16(content, start + 12), 2):
        yield start + u16(content, slot)


def keys_on(content: bytes | bytearray, page: int) -> list[bytes]:
    """The keys of a page's nodes."""
    return [bytes(content[node + 8 : node + 8 + u16(content, node + 6)]) for node in nodes_of(content, page)]
