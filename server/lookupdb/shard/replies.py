"""The RESP replies to keys, by the native kernel: many keys are looked up together, in a fraction of the time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import lmdb
from zstandard import ZstdError

from lookupdb import native
from lookupdb.resp.requests import error, keys_of_gets, keys_of_mget
from lookupdb.shard import limits
from lookupdb.shard.limits import CHUNK_BYTES, READ_BYTES, TIME_SLICE_SECONDS
from lookupdb.shardfile import CLAIMS_SIZE, FRAMED, DamagedValue, ShardReader, bulk_bounds, expand, is_framed

if TYPE_CHECKING:
    from lookupdb._native import ShardKernel


# The reply and the log line for a lookup whose stored value, or the page that it is on, is damaged.


log = logging.getLogger(__name__)

DAMAGED: Final = error(
    "ERR the stored value of this key is damaged: fetch the shard file or build its generation again"
)
"""The reply for such a key: that of a GET, or in the key's place in that of an MGET."""
LOG_SECONDS: Final = 60.0
"""A damaged key may be asked for thousands of times a second: it is logged at once, then once
in this time."""


class DamageReport:
    """Counts damaged lookups in ``slot``, and logs them at a bounded rate."""

    def __init__(self, path: Path, slot: memoryview) -> None:
        self._path = path
        self._slot = slot
        self._logged_at: float | None = None
        self._logged_count = slot[limits.DAMAGED_LOOKUPS]

    def add(self, problem: Exception, lookups: int = 1) -> None:
        """Count lookups that ended in ``problem``, and log it unless one was logged a short while ago."""
        self._slot[limits.DAMAGED_LOOKUPS] += lookups
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
            return
        count = self._slot[limits.DAMAGED_LOOKUPS]
        log.error(
            "%s: a stored value is damaged, and its key is answered with an error: %s; fetch or build the file again",
            self._path,
            problem,
            extra={"lookups": count - self._logged_count},
        )
        self._logged_at, self._logged_count = now, count


# The RESP replies to keys, many at once. A damaged value, or page, is an error for its key alone.
#
# Nearly every batch passes one cheap check of the size and the beginning of each of its replies. A batch that does not
# is looked up again key by key, and every reply is checked to its end.


CHUNK_KEYS: Final = 512
"""Keys looked up at once of a batch larger than a read."""
MISSING: Final = b"\xff\xff"
"""Stands for what is not stored. It begins neither as a plain value nor, below CLAIMS_SIZE, as a compressed one. It has
two bytes, because Python has one object for each single byte: a stored one could be the same.
"""
LOOKUP_FAILURES: Final = (lmdb.Error, ZstdError, DamagedValue, IndexError, MemoryError)
"""Errors of an unchecked lookup of something damaged: ``find_after_failure`` looks the key up again."""


Answer = tuple[bytes, list[bytes], bytes, bool]
"""Replies to lookups; the keys that are still to be answered, and have been counted; the bytes behind these lookups,
which are other requests; and whether those are but the beginning of a lookup, to be given again with what follows.
"""


class KeyReplies(Protocol):
    """Reads replies from a worker's shard, and counts lookups, misses and commands."""

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """Answer the lookups that ``data`` begins with. ``nil`` answers for what is missing."""

    def find(self, key: bytes) -> bytes | None:
        """Count the lookup and return the reply to ``key``: the bulk string stored, or an error where that is damaged.
        None means missing, as is every key that cannot exist.
        """

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """Yield the replies to ``keys``, which have been counted, some at a time."""


class RemainingReplies:
    """The replies to ``keys``, a chunk at a time: ``make_chunk`` returns those to the first of its keys, and how many.

    No generator: it would keep the chunk that it yielded last while its client takes none, and no budget counts that.
    """

    __slots__ = ("_keys", "_make_chunk", "_start")

    def __init__(self, keys: list[bytes], make_chunk: Callable[[list[bytes]], tuple[bytes, int]]) -> None:
        self._keys = keys
        self._make_chunk = make_chunk
        self._start = 0

    def __iter__(self) -> RemainingReplies:
        return self

    def __next__(self) -> bytes:
        if self._start >= len(self._keys):
            raise StopIteration
        replies, count = self._make_chunk(self._keys[self._start : self._start + CHUNK_KEYS])
        self._start += count
        return replies


class StoredReplies:
    """Replies by py-lmdb and zstandard. The native kernels have ``NativeReplies`` for it."""

    def __init__(self, shard: ShardReader, slot: memoryview) -> None:
        self._shard = shard
        self._slot = slot
        self._damage = DamageReport(shard.path, slot)
        self._small = shard.meta.compression == "none" and shard.pages()["overflow_pages"] == 0
        """Whether no reply can be large: nothing is compressed, and no value needed pages of its own (about 2 KB)."""

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """See ``KeyReplies``. All of ``data`` is GETs, or one MGET, or it is other requests."""
        keys = keys_of_gets(data)
        if keys is not None:
            self._slot[limits.COMMANDS] += len(keys)
            return self._first_replies(b"", keys, nil)
        keys = keys_of_mget(data)
        if keys is not None:
            self._slot[limits.COMMANDS] += 1
            return self._first_replies(b"*%d\r\n" % len(keys), keys, nil)
        return b"", [], data, False

    def _first_replies(self, head: bytes, keys: list[bytes], nil: bytes) -> Answer:
        """Return ``head`` with the replies to the first of ``keys``: to all, unless that is too much for one write."""
        self._slot[limits.LOOKUPS] += len(keys)
        replies = self._next_replies(keys, nil)
        remaining = keys[len(replies) :]
        if head:
            replies.insert(0, head)
        return b"".join(replies), remaining, b"", False

    def find(self, key: bytes) -> bytes | None:
        """See ``KeyReplies``."""
        self._slot[limits.LOOKUPS] += 1
        return self._find(key)

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """See ``KeyReplies``."""
        return RemainingReplies(keys, partial(self._make_chunk, nil))

    def _make_chunk(self, nil: bytes, keys: list[bytes]) -> tuple[bytes, int]:
        replies = self._next_replies(keys, nil)
        return b"".join(replies), len(replies)

    def verify(self, key: bytes, reply: bytes) -> bytes | None:
        """Return what ``find`` would, for a key that has been counted and for which ``reply`` was read: MISSING, a bulk
        string, or anything else where the value is large or damaged.
        """
        if reply is MISSING:
            self._slot[limits.MISSES] += 1
            return None
        return reply if is_framed(reply) else self._find(key)

    def find_after_failure(self, key: bytes) -> bytes | None:
        """Return what ``find`` would, for a key that has been counted, after one of LOOKUP_FAILURES."""
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
        self._slot[limits.MISSES] += 1
        return None

    def _next_replies(self, keys: list[bytes], nil: bytes) -> list[bytes]:
        """Return the replies to the first of ``keys``: to all, unless they are too much for one write."""
        try:
            replies = list(map(self._shard.txn.get, keys, repeat(MISSING))) if self._small else self._expand_chunk(keys)
            misses = _count_misses(replies)
        except LOOKUP_FAILURES:
            self._shard.renew()
            return self._find_each(keys, nil)
        if misses:
            self._slot[limits.MISSES] += misses
            return [nil if reply is MISSING else reply for reply in replies]
        return replies

    def _expand_chunk(self, keys: list[bytes]) -> list[bytes]:
        """Return the replies to the first of ``keys``, decompressed and unchecked: to all, or to about CHUNK_BYTES."""
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

    def _find_each(self, keys: list[bytes], nil: bytes) -> list[bytes]:
        size, replies = 0, []
        for key in keys:
            reply = self._find(key) or nil
            replies.append(reply)
            size += len(reply)
            if size > CHUNK_BYTES:
                break
        return replies


def _count_misses(replies: list[bytes]) -> int:
    """Count those of ``replies`` that are MISSING. Raises DamagedValue unless each other is one bulk string, which
    cannot disturb those behind it.
    """
    (heads, ends), misses = bulk_bounds(), 0
    try:
        for reply in replies:
            size = len(reply)
            if not heads[size] <= reply < ends[size]:
                if reply is not MISSING:
                    raise DamagedValue("a reply is not one RESP bulk string")
                misses += 1
    except IndexError:  # a large one
        return _count_misses_with_large(replies)
    return misses


def _count_misses_with_large(replies: list[bytes]) -> int:
    """Do what ``_count_misses`` does, for replies some of which are large."""
    found = [reply for reply in replies if reply is not MISSING]
    if not all(map(is_framed, found)):
        raise DamagedValue("a reply is not one RESP bulk string")
    return len(replies) - len(found)


_PLACES = (limits.LOOKUPS, limits.MISSES, limits.COMMANDS, limits.SENT_BYTES)


def open_native_replies(shard: ShardReader, slot: memoryview) -> NativeReplies | None:
    """Open the file of ``shard`` a second time, for the native kernel. None where there is none, or where it does not
    know the file's format: then Python serves it.
    """
    module = native.kernels()
    if module is None:
        return None
    try:
        kernel = module.ShardKernel(
            shard.path,
            slot,
            _PLACES,
            DAMAGED,
            read_bytes=READ_BYTES,
            chunk_bytes=CHUNK_BYTES,
            slice_seconds=TIME_SLICE_SECONDS,
        )
    except (OSError, ValueError) as problem:
        log.warning("%s: served by Python, because the native kernel cannot: %s", shard.path, problem)
        return None
    return NativeReplies(kernel, DamageReport(shard.path, slot))


class NativeReplies:
    """Reads replies by ``kernel``, which counts in the worker's slot. Its twin is ``StoredReplies``."""

    def __init__(self, kernel: ShardKernel, damage: DamageReport) -> None:
        self.kernel = kernel
        self._damage = damage

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """See ``KeyReplies``."""
        answer = self.kernel.answer(data, nil)
        self.report_damage()
        return answer

    def find(self, key: bytes) -> bytes | None:
        """See ``KeyReplies``."""
        reply = self.kernel.find(key)
        return DAMAGED if self.report_damage() else reply

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """See ``KeyReplies``."""
        return RemainingReplies(keys, partial(self._make_chunk, nil))

    def _make_chunk(self, nil: bytes, keys: list[bytes]) -> tuple[bytes, int]:
        chunk = self.kernel.replies(keys, nil)
        self.report_damage()
        return chunk

    def report_damage(self) -> bool:
        """Report the lookups of something damaged since the last call; whether there were any."""
        damage = self.kernel.take_damage()
        if damage is None:
            return False
        lookups, problem = damage
        self._damage.add(DamagedValue(problem), lookups)
        return True
