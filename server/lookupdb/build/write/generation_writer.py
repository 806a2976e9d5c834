"""Writes all shard files of a generation side by side, from one stream in key order.

The bytes of a file depend on its records alone: transactions end where the records say, never where a batch of the
stream ends or memory runs short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lookupdb import shard_name
from lookupdb.build.budget import transaction_bytes
from lookupdb.build.sort.runs import Batch
from lookupdb.build.write.packing import ListPacker, PackedRecords, ShareSums, make_packer
from lookupdb.build.write.shard_writer import ShardSums, ShardWriter
from lookupdb.manifest import ShardFile, Totals
from lookupdb.runtime.descriptors import require_descriptors
from lookupdb.shardfile import ShardMeta

_BATCHES_AHEAD: Final = 2
_BYTES_AHEAD: Final = 24 << 20
"""As many bytes of native batches wait for what is written before them; packed, they take as much again."""
_FILES_A_SHARD: Final = 2
_OTHER_FILES: Final = 128
"""Sockets of the store, pipes, and runs to merge: these adapt to the number of files that may be open."""


class GenerationWriter:
    """All shard files of a generation. A context manager, which closes the files."""

    def __init__(self, folder: Path, meta: ShardMeta, dictionary: bytes, threads: int, packers: int = 1) -> None:
        """``meta`` describes every shard, except for its number and its records. Up to ``packers`` threads compress
        natively at once."""
        self._meta = meta
        self._dictionary = dictionary
        self._threads = threads
        self._packer = make_packer(
            meta.shards, compressed=meta.compression == "zstd", dictionary=dictionary, threads=threads
        )
        self._packing_threads = 1 if isinstance(self._packer, ListPacker) else packers
        check_open_files(meta.shards)
        share = transaction_bytes(meta.shards)
        self._stack = ExitStack()
        with self._stack as stack:
            names = [shard_name.file_name(number, meta.shards) for number in range(meta.shards)]
            self._shards = [stack.enter_context(closing(ShardWriter(folder / name, share))) for name in names]
            self._stack = stack.pop_all()

    def write(self, batches: Iterable[Batch]) -> Iterator[int]:
        """Write records in key order, each key once; yields the number written, batch by batch.

        Other threads pack some batches ahead.
        """
        queue: deque[tuple[int, int, Future[PackedRecords]]] = deque()
        bytes_ahead = 0
        with ThreadPoolExecutor(self._packing_threads, "pack") as pool:
            for batch in batches:
                size = getattr(batch, "data_bytes", 0)
                bytes_ahead += size
                queue.append((len(batch), size, pool.submit(self._packer.pack, batch)))
                del batch  # it is forgotten when it is packed
                while len(queue) > self._packing_threads + _BATCHES_AHEAD or (queue and bytes_ahead > _BYTES_AHEAD):
                    bytes_ahead -= queue[0][1]
                    yield self._append(*queue.popleft())
            while queue:
                yield self._append(*queue.popleft())

    def _append(self, records: int, _size: int, packed: Future[PackedRecords]) -> int:
        batch = packed.result()
        for number, shard in enumerate(self._shards):
            items, sums = batch.items(number)
            shard.append(items, ShareSums(*sums))
        return records

    def finish(self) -> tuple[tuple[ShardFile, ...], Totals]:
        """Complete every file. Returns their descriptions and their totals."""
        with ThreadPoolExecutor(self._threads, "finish") as pool:
            files = tuple(pool.map(self._finish_shard, range(len(self._shards))))
        sums = [shard.sums for shard in self._shards]
        return files, Totals(
            records=sum(stored_value.records for stored_value in sums),
            key_bytes=sum(stored_value.key_bytes for stored_value in sums),
            value_bytes=sum(stored_value.value_bytes for stored_value in sums),
            stored_bytes=sum(stored_value.stored_bytes for stored_value in sums),
            file_bytes=sum(file.bytes for file in files),
            largest_value_bytes=max(stored_value.largest_value_bytes for stored_value in sums),
        )

    def _finish_shard(self, number: int) -> ShardFile:
        shard = self._shards[number]
        return shard.finish(describe_shard(self._meta, number, shard.sums), self._dictionary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def max_open_files(shards: int) -> int:
    """The most files that a build of ``shards`` shards has open at once."""
    return _FILES_A_SHARD * shards + _OTHER_FILES


def check_open_files(shards: int) -> None:
    """Raise this process's own limit of open files. Raises NotEnoughRoom if the system does not allow enough."""
    require_descriptors(max_open_files(shards), "this build", "give the dataset fewer shards")


_NOT_IN_FILES: Final = frozenset({"records", "largest_value_bytes"})
"""Of the sums, what a shard file does not have as an extra field: ``records`` is a field of its own, and the other one
would change the bytes of every file for what only a build asks for."""


def describe_shard(meta: ShardMeta, number: int, sums: ShardSums) -> ShardMeta:
    """``meta`` for one shard, with its sums as extra fields."""
    extra = {name: value for name, value in asdict(sums).items() if name not in _NOT_IN_FILES}
    return replace(meta, shard=number, records=sums.records, extra=extra)
