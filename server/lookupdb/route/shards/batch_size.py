"""How many keys the next batch may have: by the size of the values that came lately, and by how long they took."""

from __future__ import annotations

from typing import Final

BATCH_KEYS: Final = 256
"""A batch is sent once it has so many keys."""
FIRST_KEYS: Final = 128
"""Of a lane's first batch, before any value was seen; that of a lane for large work has one."""
SLICE_KEYS: Final = 64
"""A request's keys of one shard are cut into slices of so many: a batch has fewer than BATCH_KEYS + SLICE_KEYS."""
BATCH_BYTES: Final = 512 * 1024
"""An answer should have no more bytes, unless it is one value: small work may have to wait for it."""
LARGE_SLICE_BYTES: Final = 64 * 1024
"""A slice whose values are expected to be larger is large work."""
_TIMED_BYTES: Final = 64 * 1024
"""Only an answer of so many bytes shows that values come slowly; a small one may have waited for this process."""
_UNCUT_BYTES: Final = BATCH_BYTES // SLICE_KEYS
"""Of a value: up to so many, slices have SLICE_KEYS."""


class BatchSize:
    """Follows the answers of one lane. An answer should take no longer than ``target_seconds``."""

    __slots__ = ("_target_seconds", "keys", "slice_keys", "value_bytes")

    def __init__(self, target_seconds: float, first_keys: int = FIRST_KEYS) -> None:
        self._target_seconds = target_seconds
        self.keys = first_keys
        """At most so many in the next batch."""
        self.value_bytes = 0.0
        """What a key's answer is expected to be: the mean of the last batch, or half of what was expected before it."""
        self.slice_keys = SLICE_KEYS
        """How many keys of one request stay together, by ``value_bytes``."""

    def measure(self, keys: int, received: int, seconds: float) -> None:
        """Learn from a batch of ``keys`` that was answered with ``received`` bytes in ``seconds``."""
        mean, half = received / keys, self.value_bytes / 2
        self.value_bytes = mean if mean > half else half
        if mean > _UNCUT_BYTES or self.slice_keys != SLICE_KEYS:
            self.slice_keys = fitting_slice_keys(self.value_bytes)
        if received <= BATCH_BYTES and self.keys == BATCH_KEYS:
            return
        fitting = BATCH_BYTES // max(self.value_bytes, 1)
        if received > _TIMED_BYTES and seconds > self._target_seconds:
            fitting = min(fitting, keys * self._target_seconds / seconds)
        self.keys = max(1, int(min(fitting, 2 * self.keys, BATCH_KEYS)))

    def shrink(self) -> None:
        """Have fewer keys in the next batch: one was not answered in time."""
        self.keys = max(1, self.keys // 4)


def fitting_slice_keys(value_bytes: float) -> int:
    """How many keys of one request stay together when a key's answer is expected to have ``value_bytes``."""
    return max(1, min(SLICE_KEYS, int(BATCH_BYTES // max(value_bytes, 1))))
