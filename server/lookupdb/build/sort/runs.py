"""Runs: files of sorted records, written and read a block at a time, and merged.

Comparing, slicing and joining happen in C, a block of records at a time.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import IO, Final

Record = tuple[bytes, int, bytes]
"""Encoded key, place, value. A place says where in the source the record stood: see ``place_of``."""

BLOCK_BYTES: Final = 256 << 10
"""Of a run's blocks, about; merging holds one of each run, and Python's objects for it."""
BLOCK_MEMORY: Final = 4 * BLOCK_BYTES
RECORD_MEMORY: Final = 200
"""What Python takes for a record beside the bytes of its key and value."""
_HEADER: Final = struct.Struct("<IQQ")
"""Before a block: records, bytes of their keys, bytes of their values."""
_ROW_BITS: Final = 40
_ROW_MASK: Final = (1 << _ROW_BITS) - 1

key_of = itemgetter(0)


def place_of(piece: int, row: int) -> int:
    """Row ``row`` of the source's slice ``piece`` as one integer below 2**62. Places are in the source's order."""
    return piece << _ROW_BITS | row


def piece_and_row(place: int) -> tuple[int, int]:
    """What ``place_of`` was given."""
    return place >> _ROW_BITS, place & _ROW_MASK


def write(run: IO[bytes], batches: Iterable[Sequence[Record]]) -> None:
    """Write sorted records behind what ``run``, which is not buffered, holds."""
    for batch in batches:
        for block in _blocks(batch):
            _write_block(run, block)


def read(run: IO[bytes]) -> Iterator[list[Record]]:
    """All records of ``run``, in blocks."""
    run.seek(0)
    while block := _read_block(run):
        yield block


def merged(runs: Iterable[IO[bytes]]) -> Iterator[list[Record]]:
    """The records of ``runs`` in order; of equal keys, an earlier run's come first.

    Each round takes from every run's block what cannot be preceded by a record that is not yet read: what is below
    the smallest of the blocks' last keys. One block is used up by each round.
    """
    open_runs: list[tuple[IO[bytes], list[Record]]] = []
    for run in runs:
        run.seek(0)
        if block := _read_block(run):
            open_runs.append((run, block))
    while open_runs:
        bound = min(block[-1][0] for _, block in open_runs)
        taken: list[Record] = []
        left: list[tuple[IO[bytes], list[Record]]] = []
        cut = bisect_right
        for run, block in open_runs:
            end = cut(block, bound, key=key_of)
            taken += block[:end]
            rest = block[end:]
            if cut is bisect_right and block[-1][0] == bound:
                cut = bisect_left  # this run may go on with the bound's key: later runs' records of it wait
            if rest or (rest := _read_block(run)):
                left.append((run, rest))
        open_runs = left
        taken.sort(key=key_of)  # sorted pieces: the sort only merges them
        yield taken


def _blocks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Pieces of ``records`` of about ``BLOCK_BYTES``."""
    start = held = 0
    for number, (key, _, value) in enumerate(records, 1):
        held += len(key) + len(value) + RECORD_MEMORY // 4
        if held > BLOCK_BYTES:
            yield records[start:number]
            start, held = number, 0
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
    """The next block, or nothing at the run's end."""
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
    """``size`` bytes: the file is ours and holds them."""
    data = run.read(size)
    while len(data) < size:
        data += run.read(size - len(data))
    return data
