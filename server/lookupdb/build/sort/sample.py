"""A sample of the values, to train the compression dictionary on. It depends on the records, not on their order."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest as rank_key

from lookupdb import native
from lookupdb.build.sort import runs
from lookupdb.build.sort.runs import Record

_MAX_VALUES: Final = 200_000
_RANK_BYTES: Final = 8
_RANKS: Final = 1 << 8 * _RANK_BYTES
_AMPLE: Final = 8
"""The sample fills up if values are more than an eighth of the source; otherwise it stays proportionally smaller."""


class Sample(Protocol):
    """Keeps the values whose keys have the smallest hashes, up to a number of bytes."""

    def offer(self, key: bytes, place: int, value: bytes, /) -> None:
        """Keep ``value`` if its key's hash is small enough; ``place`` orders equal keys."""

    def write_run(self, path: Path, /) -> None:
        """Write the sample as a run into the new file ``path``, with hashes as keys."""

    def add_run(self, path: Path, /) -> None:
        """Add another sample, which was written as the run at ``path``."""

    def take_values(self) -> list[bytes]:
        """The sampled values, by their keys' hashes; the sample forgets them."""


class SampleList:
    """The twin of the native sample."""

    def __init__(self, max_bytes: int, last_rank: int | None) -> None:
        """``last_rank`` is the largest hash that is taken, None takes none."""
        self._max_bytes = max_bytes
        self._bound = 0 if last_rank is None else last_rank + 1
        self._entries: list[tuple[int, int, bytes]] = []
        self._bytes = 0

    def offer(self, key: bytes, place: int, value: bytes) -> None:
        """Keep ``value`` if its key's hash is small enough; ``place`` orders equal keys."""
        rank = rank_key(key)
        if rank < self._bound:
            self._keep(rank, place, value)

    def _keep(self, rank: int, place: int, value: bytes) -> None:
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
            self._bound = self._entries[kept_count][0]
            del self._entries[kept_count:]
            self._bytes = kept_bytes

    def write_run(self, path: Path) -> None:
        """Write the sample as a run into the new file ``path``, with hashes as keys."""
        self._trim()
        records: list[Record] = [
            (rank.to_bytes(_RANK_BYTES, "big"), place, value) for rank, place, value in self._entries
        ]
        with FileIO(path, "x") as run:
            runs.write_run(run, [records])

    def add_run(self, path: Path) -> None:
        """Add another sample, which was written as the run at ``path``."""
        with FileIO(path) as run:
            for block in runs.read_run(run):
                for rank_bytes, place, value in block:
                    rank = int.from_bytes(rank_bytes, "big")
                    if rank < self._bound:
                        self._keep(rank, place, value)

    def take_values(self) -> list[bytes]:
        """The sampled values, by their keys' hashes; the sample forgets them."""
        self._trim()
        entries, self._entries = self._entries, []
        return [value for _, _, value in entries]


def make_sample(max_bytes: int, source_bytes: int = 0) -> Sample:
    """An empty sample; one of ``max_bytes`` 0 keeps nothing.

    Most of what a source of ``source_bytes`` would displace in the end is refused from the start: filling and trimming
    the sample for every slice of a large source took an eighth of the time to read it.
    """
    bound = min(_RANKS, _RANKS * _AMPLE * max_bytes // max(1, source_bytes)) if max_bytes else 0
    last_rank = bound - 1 if bound else None
    kernels = native.kernels()
    return SampleList(max_bytes, last_rank) if kernels is None else kernels.Sample(max_bytes, last_rank)
