"""The RESP replies to keys, by the native kernel: many keys are looked up together, in a fraction of the time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from lookupdb import native
from lookupdb.serve import shard_counters
from lookupdb.serve.damage import DAMAGED, DamageReport
from lookupdb.serve.limits import CHUNK_BYTES, READ_BYTES, TIME_SLICE_SECONDS
from lookupdb.serve.stored_replies import Answer, RemainingReplies
from lookupdb.shardfile import DamagedValue, ShardReader

if TYPE_CHECKING:
    from lookupdb._native import ShardKernel

log = logging.getLogger(__name__)

_PLACES = (shard_counters.LOOKUPS, shard_counters.MISSES, shard_counters.COMMANDS, shard_counters.SENT_BYTES)


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
