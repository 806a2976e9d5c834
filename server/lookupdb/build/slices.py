"""Slices: pieces of the source's files that can be parsed apart, and where to cut.

JSON lines are cut at line ends. CSV is too, though a quoted field may hold line breaks: a cut in the middle of a row is
a guess that failed, and whoever parses the slice before it finds out for certain, because that slice then ends within a
row (``rows.Unfinished``). CSV's state at the start of a row is always the same, so that a slice that ends with a row
proves the cut behind it. Other formats are read whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from lookupdb.build.fetch import LocalFile

PARALLEL_FROM: Final = 64 << 20
"""A source of fewer bytes is read by this process alone: starting others takes 0.2 s and memory."""
_LARGEST: Final = 128 << 20
"""Bytes. Smaller ones even out between workers; larger ones need fewer files and samples."""
_SLICES_A_WORKER: Final = 4
_LOOK_AHEAD: Final = 4 << 20
"""How far from where it is wanted a line end is looked for."""
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


def plan(files: Sequence[LocalFile], workers: int, parallel_from: int) -> list[Slice]:
    """The pieces in the source's order, sized for ``workers``; as ``whole`` gives them when that is not worth while."""
    total = sum(file.bytes for file in files)
    if workers < 2 or total < parallel_from or any(file.format == "parquet" for file in files):
        return whole(files)
    size = max(parallel_from // (2 * _SLICES_A_WORKER), min(_LARGEST, total // (workers * _SLICES_A_WORKER) + 1))
    return [piece for number, file in enumerate(files) for piece in _cut(number, file, size)]


def _cut(number: int, file: LocalFile, size: int) -> Iterator[Slice]:
    start = 0
    if file.format in _CUT_FORMATS:
        with FileIO(file.path) as raw:
            while file.bytes - start > size + size // 2:
                end = _line_end(raw, start + size)
                if end is None or end >= file.bytes:
                    break
                yield Slice(number, start, end)
                start = end
    yield Slice(number, start)


def _line_end(raw: FileIO, position: int) -> int | None:
    """Where the first line ends that ends at or behind ``position``; None when there is none near."""
    raw.seek(position)
    for _ in range(0, _LOOK_AHEAD, io.DEFAULT_BUFFER_SIZE):
        chunk = raw.read(io.DEFAULT_BUFFER_SIZE)
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        if not chunk:
            return None
        position += len(chunk)
    return None
