"""Records become what shards store: framed, compressed where that is smaller, dealt to shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import zstandard

from lookupdb import native
from lookupdb.build.sort.runs import Batch, as_native
from lookupdb.build.write.compression import Compressor, compression_parameters
from lookupdb.keys import shard_number
from lookupdb.shardfile import frame

LARGEST_RECORD = 2030
"""LMDB puts a value on overflow pages if key and value together are longer than this."""

Item = tuple[bytes, bytes]
"""Key, stored value."""


class ShareSums(NamedTuple):
    """Sums over a shard's records of a batch."""

    key_bytes: int
    value_bytes: int
    """Of values before storing."""
    stored_bytes: int
    overflows: int
    """The number of stored values on overflow pages."""
    overflow_bytes: int
    largest_value_bytes: int
    """Of values before storing."""


class PackedRecords(Protocol):
    """What is stored of a batch."""

    def items(self, shard: int, /) -> tuple[list[Item], tuple[int, int, int, int, int, int]]:
        """The records of ``shard`` in key order, and their ``ShareSums``."""


class Packer(Protocol):
    """Packs batches; several threads may do so at once."""

    def pack(self, batch: Batch, /) -> PackedRecords:
        """Pack ``batch``."""


class ListPacker:
    """The twin of the native packer."""

    def __init__(self, shards: int, compressor: Compressor | None) -> None:
        self._shards, self._compressor = shards, compressor

    def pack(self, batch: Batch) -> PackedRecords:
        """Pack ``batch``."""
        framed = [frame(record[2]) for record in batch]
        stored_values = self._compressor.store(framed) if self._compressor else framed
        groups: list[list[Item]] = [[] for _ in range(self._shards)]
        value_bytes = [0] * self._shards
        largest = [0] * self._shards
        for (key, _, value), stored in zip(batch, stored_values, strict=True):
            number = shard_number(key, self._shards)
            groups[number].append((key, stored))
            size = len(value)
            value_bytes[number] += size
            if size > largest[number]:
                largest[number] = size
        return _PackedLists(groups, value_bytes, largest)


class _PackedLists:
    def __init__(self, groups: list[list[Item]], value_bytes: list[int], largest: list[int]) -> None:
        self._groups, self._value_bytes, self._largest = groups, value_bytes, largest

    def items(self, shard: int) -> tuple[list[Item], ShareSums]:
        """The records of ``shard``, and their sums."""
        return (items := self._groups[shard]), sum_items(items, self._value_bytes[shard], self._largest[shard])


def sum_items(items: Sequence[Item], value_bytes: int, largest: int) -> ShareSums:
    """The sums over ``items``, whose values had ``value_bytes`` bytes before they were stored, the largest one
    ``largest``."""
    if not items:
        return ShareSums(0, 0, 0, 0, 0, 0)
    keys, stored = zip(*items, strict=True)
    overflows = []
    if max(map(len, stored)) + max(map(len, keys)) > LARGEST_RECORD:
        overflows = [len(value) for key, value in items if overflows_page(key, value)]
    return ShareSums(sum(map(len, keys)), value_bytes, sum(map(len, stored)), len(overflows), sum(overflows), largest)


def overflows_page(key: bytes, stored: bytes) -> bool:
    """Whether LMDB puts this record's value on overflow pages."""
    return len(key) + len(stored) > LARGEST_RECORD


class NativePacker:
    """Packs batches natively."""

    def __init__(self, kernels: Any, shards: int, dictionary: bytes, compressed: bool) -> None:
        parameters = compression_parameters() if compressed else None
        self._kernels, self._packer = kernels, kernels.Packer(shards, LARGEST_RECORD, dictionary, parameters)

    def pack(self, batch: Batch) -> PackedRecords:
        """Pack ``batch``."""
        packed: PackedRecords = self._packer.pack(as_native(self._kernels, batch))
        return packed


def make_packer(shards: int, *, compressed: bool, dictionary: bytes, threads: int) -> Packer:
    """The packer of a generation that ``threads`` build. The twin leaves one of them to what surrounds it; of a native
    one, any number may pack at once. Raises UsageError when native kernels are demanded that would write other bytes.
    """
    kernels = native.kernels()
    if kernels is None or (compressed and not _has_same_zstd(kernels)):
        return ListPacker(shards, Compressor(dictionary, max(1, threads - 1)) if compressed else None)
    return NativePacker(kernels, shards, dictionary, compressed)


def _has_same_zstd(kernels: Any) -> bool:
    """Whether both kinds compress to the same bytes, which zstd promises for one version of it alone."""
    if kernels.ZSTD_VERSION == zstandard.ZSTD_VERSION:
        return True
    ours, theirs = (".".join(map(str, version)) for version in (kernels.ZSTD_VERSION, zstandard.ZSTD_VERSION))
    native.set_aside(f"it compresses with zstd {ours}, python-zstandard with {theirs}: files would not be the same")
    return False
