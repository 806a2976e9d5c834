"""Slices: parts of the source's files that can be parsed separately, and where to cut.

JSON lines are cut at line ends, which is exact. Cuts in CSV are guesses (``RowShape``). A slice that begins with a row
and ends with one proves the cut behind it, because a CSV parser is always in the same state at the start of a row; so
slices are proven in the source's order. After a wrong cut, reading starts again where the row before it really ends: no
byte is read more than twice. Other formats are read whole.
"""

from __future__ import annotations

import csv
import enum
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from lookupdb.builder.fetched_file import LocalFile
from lookupdb.dataset.spec import Csv

# Guess where rows begin in a CSV file, from the bytes near an intended cut.
#
# Quoted fields hold line breaks, so only the whole file before a line end proves that it ends a row. The reader of the
# slice before a cut proves or corrects it. A guess looks for rows after a line end that have as many fields as the
# header and quotes in pairs. Lines within quoted text seldom look like that.


_ROWS_JUDGED: Final = 16
_CANDIDATES: Final = 2000
_UNFINISHED: Final = "unexpected end of data"
"""The csv module's error for a file that ends within quotes."""
_LINE_ENDS: Final = ("", "\n", "\r\n", "\r")
_JUDGED_WINDOWS: Final = 4
"""The number of windows' worth of bytes to parse at most to judge the line ends of one window."""


class _Verdict(enum.IntEnum):
    NO_ROWS = 0
    ROWS_WITH_ODD_QUOTES = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class RowShape:
    """The look of the rows of one file."""

    options: Csv
    delimiter: str
    fields: int

    @classmethod
    def from_first_bytes(cls, options: Csv, delimiter: str, top: bytes) -> RowShape | None:
        """Return the shape from the file's first bytes; None if they hold no whole header."""
        if not options.header:
            return cls(options, delimiter, len(options.columns))
        text = io.TextIOWrapper(io.BytesIO(top), encoding="utf-8-sig", errors="replace", newline="")
        try:
            names = next(open_csv_reader(text, options, delimiter), None)
        except csv.Error:
            return None
        return cls(options, delimiter, len(names)) if names and text.read(1) else None

    def find_row_start(self, window: bytes) -> int | None:
        """Return the offset in ``window`` at which a row most likely begins; None if nothing in it looks like rows."""
        second_best, position, parsed = None, 0, 0
        for _ in range(_CANDIDATES):
            position = window.find(b"\n", position) + 1
            if not position or parsed > _JUDGED_WINDOWS * len(window):
                break
            verdict, characters = self._judge(window, position)
            parsed += characters
            if verdict is _Verdict.ROWS:
                return position
            if verdict is _Verdict.ROWS_WITH_ODD_QUOTES and second_best is None:
                second_best = position
        return second_best

    def _judge(self, window: bytes, position: int) -> tuple[_Verdict, int]:
        """Return whether rows begin at ``position``, and how many characters were parsed to decide."""
        lines = _Lines(window, position)
        rows, verdict = 0, _Verdict.ROWS
        try:
            for fields in open_csv_reader(iter(lines), self.options, self.delimiter):
                row = lines.take_row()
                if not row.endswith(("\n", "\r")):
                    break  # the window ends within this row
                if fields and len(fields) != self.fields:
                    return _Verdict.NO_ROWS, lines.characters
                if self.options.quote and _drop_escaped(row, self.options).count(self.options.quote) % 2:
                    verdict = _Verdict.ROWS_WITH_ODD_QUOTES
                rows += bool(fields)
                if rows == _ROWS_JUDGED:
                    break
        except csv.Error as error:
            if _UNFINISHED not in str(error):
                return _Verdict.NO_ROWS, lines.characters
        return (verdict if rows else _Verdict.NO_ROWS), lines.characters


def _drop_escaped(row: str, options: Csv) -> str:
    """Return ``row`` without escaped quotes."""
    if not options.escape:
        return row
    return row.replace(options.escape * 2, "").replace(options.escape + options.quote, "")


class _Lines:
    """The lines of ``window`` from ``position`` on; remembers those of the current row."""

    def __init__(self, window: bytes, position: int) -> None:
        content = io.BytesIO(window)  # shares the bytes
        content.seek(position)
        self._text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", newline="")
        self._row: list[str] = []
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self._row.append(line)
            self.characters += len(line)
            yield line

    def take_row(self) -> str:
        """Return the text of the row that was just parsed."""
        row = "".join(self._row)
        self._row.clear()
        return row


def open_csv_reader(lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> Any:
    """Return the rows of ``lines`` as lists of fields, None for null. Only this function parses the spec's dialect."""
    if options.escape or options.null_values:
        return DialectReader(lines, options, delimiter, has_header=has_header)
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)


class DialectReader:
    """Read CSV with escapes and null markers; without them it equals Python's csv module in strict mode.

    That module does not report which fields were quoted, and it applies escapes to unquoted fields, too.
    """

    def __init__(self, lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> None:
        self._lines, self._delimiter, self._quote = iter(lines), delimiter, options.quote
        self._escape = options.escape or ""
        self._nulls = frozenset(options.null_values)
        self._is_header = has_header
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        escaped = rf"|{escape}(?:\r\n|.)" if escape else ""
        outside = "" if quote else escaped
        # A field's content within one line.
        plain_stop = rf"\r\n{re.escape(delimiter)}{escape if outside else ''}"
        self._plain = re.compile(rf"(?:[^{plain_stop}]++{outside})*+", re.DOTALL)
        self._quoted = self._plain
        if quote:
            self._quoted = re.compile(rf"(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+", re.DOTALL)
        self._pairs = re.compile((rf"{quote}{quote}" if quote else "(?!)") + escaped, re.DOTALL)
        self._line, self._at = "", 0
        self.line_num = 0
        self.escaped_quote = self.plain_quote = False
        """True if a quoted field had a quote after a backslash, and an unquoted field a quote."""

    def __iter__(self) -> Iterator[list[str | None]]:
        return self

    def __next__(self) -> list[str | None]:
        self._line, self._at = next(self._lines), 0
        self.line_num += 1
        fields: list[str | None] = []
        if self._line[0] not in "\r\n":
            fields.append(self._read_field())
            while self._line.startswith(self._delimiter, self._at):
                self._at += 1
                fields.append(self._read_field())
            if self._line[self._at :] not in _LINE_ENDS:
                raise csv.Error(f"'{self._delimiter}' expected after '{self._quote}'")
        self._is_header = False
        return fields

    def _read_field(self) -> str | None:
        is_quoted = bool(self._quote) and self._line.startswith(self._quote, self._at)
        raw = self._read_raw(is_quoted)
        if is_quoted:
            self.escaped_quote |= f"\\{self._quote}" in raw or raw.endswith("\\")
        elif raw in self._nulls and not self._is_header:
            return None
        elif self._quote:
            self.plain_quote |= self._quote in raw
            if self._escape and self._escape + self._quote in raw:
                raise csv.Error(f"an unquoted field has {self._escape}{self._quote}")
            return raw
        return self._pairs.sub(self._to_text, raw)

    def _read_raw(self, is_quoted: bool) -> str:
        """Return the raw field, without the quotes around it."""
        pattern, parts = (self._quoted if is_quoted else self._plain), []
        self._at += is_quoted
        while True:
            part = pattern.match(self._line, self._at)[0]  # type: ignore[index]  # it matches nothing, too
            parts.append(part)
            self._at += len(part)
            if self._escape and self._line.startswith(self._escape, self._at):
                raise csv.Error(_UNFINISHED)
            if self._at < len(self._line) or not (is_quoted or part.endswith(("\n", "\r"))):
                break
            self._line, self._at = next(self._lines, ""), 0
            if not self._line:
                raise csv.Error(_UNFINISHED)
            self.line_num += 1
        self._at += is_quoted
        return "".join(parts)

    def _to_text(self, pair: re.Match[str]) -> str:
        """Return the text that a doubled quote, or an escape, means."""
        meant = pair[0][1:]
        if meant not in (self._quote, self._escape, self._delimiter, "\n", "\r", "\r\n"):
            raise csv.Error(
                f"{self._escape} precedes {meant!r}, expected a quote, delimiter, line break or {self._escape}"
            )
        return meant


PARALLEL_FROM: Final = 64 << 20
"""This process reads a smaller source alone: starting others takes 0.2 s and memory."""
_MAX_SLICE_BYTES: Final = 128 << 20
"""Smaller slices balance the load better; larger ones need fewer files and samples."""
_SLICES_A_WORKER: Final = 4
_LOOK_AHEAD: Final = 1 << 20
"""The distance behind an intended cut to search for a row's start: at most this, and at most this part of a slice:"""
_LOOK_AHEAD_PART: Final = 8
_MIN_LOOK_AHEAD: Final = 4 << 10
_CUT_FORMATS: Final = frozenset(["jsonl", "csv"])


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive whole rows of one file."""

    file: int
    """The file's number in the source."""
    start: int = 0
    """Offset of its first byte."""
    end: int | None = None
    """Offset of its end; None for the end of the file."""
    rows_before: int = 0
    """The file's rows and lines before it, for messages; 0 while unknown."""
    lines_before: int = 0
    extends_to_row_end: bool = False
    """True if the reader reads the last row to its end, even behind the slice's end."""


class SliceFile(io.RawIOBase):
    """The bytes of a slice, as a file."""

    def __init__(self, path: Path, piece: Slice) -> None:
        self._file = FileIO(path)
        self._file.seek(piece.start)
        self._length = None if piece.end is None else piece.end - piece.start
        self._read = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``, as any raw file does."""
        with memoryview(buffer) as view:
            size = self._file.readinto(view if self._length is None else view[: self._length - self._read])
        self._read += size
        return size

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``, -1 for all, without the base class's second copy."""
        if size < 0:
            return super().read(size)
        data = self._file.read(size if self._length is None else min(size, self._length - self._read))
        self._read += len(data)
        return data

    def tell(self) -> int:
        """Return how many of the slice's bytes were read."""
        return self._read

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()
        super().close()


def whole_files(files: Sequence[LocalFile]) -> list[Slice]:
    """Return one slice per file."""
    return [Slice(number) for number in range(len(files))]


def plan_slices(
    files: Sequence[LocalFile], workers: int, parallel_from: int, options: Csv | None = None
) -> list[Slice]:
    """Return slices in the source's order, sized for ``workers``; ``whole_files`` if cutting does not pay.

    ``options`` are those of CSV.
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
    """Yield offsets to cut at, about every ``size`` bytes. A place without a row's start nearby is skipped."""
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
    """Return the distance to the end of the current line; None if it does not end within ``look_ahead`` bytes."""
    for start in range(0, look_ahead, io.DEFAULT_BUFFER_SIZE):
        chunk = raw.read(io.DEFAULT_BUFFER_SIZE)
        offset = chunk.find(b"\n")
        if offset >= 0:
            return start + offset + 1
    return None
