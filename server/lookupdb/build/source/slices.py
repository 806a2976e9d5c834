"""Slices: parts of the source's files that can be parsed separately, and where to cut.

JSON lines are cut at line ends, which is exact. Cuts in CSV are guesses (``csv_cuts``). A slice that begins with a row
and ends with one proves the cut behind it, because a CSV parser is always in the same state at the start of a row; so
slices are proven in the source's order. What follows a wrong cut is read again from where the row before it really
ends: no byte more than twice. Other formats are read whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from lookupdb.build.source.csv_cuts import RowShape
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.spec import Csv

PARALLEL_FROM: Final = 64 << 20
"""This process alone reads a smaller source: starting others takes 0.2 s and memory."""
_MAX_SLICE_BYTES: Final = 128 << 20
"""Smaller slices balance the load better; larger ones need fewer files and samples."""
_SLICES_A_WORKER: Final = 4
_LOOK_AHEAD: Final = 1 << 20
"""How far behind the intended cut to look for a row's start: at most this, and at most this part of a slice:"""
_LOOK_AHEAD_PART: Final = 8
_MIN_LOOK_AHEAD: Final = 4 << 10
_CUT_FORMATS: Final = frozenset(["jsonl", "csv"])


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive whole rows of one file."""

    file: int
    """The file's number in the source."""
    start: int = 0
    """The offset of its first byte."""
    end: int | None = None
    """The offset of its end; None for the end of the file."""
    rows_before: int = 0
    """The file's rows and lines before it, for messages; 0 while unknown."""
    lines_before: int = 0
    extends_to_row_end: bool = False
    """The reader reads its last row to that row's end, even behind the slice's end."""


class SliceFile(io.RawIOBase):
    """The bytes of a slice, as a file."""

    def __init__(self, path: Path, piece: Slice) -> None:
        self._file = FileIO(path)
        self._file.seek(piece.start)
        self._length = None if piece.end is None else piece.end - piece.start
        self._read = 0

    def readable(self) -> bool:
        """True, as of any file that can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``, as any raw file does."""
        with memoryview(buffer) as view:
            size = self._file.readinto(view if self._length is None else view[: self._length - self._read])
        self._read += size
        return size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, ``size`` at most, -1 for all; without the second copy that the base class makes."""
        if size < 0:
            return super().read(size)
        data = self._file.read(size if self._length is None else min(size, self._length - self._read))
        self._read += len(data)
        return data

    def tell(self) -> int:
        """How many of the slice's bytes have been read."""
        return self._read

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()
        super().close()


def whole_files(files: Sequence[LocalFile]) -> list[Slice]:
    """One slice per file."""
    return [Slice(number) for number in range(len(files))]


def plan_slices(
    files: Sequence[LocalFile], workers: int, parallel_from: int, options: Csv | None = None
) -> list[Slice]:
    """Slices in the source's order, sized for ``workers``; ``whole_files`` when cutting does not pay.

    ``options`` say how CSV is read.
    """
    total = sum(file.bytes for file in files)
    if workers < 2 or total < parallel_from or any(file.format == "parquet" for file in files):
        return whole_files(files)
    size = max(
        parallel_from // (2 * _SLICES_A_WORKER), min(_MAX_SLICE_BYTES, total // (workers * _SLICES_A_WORKER) + 1)
    )
    return [piece for number, file in enumerate(files) for piece in _cut_file(number, file, size, options or Csv())]


def _cut_file(number: int, file: LocalFile, size: int, options: Csv) -> Iterator[Slice]:
    start = 0
    if file.format in _CUT_FORMATS and file.bytes > size + size // 2:
        with FileIO(file.path) as raw:
            for end in _find_cuts(raw, file, size, options):
                yield Slice(number, start, end)
                start = end
    yield Slice(number, start)


def _find_cuts(raw: FileIO, file: LocalFile, size: int, options: Csv) -> Iterator[int]:
    """Offsets to cut at, about every ``size`` bytes. A place with no row's start near it is passed over."""
    look_ahead = min(_LOOK_AHEAD, max(size // _LOOK_AHEAD_PART, _MIN_LOOK_AHEAD))
    shape = RowShape.from_first_bytes(options, file.delimiter, raw.read(look_ahead)) if file.format == "csv" else None
    if shape is None and file.format == "csv":
        return
    position = size
    while file.bytes - position > size // 2:
        raw.seek(position)
        offset = _find_line_end(raw, look_ahead) if shape is None else shape.find_row_start(raw.read(look_ahead))
        if offset is not None and position + offset < file.bytes:
            position += offset
            yield position
        position += size


def _find_line_end(raw: FileIO, look_ahead: int) -> int | None:
    """The distance to the end of the current line; None if it does not end within ``look_ahead`` bytes."""
    for start in range(0, look_ahead, io.DEFAULT_BUFFER_SIZE):
        chunk = raw.read(io.DEFAULT_BUFFER_SIZE)
        offset = chunk.find(b"\n")
        if offset >= 0:
            return start + offset + 1
    return None
