"""Runs: files of sorted records, written, read and merged a block at a time.

Comparing, slicing and joining happen in C, for a whole block of records.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import IO, Any, Final, Protocol

Record = tuple[bytes, int, bytes]
"""Encoded key, place, value. The place tells where in the source the record stood: see ``encode_place``."""


class Batch(Protocol):
    """Some records of a stream in key order: a list, or native."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...


BLOCK_BYTES: Final = 256 << 10
"""The approximate size of a run's block. A merge holds one block of each run, and Python's objects for it."""
BLOCK_MEMORY: Final = 4 * BLOCK_BYTES
RECORD_MEMORY: Final = 200
"""What Python takes for a record beside the bytes of its key and value."""
_HEADER: Final = struct.Struct("<IQQ")
"""Precedes a block: the number of records, the bytes of their keys and of their values."""
_ROW_BITS: Final = 40
_ROW_MASK: Final = (1 << _ROW_BITS) - 1

record_key = itemgetter(0)


def encode_place(piece: int, row: int) -> int:
    """Row ``row`` of slice ``piece`` as one integer below 2**62. Places sort in the source's order."""
    return piece << _ROW_BITS | row


def decode_place(place: int) -> tuple[int, int]:
    """The slice and the row of ``place``."""
    return place >> _ROW_BITS, place & _ROW_MASK


def as_native(kernels: Any, batch: Batch) -> Any:
    """``batch`` as the ``kernels`` have it."""
    return batch if isinstance(batch, kernels.RecordBatch) else kernels.RecordBatch(list(batch))


def write_run(run: IO[bytes], batches: Iterable[Sequence[Record]]) -> None:
    """Append sorted records to ``run``, an unbuffered file."""
    for batch in batches:
        for block in _split_into_blocks(batch):
            _write_block(run, block)


def read_run(run: IO[bytes]) -> Iterator[list[Record]]:
    """All records of ``run``, block by block."""
    run.seek(0)
    while block := _read_block(run):
        yield block


def merge_runs(runs: Iterable[IO[bytes]]) -> Iterator[list[Record]]:
    """The records of ``runs`` in key order; among equal keys, those of an earlier run come first.

    Each round takes from every run's block the records that no unread record can precede: those up to the smallest of
    the blocks' last keys. Each round uses up at least one block.
    """
    open_runs: list[tuple[IO[bytes], list[Record]]] = []
    for run in runs:
        run.seek(0)
        if block := _read_block(run):
            open_runs.append((run, block))
    while open_runs:
        bound = min(block[-1][0] for _, block in open_runs)
        ready: list[Record] = []
        remaining: list[tuple[IO[bytes], list[Record]]] = []
        cut = bisect_right
        for run, block in open_runs:
            end = cut(block, bound, key=record_key)
            ready += block[:end]
            rest = block[end:]
            if cut is bisect_right and block[-1][0] == bound:
                cut = bisect_left  # this run may have more records of the bound's key: those of later runs must wait
            if rest or (rest := _read_block(run)):
                remaining.append((run, rest))
        open_runs = remaining
        ready.sort(key=record_key)  # it consists of sorted pieces, which the sort merges
        yield ready


def _split_into_blocks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Split ``records`` into blocks of about ``BLOCK_BYTES``."""
    start = block_bytes = 0
    for number, (key, _, value) in enumerate(records, 1):
        block_bytes += len(key) + len(value) + RECORD_MEMORY // 4
        if block_bytes > BLOCK_BYTES:
            yield records[start:number]
            start, block_bytes = number, 0
    if start < len(records):
        yield records[start:]


def _write_block(run: IO[bytes], block: Sequence[Record]) -> None:
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


def _read_block(run: IO[bytes]) -> list[Record]:
    """The next block; empty at the run's end."""
    header = run.read(_HEADER.size)
    if not header:
        return []
    count, key_bytes, value_bytes = _HEADER.unpack(header)
    places, key_sizes, value_sizes = array("Q"), array("I"), array("I")
    for numbers in (places, key_sizes, value_sizes):
        numbers.frombytes(read_exactly(run, count * numbers.itemsize))
    keys, values = read_exactly(run, key_bytes), read_exactly(run, value_bytes)
    return list(
        zip(
            [keys[start:end] for start, end in pairwise(accumulate(key_sizes, initial=0))],
            places,
            [values[start:end] for start, end in pairwise(accumulate(value_sizes, initial=0))],
            strict=True,
        )
    )


def read_exactly(run: IO[bytes], size: int) -> bytes:
    """Exactly ``size`` bytes, which our own file surely holds."""
    data = run.read(size)
    while len(data) < size:
        data += run.read(size - len(data))
    return data
