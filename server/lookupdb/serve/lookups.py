"""From keys to the RESP replies for them, many at once. One damaged value, or page, is an error for its key alone.

Nearly every batch is read and checked by a few operations of C speed. Where one of its keys does not pass, the batch
is looked up again key by key, with care.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final

import lmdb
from zstandard import ZstdError

from lookupdb.serve import counted
from lookupdb.serve.damage import DAMAGED, DamageReport
from lookupdb.shardfile import BULK_HEADS, CLAIMS_SIZE, FRAMED, DamagedValue, Shard, expand, is_framed

CHUNK_BYTES: Final = 64 << 10
"""Of replies to a batch: more are made when these have been sent."""
CHUNK_KEYS: Final = 512
"""Of a batch larger than a read."""
MISSING: Final = b"_"
"""Stands for what is not stored. It begins as neither a plain nor a compressed value does."""

_HEADS: Final = [BULK_HEADS[0], MISSING, *BULK_HEADS[2:]]
_head = _HEADS.__getitem__


class Lookups:
    """What a worker reads of its shard, counted in ``slot``."""

    def __init__(self, shard: Shard, slot: memoryview) -> None:
        self._shard = shard
        self._slot = slot
        self._damage = DamageReport(shard.path, slot)
        self._small = shard.meta.compression == "none" and shard.pages()["overflow_pages"] == 0
        """Whether no reply can be large: nothing is compressed, and no value needed pages of its own (about 2 KB)."""

    def find(self, key: bytes) -> bytes | None:
        """The reply to ``key``, counted: the bulk string stored, or an error where it is damaged; None: missing, as is
        every key that cannot exist.
        """
        self._slot[counted.LOOKUPS] += 1
        return self._find(key)

    def begin(self, keys: list[bytes], nil: bytes) -> tuple[bytes, int]:
        """The replies to the first of ``keys``, and how many they are: all, unless that is too much for one write.

        All of ``keys`` are counted. ``nil`` answers for what is missing.
        """
        self._slot[counted.LOOKUPS] += len(keys)
        replies = self._chunk(keys, nil)
        return b"".join(replies), len(replies)

    def rest(self, keys: list[bytes], nil: bytes, start: int) -> Iterator[bytes]:
        """The replies to ``keys[start:]``, which have been counted: some at a time, as they are asked for."""
        while start < len(keys):
            replies = self._chunk(keys[start : start + CHUNK_KEYS], nil)
            yield b"".join(replies)
            start += len(replies)

    def reply(self, stored: bytes) -> bytes | None:
        """The reply to a key under which ``stored`` is stored, None for MISSING. Misses are counted."""
        if stored is MISSING:
            self._slot[counted.MISSES] += 1
            return None
        try:
            return expand(stored, self._shard.inflate)
        except DamagedValue as problem:
            self._damage.add(problem)
            return DAMAGED

    def find_again(self, key: bytes) -> bytes | None:
        """As ``find``, for a key that has been counted, after an error of LMDB."""
        self._shard.renew()
        return self._find(key)

    def _find(self, key: bytes) -> bytes | None:
        try:
            return self.reply(self._shard.txn.get(key, MISSING) if key else MISSING)
        except lmdb.Error as problem:
            self._shard.renew()
            self._damage.add(problem)
            return DAMAGED

    def _chunk(self, keys: list[bytes], nil: bytes) -> list[bytes]:
        """The replies to the first of ``keys``: to all, unless they are too much for one write."""
        try:
            replies = list(map(self._shard.txn.get, keys, repeat(MISSING))) if self._small else self._expanded(keys)
            whole = _are_whole(replies)
        except lmdb.Error:
            self._shard.renew()
            return self._one_by_one(keys, nil)
        except (DamagedValue, ZstdError, IndexError, MemoryError):
            return self._one_by_one(keys, nil)
        misses = replies.count(MISSING)
        if misses:
            replies = [nil if reply is MISSING else reply for reply in replies]
            whole = whole and MISSING not in replies
        if not whole:
            return self._one_by_one(keys, nil)
        self._slot[counted.MISSES] += misses
        return replies

    def _expanded(self, keys: list[bytes]) -> list[bytes]:
        """What is stored under the first of ``keys``, decompressed, not yet known to be whole."""
        inflate, size, replies = self._shard.inflate, 0, []
        for stored in map(self._shard.txn.get, keys, repeat(MISSING)):
            first = stored[0]
            if first == FRAMED or stored is MISSING:
                reply = stored
            elif first < CLAIMS_SIZE:
                reply = inflate(stored)
            else:
                reply = expand(stored, inflate)
            replies.append(reply)
            size += len(reply)
            if size > CHUNK_BYTES:
                break
        return replies

    def _one_by_one(self, keys: list[bytes], nil: bytes) -> list[bytes]:
        size, replies = 0, []
        for key in keys:
            reply = self._find(key) or nil
            replies.append(reply)
            size += len(reply)
            if size > CHUNK_BYTES:
                break
        return replies


def _are_whole(replies: list[bytes]) -> bool:
    """Whether each of ``replies`` is one bulk string or MISSING: none can disturb those behind it."""
    try:
        return all(map(bytes.startswith, replies, map(_head, map(len, replies))))
    except IndexError:
        return all(reply is MISSING or is_framed(reply) for reply in replies)
