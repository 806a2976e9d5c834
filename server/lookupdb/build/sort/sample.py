"""A sample of the values, for training the compression dictionary: the same for the same records, in any order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest as rank_of

from lookupdb.build.sort.runs import Record

__all__ = ["Sample", "rank_of"]

_MOST_VALUES: Final = 200_000
_RANK_BYTES: Final = 8
_RANKS: Final = 1 << 8 * _RANK_BYTES
_AMPLE: Final = 8
"""The sample is full as long as values make up more than an eighth of the source; else it holds so much less."""


class Sample:
    """Keeps the values whose keys have the smallest hashes, up to a number of bytes."""

    def __init__(self, max_bytes: int, source_bytes: int = 0) -> None:
        """``max_bytes`` 0: nothing is kept.

        Of a source of ``source_bytes``, what will not be kept in the end is mostly left out from the start: filling
        and cutting the sample for every slice of a large source was an eighth of the time to read it.
        """
        self._max_bytes = max_bytes
        self._kept: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self.bound = min(_RANKS, _RANKS * _AMPLE * max_bytes // max(1, source_bytes)) if max_bytes else 0
        """A key with this hash or a larger one is not kept: nothing need be told of it."""

    def keep(self, rank: int, place: int, value: bytes) -> None:
        """Keep the value whose key has the hash ``rank``, below ``bound``; ``place`` orders equal keys."""
        self._kept.append((rank, place, value))
        self._bytes += len(value)
        if self._bytes > 2 * self._max_bytes or len(self._kept) > 2 * _MOST_VALUES:
            self._cut()

    def _cut(self) -> None:
        self._kept.sort()
        kept = held = 0
        for _, _, value in self._kept[:_MOST_VALUES]:
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

    def records(self) -> list[Record]:
        """The sample as a run can hold it: the hash for a key."""
        self._cut()
        return [(rank.to_bytes(_RANK_BYTES, "big"), place, value) for rank, place, value in self._kept]

    def add(self, records: Iterable[Record]) -> None:
        """What another sample's ``records`` gave."""
        for rank_bytes, place, value in records:
            rank = int.from_bytes(rank_bytes, "big")
            if rank < self.bound:
                self.keep(rank, place, value)
