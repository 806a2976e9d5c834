"""A sample of the values, for training the compression dictionary: the same for the same records, in any order."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest as rank_of

__all__ = ["Sample", "rank_of"]


class Sample:
    """Keeps the values whose keys have the smallest hashes, up to a number of bytes."""

    def __init__(self, max_bytes: int, max_values: int) -> None:
        self._max_bytes, self._max_values = max_bytes, max_values
        self._kept: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self.bound = 1 << 64
        """A key with this hash or a larger one is not kept: nothing need be told of it."""

    def keep(self, rank: int, place: int, value: bytes) -> None:
        """Keep the value whose key has the hash ``rank``, below ``bound``; ``place`` orders equal keys."""
        self._kept.append((rank, place, value))
        self._bytes += len(value)
        if self._bytes > 2 * self._max_bytes or len(self._kept) > 2 * self._max_values:
            self._cut()

    def _cut(self) -> None:
        self._kept.sort()
        kept = held = 0
        for _, _, value in self._kept[: self._max_values]:
            if held + len(value) > self._max_bytes and kept:
                break
            held += len(value)
            kept += 1
        if kept < len(self._kept):
            self.bound = self._kept[kept][0]
            del self._kept[kept:]
            self._bytes = held

    def values(self) -> list[bytes]:
        """The sample, by hash."""
        self._cut()
        return [value for _, _, value in self._kept]
