"""CSV: every field is text exactly as it stands in the file, unless the spec gives its column a type.

Python's csv module parses, in strict mode: it reports row and line, and never guesses. DuckDB's reader does not number
rows, and reads empty fields as nulls.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import IO, Any, Final

from lookupdb.build.parse.csv_values import make_key_function, make_value_function
from lookupdb.build.parse.encoding import recognize_file
from lookupdb.build.parse.rows import UnfinishedSlice, check_names_once
from lookupdb.build.source.csv_cuts import open_csv_reader
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

_TOO_LONG: Final = "larger than"
"""The csv module says it of a field, we of a row."""
_ROW_END_BUFFER_BYTES: Final = 32 << 10
"""How much is read at once behind a slice: most rows end soon."""
_UNDECODED: Final = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as ``surrogateescape`` decodes it."""


class CsvParser:
    """Parses CSV. Rows are lists of text, as long as the header."""

    columns = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._csv, self._file, self._slice, self._max_row = spec.source.csv, file, piece, max_row_bytes
        self._raw = raw
        self._row_end_lines = (
            LinesToRowEnd(file, piece, max_row_bytes) if piece.extends_to_row_end and piece.end is not None else None
        )
        csv.field_size_limit(max_row_bytes)
        if piece.start and self._csv.header:
            with SliceFile(file.path, Slice(piece.file)) as top:
                self.names, _ = self._read_header(self._open_reader(_open_text(top, buffer=io.DEFAULT_BUFFER_SIZE)))
            self._lines = self._open_rows(_open_text(raw, "utf-8"))
        elif piece.start:
            self.names, self._lines = self._read_header(self._open_rows(_open_text(raw, "utf-8")))
        else:
            self.names, self._lines = self._read_header(self._open_rows(_open_text(raw)))
        self.key = make_key_function(spec, self.names, file.name)
        self.value = make_value_function(spec, self.names, file.name)

    def _open_rows(self, text: IO[str]) -> Any:
        """The slice's rows; with ``extends_to_row_end`` also the rest of the last one."""
        lines = _read_lines(text, self._max_row, self._file.name)
        return self._read_rows(lines if self._row_end_lines is None else self._row_end_lines.extend(lines))

    def _open_reader(self, text: IO[str]) -> Any:
        return self._read_rows(_read_lines(text, self._max_row, self._file.name))

    def _read_rows(self, lines: Iterable[str]) -> Any:
        self._row_length = _RowLength(self._max_row)
        return open_csv_reader(self._row_length.count(lines), self._csv, self._file.delimiter)

    def _read_header(self, reader: Any) -> tuple[list[str], Any]:
        if not self._csv.header:
            return [column.name for column in self._csv.columns], reader
        try:
            names = next(reader, None)
        except csv.Error as error:
            raise BadSource(f"{self._file.name}: its header is not CSV: {self._explain(str(error))}") from error
        except UnicodeDecodeError as error:
            raise self._utf8_error() from error
        self._row_length.characters = 0
        if self._row_end_lines is not None:
            self._row_end_lines.end_row()
        return _check_header(names, self._file.name), reader

    def __iter__(self) -> Iterator[list[str]]:
        width, row = len(self.names), self._slice.rows_before
        rows = self._lines if self._row_end_lines is None else self._row_end_lines.rows(self._lines)
        try:
            for fields in rows:
                self._row_length.characters = 0
                if len(fields) == width:
                    row += 1
                    yield fields
                elif fields:  # a blank line has no fields
                    raise self._width_error(row + 1, width, len(fields), self._slice.lines_before + self.lines)
        except csv.Error as error:
            raise self._syntax_error(row + 1, str(error), self._slice.lines_before + self.lines) from error
        except UnicodeDecodeError as error:
            raise self._utf8_error() from error

    def _utf8_error(self) -> BadSource:
        """The first error of a file that is not UTF-8.

        Reads the file again: text is decoded ahead of its rows, and how far depends on where the slice begins.
        """
        if (known := recognize_file(self._file.path, self._file.name)) is not None:
            return known
        with FileIO(self._file.path) as raw:
            text = _open_text(raw, errors="surrogateescape")
            reader = self._open_reader(text)
            row, width = (-1, 0) if self._csv.header else (0, len(self._csv.columns))
            try:
                for fields in reader:
                    self._row_length.characters = 0
                    row += bool(fields)
                    if any(map(_UNDECODED.search, fields)):
                        break
                    width = width or len(fields)
                    if fields and len(fields) != width:
                        return self._width_error(row, width, len(fields), reader.line_num)
            except csv.Error as error:
                return self._syntax_error(row + 1, str(error), reader.line_num)
        where = f"row {row} (up to line {reader.line_num})" if row else "header"
        return BadSource(f"{self._file.name} {where} is not valid UTF-8", hint="write the file in UTF-8")

    def _width_error(self, row: int, expected: int, actual: int, line: int) -> BadSource:
        return BadSource(
            f"{self._file.name} row {row} (line {line}): expected {expected} fields, found {actual}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r}: check both, and the row",
        )

    def unfinished_error(self, row: int, line: int) -> BadSource:
        """The error for a slice that ends within quotes, in its row ``row`` and line ``line``."""
        row, line = self._slice.rows_before + row, self._slice.lines_before + line
        return self._syntax_error(row, "unexpected end of data", line)

    def _syntax_error(self, row: int, reason: str, line: int) -> BadSource:
        kind = UnfinishedSlice if "unexpected end of data" in reason else BadSource
        return kind(
            f"{self._file.name} row {row} (up to line {line}): {self._explain(reason)}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r} (doubled within quotes)",
        )

    def _explain(self, reason: str) -> str:
        """What the csv module's ``reason`` means here."""
        if "unexpected end of data" in reason:
            return "a quote is opened and never closed"
        if _TOO_LONG in reason:
            too_long = f"it is longer than {self._max_row} characters, more than the memory limit allows"
            return f"{too_long}, or a quote in it is never closed"
        return reason

    def position(self) -> int:
        """How many bytes were read: a little more than was parsed."""
        return self._raw.tell()

    @property
    def end(self) -> int | None:
        """Where in the file the last row ends, if the slice extends to it; else None."""
        return None if self._row_end_lines is None else self._row_end_lines.end

    @property
    def lines(self) -> int:
        """How many lines were read, the header included."""
        number: int = self._lines.line_num
        return number


class _RowLength:
    """Limits what is read of a row that goes on from line to line, in however many fields: each may be short."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.characters = 0
        """Of the row that is being read: whoever gets it sets them to 0."""

    def count(self, lines: Iterable[str]) -> Iterator[str]:
        """``lines``. Raises csv.Error within a row that is too long."""
        for line in lines:
            self.characters += len(line)
            if self.characters > self._limit:
                raise csv.Error(f"row {_TOO_LONG}")
            yield line


class LinesToRowEnd:
    """Reads on behind a slice, line by line, until the slice's last row ends."""

    def __init__(self, file: LocalFile, piece: Slice, limit: int) -> None:
        assert piece.end is not None
        self._file, self._limit = file, limit
        self.end = piece.end
        """The offset in the file at which the last line read ends."""
        self._in_row = False

    def rows(self, reader: Iterable[list[str]]) -> Iterator[list[str]]:
        """The rows of ``reader``, which parses the lines of ``extend``."""
        for fields in reader:
            self._in_row = False
            yield fields

    def end_row(self) -> None:
        """Note that a row ended."""
        self._in_row = False

    def extend(self, lines: Iterator[str]) -> Iterator[str]:
        """The slice's own ``lines``, then the lines behind it while a row is open."""
        for line in lines:
            self._in_row = True
            yield line
        if self._in_row:
            yield from self._read_behind_slice()

    def _read_behind_slice(self) -> Iterator[str]:
        with SliceFile(self._file.path, Slice(0, self.end)) as raw:
            for line in _read_lines(
                _open_text(raw, "utf-8", buffer=_ROW_END_BUFFER_BYTES), self._limit, self._file.name
            ):
                self.end += len(line) if line.isascii() else len(line.encode())
                self._in_row = True
                yield line
                if not self._in_row:
                    return


def _open_text(
    raw: io.RawIOBase, encoding: str = "utf-8-sig", errors: str = "strict", buffer: int = 1 << 18
) -> IO[str]:
    return io.TextIOWrapper(
        io.BufferedReader(raw, buffer),
        encoding=encoding,
        errors=errors,
        newline="",
    )


def _read_lines(text: IO[str], limit: int, name: str) -> Iterator[str]:
    """Lines that fit in memory: a file without line breaks is not read whole."""
    for line in iter(lambda: text.readline(limit), ""):
        if len(line) >= limit:
            raise NotEnoughRoom(
                f"{name}: a line is longer than {limit} characters, more than the memory limit allows",
                hint="raise --memory-limit; or source.format or source.compression is not what the file is",
            )
        yield line


def _check_header(names: list[str] | None, where: str) -> list[str]:
    if names is None:
        raise BadSource(
            f"{where} is empty, expected a header",
            hint="nothing is in it: see whether whoever writes it has failed; a file without rows has its header",
        )
    if not names:
        raise BadSource(
            f"{where} begins with an empty line, expected a header",
            hint="take the line away, or set source.csv.header: false if it has no header by design",
        )
    check_names_once(names, f"{where}: its header")
    return names
