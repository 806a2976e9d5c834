"""From keys to the RESP replies for them, many at once. One damaged value, or page, is an error for its key alone.

Nearly every batch passes one cheap look at the size and the beginning of each of its replies. Where one does not, the
batch is looked up again key by key, with care.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final

import lmdb
from zstandard import ZstdError

from lookupdb.serve import counted
from lookupdb.serve.damage import DAMAGED, DamageReport
from lookupdb.shardfile import BULK_ENDS, BULK_HEADS, CLAIMS_SIZE, FRAMED, DamagedValue, ShardReader, expand, is_framed

CHUNK_BYTES: Final = 64 << 10
"""Of replies to a batch: more are made when these have been sent."""
CHUNK_KEYS: Final = 512
"""Of a batch larger than a read."""
MISSING: Final = b"\xff\xff"
"""Stands for what is not stored. It begins as neither a plain value does nor a compressed one below CLAIMS_SIZE, and
is longer than a byte: Python has but one object for each value of a byte, so that a stored one could be the same.
"""
SUSPECT: Final = (lmdb.Error, ZstdError, DamagedValue, IndexError, MemoryError)
"""What a lookup without care ends in where something is damaged: look the key up again by ``find_again``."""


class Lookups:
    """What a worker reads of its shard, counted in ``slot``."""

    def __init__(self, shard: ShardReader, slot: memoryview) -> None:
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

    def begin(self, head: bytes, keys: list[bytes], nil: bytes) -> tuple[bytes, int]:
        """``head`` with the replies to the first of ``keys``, and how many these are: all, unless that is too much for
        one write.

        All of ``keys`` are counted. ``nil`` answers for what is missing.
        """
        self._slot[counted.LOOKUPS] += len(keys)
        replies = self._chunk(keys, nil)
        count = len(replies)
        if head:
            replies.insert(0, head)
        return b"".join(replies), count

    def rest(self, keys: list[bytes], nil: bytes, start: int) -> Iterator[bytes]:
        """The replies to ``keys[start:]``, which have been counted: some at a time, as they are asked for."""
        while start < len(keys):
            replies = self._chunk(keys[start : start + CHUNK_KEYS], nil)
            yield b"".join(replies)
            start += len(replies)

    def check(self, key: bytes, reply: bytes) -> bytes | None:
        """As ``find``, for a key that has been counted and for which ``reply`` was found: MISSING, a bulk string, or
        anything else where the value is large or damaged.
        """
        if reply is MISSING:
            self._slot[counted.MISSES] += 1
            return None
        return reply if is_framed(reply) else self._find(key)

    def find_again(self, key: bytes) -> bytes | None:
        """As ``find``, for a key that has been counted, after one of SUSPECT."""
        self._shard.renew()
        return self._find(key)

    def _find(self, key: bytes) -> bytes | None:
        try:
            stored = self._shard.txn.get(key, MISSING) if key else MISSING
            if stored is not MISSING:
                return expand(stored, self._shard.inflate)
        except lmdb.Error as problem:
            self._shard.renew()
            self._damage.add(problem)
            return DAMAGED
        except DamagedValue as problem:
            self._damage.add(problem)
            return DAMAGED
        self._slot[counted.MISSES] += 1
        return None

    def _chunk(self, keys: list[bytes], nil: bytes) -> list[bytes]:
        """The replies to the first of ``keys``: to all, unless they are too much for one write."""
        try:
            replies = list(map(self._shard.txn.get, keys, repeat(MISSING))) if self._small else self._expanded(keys)
            misses = _count_misses(replies)
        except SUSPECT:
            self._shard.renew()
            return self._one_by_one(keys, nil)
        if misses:
            self._slot[counted.MISSES] += misses
            return [nil if reply is MISSING else reply for reply in replies]
        return replies

    def _expanded(self, keys: list[bytes]) -> list[bytes]:
        """What is stored under the first of ``keys``, decompressed, not yet known to be whole."""
        inflate, size, replies = self._shard.inflate, 0, []
        for stored in map(self._shard.txn.get, keys, repeat(MISSING)):
            first = stored[0]
            if first == FRAMED:
                reply = stored
            elif first < CLAIMS_SIZE:
                reply = inflate(stored)
            else:
                reply = stored if stored is MISSING else expand(stored, inflate)
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


def _count_misses(replies: list[bytes]) -> int:
    """How many of ``replies`` are MISSING. Raises DamagedValue unless each other is one bulk string: none can disturb
    those behind it.
    """
    heads, ends, misses = BULK_HEADS, BULK_ENDS, 0
    try:
        for reply in replies:
            size = len(reply)
            if not heads[size] <= reply < ends[size]:
                if reply is not MISSING:
                    raise DamagedValue("a reply is not one RESP bulk string")
                misses += 1
    except IndexError:  # a large one
        return _count_misses_of_any(replies)
    return misses


def _count_misses_of_any(replies: list[bytes]) -> int:
    """As ``_count_misses``, of replies some of which are large."""
    found = [reply for reply in replies if reply is not MISSING]
    if not all(map(is_framed, found)):
        raise DamagedValue("a reply is not one RESP bulk string")
    return len(replies) - len(found)
