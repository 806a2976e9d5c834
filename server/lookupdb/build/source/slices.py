"""Slices: pieces of the source's files that can be parsed apart, and where to cut.

JSON lines are cut at line ends, which are exact. CSV's cuts are guesses (``csv_cuts``). A slice that begins with a row
and ends with one proves the cut behind it, because CSV's state at the start of a row is always the same; so slices are
proven in the source's order. What stands behind a wrong cut is read again, from where the row before it really ends:
no byte more than twice. Other formats are read whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from lookupdb.build.source.csv_cuts import RowShape
from lookupdb.build.source.fetch import LocalFile
from lookupdb.spec import Csv

PARALLEL_FROM: Final = 64 << 20
"""A source of fewer bytes is read by this process alone: starting others takes 0.2 s and memory."""
_LARGEST: Final = 128 << 20
"""Bytes. Smaller ones even out between workers; larger ones need fewer files and samples."""
_SLICES_A_WORKER: Final = 4
_LOOK_AHEAD: Final = 1 << 20
"""How far from where it is wanted the start of a row is looked for, at most; and at most this part of a slice: """
_LOOK_AHEAD_PART: Final = 8
_LEAST_LOOK_AHEAD: Final = 4 << 10
_CUT_FORMATS: Final = frozenset(["jsonl", "csv"])


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole rows of one file, that stand one after the other."""

    file: int
    """The file's number in the source."""
    start: int = 0
    """Where its bytes begin."""
    end: int | None = None
    """Where they end; None: with the file."""
    rows_before: int = 0
    """Rows and lines of the file before it: for messages, 0 while they are not known."""
    lines_before: int = 0
    runs_on: bool = False
    """Its last row is read to that row's end, though it may lie behind the slice's."""


class SliceFile(io.RawIOBase):
    """The bytes of a slice as a file of their own."""

    def __init__(self, path: Path, piece: Slice) -> None:
        self._file = FileIO(path)
        self._file.seek(piece.start)
        self._left = None if piece.end is None else piece.end - piece.start
        self._read = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw file."""
        with memoryview(buffer) as view:
            size = self._file.readinto(view if self._left is None else view[: self._left - self._read])
        self._read += size
        return size

    def tell(self) -> int:
        """How many of the slice's bytes were read."""
        return self._read

    def close(self) -> None:
        """May be called twice."""
        self._file.close()
        super().close()


def whole(files: Sequence[LocalFile]) -> list[Slice]:
    """Every file in one piece."""
    return [Slice(number) for number in range(len(files))]


def plan(files: Sequence[LocalFile], workers: int, parallel_from: int, options: Csv | None = None) -> list[Slice]:
    """The pieces in the source's order, sized for ``workers``; as ``whole`` gives them when that is not worth while.

    ``options`` say how CSV is read.
    """
    total = sum(file.bytes for file in files)
    if workers < 2 or total < parallel_from or any(file.format == "parquet" for file in files):
        return whole(files)
    size = max(parallel_from // (2 * _SLICES_A_WORKER), min(_LARGEST, total // (workers * _SLICES_A_WORKER) + 1))
    return [piece for number, file in enumerate(files) for piece in _cut(number, file, size, options or Csv())]


def _cut(number: int, file: LocalFile, size: int, options: Csv) -> Iterator[Slice]:
    start = 0
    if file.format in _CUT_FORMATS and file.bytes > size + size // 2:
        with FileIO(file.path) as raw:
            for end in _cuts(raw, file, size, options):
                yield Slice(number, start, end)
                start = end
    yield Slice(number, start)


def _cuts(raw: FileIO, file: LocalFile, size: int, options: Csv) -> Iterator[int]:
    """Where to cut, about every ``size`` bytes; where no row's start is found near, the next one is tried."""
    look = min(_LOOK_AHEAD, max(size // _LOOK_AHEAD_PART, _LEAST_LOOK_AHEAD))
    shape = RowShape.of_file(options, file.delimiter, raw.read(look)) if file.format == "csv" else None
    if shape is None and file.format == "csv":
        return
    position = size
    while file.bytes - position > size // 2:
        raw.seek(position)
        found = _line_end(raw, look) if shape is None else shape.row_start(raw.read(look))
        if found is not None and position + found < file.bytes:
            position += found
            yield position
        position += size


def _line_end(raw: FileIO, look: int) -> int | None:
    """How far the first line reaches that ends from here on; None when none does within ``look`` bytes."""
    for start in range(0, look, io.DEFAULT_BUFFER_SIZE):
        chunk = raw.read(io.DEFAULT_BUFFER_SIZE)
        found = chunk.find(b"\n")
        if found >= 0:
            return start + found + 1
    return None
