"""A sample of the values, to train the compression dictionary on. It depends on the records, not on their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest as rank_key

from lookupdb.build.sort.runs import Record

__all__ = ["Sample", "rank_key"]

_MAX_VALUES: Final = 200_000
_RANK_BYTES: Final = 8
_RANKS: Final = 1 << 8 * _RANK_BYTES
_AMPLE: Final = 8
"""The sample fills up if values are more than an eighth of the source; otherwise it stays proportionally smaller."""


class Sample:
    """Keeps the values whose keys have the smallest hashes, up to a number of bytes."""

    def __init__(self, max_bytes: int, source_bytes: int = 0) -> None:
        """A sample of ``max_bytes`` 0 keeps nothing.

        Most of what a source of ``source_bytes`` would displace in the end is refused from the start: filling and
        trimming the sample for every slice of a large source took an eighth of the time to read it.
        """
        self._max_bytes = max_bytes
        self._entries: list[tuple[int, int, bytes]] = []
        self._bytes = 0
        self.bound = min(_RANKS, _RANKS * _AMPLE * max_bytes // max(1, source_bytes)) if max_bytes else 0
        """The sample refuses keys with this hash or a larger one: callers need not offer them."""

    def keep(self, rank: int, place: int, value: bytes) -> None:
        """Keep the value whose key has the hash ``rank``, below ``bound``; ``place`` orders equal keys."""
        self._entries.append((rank, place, value))
        self._bytes += len(value)
        if self._bytes > 2 * self._max_bytes or len(self._entries) > 2 * _MAX_VALUES:
            self._trim()

    def _trim(self) -> None:
        self._entries.sort()
        kept_count = kept_bytes = 0
        for _, _, value in self._entries[:_MAX_VALUES]:
            if kept_bytes + len(value) > self._max_bytes and kept_count:
                break
            kept_bytes += len(value)
            kept_count += 1
        if kept_count < len(self._entries):
            self.bound = self._entries[kept_count][0]
            del self._entries[kept_count:]
            self._bytes = kept_bytes

    def values(self) -> list[bytes]:
        """The sampled values, by their keys' hashes."""
        self._trim()
        return [value for _, _, value in self._entries]

    def records(self) -> list[Record]:
        """The sample as records of a run, with the hash as the key."""
        self._trim()
        return [(rank.to_bytes(_RANK_BYTES, "big"), place, value) for rank, place, value in self._entries]

    def add(self, records: Iterable[Record]) -> None:
        """Add the ``records`` of another sample."""
        for rank_bytes, place, value in records:
            rank = int.from_bytes(rank_bytes, "big")
            if rank < self.bound:
                self.keep(rank, place, value)
