"""The RESP replies to keys of the shard, checked for damage. A damaged value or page is an error for its key alone.

``NativeReplies`` looks many keys up together in a fraction of the time; ``KeyReplies`` is the Python fallback, which
looks up one key after the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from lookupdb import native
from lookupdb.resp.requests import error
from lookupdb.shard import limits
from lookupdb.shard.limits import CHUNK_BYTES, READ_BYTES, TIME_SLICE_SECONDS
from lookupdb.shardfile import DamagedValue, ShardReader, expand

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

Answer = tuple[bytes, list[bytes], bytes, bool]
"""Replies to lookups; counted keys that are still to be answered; the bytes of other requests behind these lookups; and
whether these bytes are only the beginning of a lookup, to be passed again with more.
"""


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


class KeyReplies:
    """Reads replies from a worker's shard, and counts lookups and misses: the Python fallback."""

    def __init__(self, shard: ShardReader, slot: memoryview) -> None:
        self._shard = shard
        self._slot = slot
        self._damage = DamageReport(shard.path, slot)

    def answer(self, data: bytes, nil: bytes) -> Answer:
        """Answer the lookups at the beginning of ``data``, with ``nil`` for missing keys. This class leaves all of them
        to the parser of requests."""
        return b"", [], data, False

    def find(self, key: bytes) -> bytes | None:
        """Count the lookup, and return the reply to ``key``: the stored bulk string, or an error if it is damaged. None
        if it is missing, like every key that cannot exist.
        """
        self._slot[limits.LOOKUPS] += 1
        return self._find(key)

    def remaining_replies(self, keys: list[bytes], nil: bytes) -> Iterator[bytes]:
        """Yield the replies to ``keys``, which were counted, in chunks."""
        return RemainingReplies(keys, partial(self._make_chunk, nil))

    def _make_chunk(self, nil: bytes, keys: list[bytes]) -> tuple[bytes, int]:
        size, replies = 0, []
        for key in keys:
            reply = self._find(key) or nil
            replies.append(reply)
            size += len(reply)
            if size > CHUNK_BYTES:
                break
        return b"".join(replies), len(replies)

    def _find(self, key: bytes) -> bytes | None:
        try:
            stored = self._shard.txn.get(key) if key else None
            if stored is not None:
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


class NativeReplies(KeyReplies):
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
