"""Sorts records out of core, within a memory limit.

An external merge sort: records gather in memory, are sorted and written as a *run* when they reach the limit, and the
runs are merged. Comparing, slicing and joining happen in C, a block of records at a time. DuckDB's ORDER BY was tried
first: it is as fast, but runs out of memory once a source is a few times larger than its limit.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Final, Self

from lookupdb.build.fetch import room_in

Placed = tuple[bytes, int, bytes]
"""Encoded key, place, value."""

SPOOL_BYTES: Final = 32 << 10
"""A value larger than this waits in a file of its own while its key is sorted, so that a block of records is small
however large values are."""
BLOCK_BYTES: Final = 256 << 10
"""Of a run's blocks, about; merging holds one of each run, and Python's objects for it."""
_BLOCK_MEMORY: Final = 4 * BLOCK_BYTES
_RECORD_MEMORY: Final = 200
"""What Python takes for a record beside the bytes of its key and value."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_SPOOLED: Final = 1 << 62
"""Bit of a place whose value is a reference into the spool."""
_REFERENCE: Final = struct.Struct("<QQ")
_HEADER: Final = struct.Struct("<IQQ")
"""Before a block: records, bytes of their keys, bytes of their values."""

_key = itemgetter(0)


class Sorter:
    """``put`` all records, then iterate, once. A context manager: it owns files in ``scratch``.

    Records of equal keys come in the order in which they were put.
    """

    def __init__(self, scratch: Path, memory: int) -> None:
        """``memory``, in bytes, is what the records held at any time may take."""
        self._scratch, self._memory = scratch, memory
        self._most_runs = max(2, memory // _BLOCK_MEMORY)
        self._held: list[Placed] = []
        self._held_bytes = 0
        self._runs: list[IO[bytes]] = []
        self._open = ExitStack()
        self._spool: IO[bytes] | None = None

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """One record; ``place``, below 2**62, comes back with it. Raises NotEnoughRoom when scratch is full."""
        if len(value) > SPOOL_BYTES:
            place, value = place | _SPOOLED, self._spooled(value)
        self._held.append((key, place, value))
        self._held_bytes += len(key) + len(value) + _RECORD_MEMORY
        if self._held_bytes > self._memory:
            self._spill()

    def _spooled(self, value: bytes) -> bytes:
        with room_in(self._scratch):
            if self._spool is None:
                self._spool = self._new_file()
            start = self._spool.tell()
            self._spool.write(value)
        return _REFERENCE.pack(start, len(value))

    def _new_file(self) -> IO[bytes]:
        with room_in(self._scratch):
            return self._open.enter_context(TemporaryFile(dir=self._scratch, buffering=0))

    def _spill(self) -> None:
        self._held.sort(key=_key)
        self._runs.append(self._written([self._held]))
        self._held, self._held_bytes = [], 0
        if len(self._runs) == self._most_runs:
            runs, self._runs = self._runs, []
            self._runs = [self._written(_merged(runs))]
            for run in runs:
                run.close()

    def _written(self, sorted_batches: Iterable[list[Placed]]) -> IO[bytes]:
        run = self._new_file()
        with room_in(self._scratch):
            for batch in sorted_batches:
                for block in _blocks(batch):
                    _write_block(run, block)
        return run

    def __iter__(self) -> Iterator[list[Placed]]:
        """Batches of at most a few MiB, in the order of keys. Raises NotEnoughRoom when scratch is full."""
        if self._runs and self._held:
            self._spill()
        self._held.sort(key=_key)
        for piece in _merged(self._runs) if self._runs else [self._held]:
            for start in range(0, len(piece), _BATCH_RECORDS):
                batch = piece[start : start + _BATCH_RECORDS]
                if self._spool is None:
                    yield batch
                else:
                    yield from self._unspooled(batch)

    def _unspooled(self, records: list[Placed]) -> Iterator[list[Placed]]:
        assert self._spool is not None
        batch, held = [], 0
        for record in records:
            key, place, value = record
            if place & _SPOOLED:
                start, length = _REFERENCE.unpack(value)
                self._spool.seek(start)
                batch.append((key, place ^ _SPOOLED, self._spool.read(length)))
                held += length
            else:
                batch.append(record)
            if held > _BATCH_BYTES:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._held, self._runs, self._spool = [], [], None


def _blocks(records: list[Placed]) -> Iterator[list[Placed]]:
    """Pieces of ``records`` of about ``BLOCK_BYTES``."""
    start = held = 0
    for number, (key, _, value) in enumerate(records):
        held += len(key) + len(value) + _RECORD_MEMORY // 4
        if held > BLOCK_BYTES:
            yield records[start : number + 1]
            start, held = number + 1, 0
    if start < len(records):
        yield records[start:]


def _write_block(run: IO[bytes], block: list[Placed]) -> None:
    keys, places, values = zip(*block, strict=True)
    key_bytes, value_bytes = b"".join(keys), b"".join(values)
    parts = (
        _HEADER.pack(len(block), len(key_bytes), len(value_bytes)),
        array("Q", places).tobytes(),
        array("I", map(len, keys)).tobytes(),
        array("I", map(len, values)).tobytes(),
        key_bytes,
        value_bytes,
    )
    rest = memoryview(b"".join(parts))
    while rest:
        rest = rest[run.write(rest) :]


def _read_block(run: IO[bytes]) -> list[Placed]:
    """The next block, or nothing at the run's end."""
    header = run.read(_HEADER.size)
    if not header:
        return []
    count, key_bytes, value_bytes = _HEADER.unpack(header)
    places, key_sizes, value_sizes = array("Q"), array("I"), array("I")
    for numbers in (places, key_sizes, value_sizes):
        numbers.frombytes(_read(run, count * numbers.itemsize))
    keys, values = _read(run, key_bytes), _read(run, value_bytes)
    return list(
        zip(
            [keys[start:end] for start, end in pairwise(accumulate(key_sizes, initial=0))],
            places,
            [values[start:end] for start, end in pairwise(accumulate(value_sizes, initial=0))],
            strict=True,
        )
    )


def _read(run: IO[bytes], size: int) -> bytes:
    """Exactly ``size`` bytes: the file is ours and holds them."""
    data = run.read(size)
    while len(data) < size:
        data += run.read(size - len(data))
    return data


def _merged(runs: list[IO[bytes]]) -> Iterator[list[Placed]]:
    """The records of ``runs`` in order; of equal keys, an earlier run's come first.

    Each round takes from every run's block what cannot be preceded by a record that is not yet read: what is below
    the smallest of the blocks' last keys. One block is used up by each round.
    """
    for run in runs:
        run.seek(0)
    open_runs = [(run, block) for run in runs if (block := _read_block(run))]
    while open_runs:
        bound = min(block[-1][0] for _, block in open_runs)
        taken: list[Placed] = []
        left: list[tuple[IO[bytes], list[Placed]]] = []
        cut = bisect_right
        for run, block in open_runs:
            end = cut(block, bound, key=_key)
            taken += block[:end]
            rest = block[end:]
            if cut is bisect_right and block[-1][0] == bound:
                cut = bisect_left  # this run may go on with the bound's key: later runs' records of it wait
            if rest or (rest := _read_block(run)):
                left.append((run, rest))
        open_runs = left
        taken.sort(key=_key)  # sorted pieces: the sort only merges them
        yield taken
