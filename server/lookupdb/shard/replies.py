"""The RESP replies to keys of the shard, checked for damage. A damaged value or page is an error for its key alone.

``NativeReplies`` looks many keys up together in a fraction of the time; ``StoredReplies`` is the Python fallback.
Nearly every batch passes one cheap check of the size and beginning of each reply. A batch that does not is looked up
again key by key, with every reply checked to its end.
"""

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


log = logging.getLogger(__name__)

DAMAGED: Final = error(
    "ERR the stored value of this key is damaged: fetch the shard file or build its generation again"
)
"""The reply for a damaged key, to a GET or within that to an MGET."""
LOG_SECONDS: Final = 60.0
"""Interval of log lines: a damaged key may be requested thousands of times per second."""


class DamageReport:
    """Counts damaged lookups in ``slot``, and logs them at a limited rate."""

    def __init__(self, path: Path, slot: memoryview) -> None:
        self._path = path
        self._slot = slot
        self._logged_at: float | None = None
        self._logged_count = slot[limits.DAMAGED_LOOKUPS]

    def add(self, problem: Exception, lookups: int = 1) -> None:
        """Count lookups that ended in ``problem``, and log it unless one was logged recently."""
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


CHUNK_KEYS: Final = 512
"""Keys per lookup of a batch that is larger than a read."""
MISSING: Final = b"\xff\xff"
"""The place of a missing key. It begins neither like a plain value nor, below CLAIMS_SIZE, like a compressed one. It
has two bytes, because Python shares one object for each single byte, and a stored value could be the same object.
"""
LOOKUP_FAILURES: Final = (lmdb.Error, ZstdError, DamagedValue, IndexError, MemoryError)
"""Errors of an unchecked lookup of damaged data. ``find_after_failure`` then looks the key up again."""


Answer = tuple[bytes, list[bytes], bytes, bool]
"""Replies to lookups; counted keys that are still to be answered; the bytes of other requests behind these lookups; and
whether these bytes are only the beginning of a lookup, to be passed again with more.
"""


class KeyReplies(Protocol):
    """Reads replies from a worker's shard, and counts lookups, misses and commands."""

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """Answer the lookups at the beginning of ``data``, with ``nil`` for missing keys."""

    def find(self, key: bytes) -> bytes | None:
        """Count the lookup, and return the reply to ``key``: the stored bulk string, or an error if it is damaged. None
        if it is missing, like every key that cannot exist.
        """

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """Yield the replies to ``keys``, which were counted, in chunks."""


class RemainingReplies:
    """Iterates over the replies to ``keys`` in chunks. ``make_chunk`` returns the replies to its first keys, and their
    number.

    A generator would keep its last chunk while the client does not read, which no budget counts.
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
    """Replies with py-lmdb and zstandard: the Python fallback of ``NativeReplies``."""

    def __init__(self, shard: ShardReader, slot: memoryview) -> None:
        self._shard = shard
        self._slot = slot
        self._damage = DamageReport(shard.path, slot)
        self._small = shard.meta.compression == "none" and shard.pages()["overflow_pages"] == 0
        """Whether every reply is small: without compression, and with no value on pages of its own (about 2 KB)."""

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """See ``KeyReplies``. Answers only if all of ``data`` is GETs or one MGET."""
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
        """Return ``head`` and the replies to the first of ``keys``, or to all if they fit one write."""
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
        """Return what ``find`` would for a counted key for which ``reply`` was read: MISSING, a bulk string, or
        anything else if the value is large or damaged.
        """
        if reply is MISSING:
            self._slot[limits.MISSES] += 1
            return None
        return reply if is_framed(reply) else self._find(key)

    def find_after_failure(self, key: bytes) -> bytes | None:
        """Return what ``find`` would for a counted key after one of LOOKUP_FAILURES."""
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
        """Return the replies to the first of ``keys``, or to all if they fit one write."""
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
        """Return replies, decompressed and unchecked, to all of ``keys`` or to the first, about CHUNK_BYTES."""
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
    """Count MISSING in ``replies``. Raises DamagedValue unless each other reply is exactly one bulk string, which
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
    except IndexError:  # a large reply
        return _count_misses_with_large(replies)
    return misses


def _count_misses_with_large(replies: list[bytes]) -> int:
    """Like ``_count_misses``, for replies that include large ones."""
    found = [reply for reply in replies if reply is not MISSING]
    if not all(map(is_framed, found)):
        raise DamagedValue("a reply is not one RESP bulk string")
    return len(replies) - len(found)


_PLACES = (limits.LOOKUPS, limits.MISSES, limits.COMMANDS, limits.SENT_BYTES)


def open_native_replies(shard: ShardReader, slot: memoryview) -> NativeReplies | None:
    """Open the file of ``shard`` a second time, for the native kernel. Return None without a kernel, or if it does not
    know the file's format.
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
    """Replies with ``kernel``, which counts in the worker's slot."""

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
        """Report damaged lookups since the last call. Return whether there were any."""
        damage = self.kernel.take_damage()
        if damage is None:
            return False
        lookups, problem = damage
        self._damage.add(DamagedValue(problem), lookups)
        return True
