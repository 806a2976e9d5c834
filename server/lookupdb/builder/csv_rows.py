"""CSV: every field is the exact text in the file, unless the spec gives its column a type.

Python's csv module parses, in strict mode: it reports row and line, and never guesses. DuckDB's reader is not used: it
does not number rows, and reads empty fields as nulls. ``DialectReader`` parses files with escapes or null markers.

Many programs write a quote within quotes as ``\\"``, not as ``""``. Read without ``source.csv.escape``, such rows
seldom fit, and the error's hint names the option. If they fit, two rows may have become one. Then a quoted field has a
quote after a backslash, as JSON and paths may have too. And an unquoted field has a quote, which a writer that doubles
quotes never writes. A file with both is rejected (``check_quotes``)."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import FileIO
from operator import itemgetter
from typing import IO, Any, Final

import orjson

from lookupdb.builder.files import LocalFile, Slice, SliceFile
from lookupdb.builder.rows import (
    DialectReader,
    QuotesSeen,
    ReportProgress,
    RowParser,
    RowRejected,
    SliceRecords,
    UnfinishedSlice,
    check_json_text,
    check_names_once,
    find_partitions,
    join_key,
    max_native_value,
    open_csv_reader,
    unknown_column_error,
    value_columns,
)
from lookupdb.dataset.spec import Csv, CsvColumn, DatasetSpec
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.wording import format_count

# The key and the value of a CSV row: its fields as text, or as the types that the spec gives to columns.
#
# A field is None if it is null, which needs null markers in the spec.


Fields = list[str | None]
Convert = Callable[[str], Any]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
BOOLEANS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""The fields of a boolean column in lower case; any case is read. The kernels have the same list."""
_SHAPES: Final = {
    "an integer": _INTEGER,
    "a number": _NUMBER,
    "digits after a zero or a plus sign": re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?"),
    "digits with separators": re.compile(r"[-+]?[0-9]+(?:[ '_.,][0-9]+)+"),
    "perhaps a null marker: unquoted texts of source.csv.nullValues are null": re.compile(
        r"\\N|NULL|null|Null|NA|N/A|None"
    ),
    "blanks alone": re.compile(r"\s+"),
    "with blanks around it": re.compile(r"\s.*|.*\s", re.DOTALL),
}
"""Shapes of a field that does not have the column's type. The error names the first shape that matches."""


def _find_positions(
    where: str, role: str, columns_needed: Sequence[str], names: list[str], delimiter: str
) -> list[int]:
    positions = {name: number for number, name in enumerate(names)}
    for name in columns_needed:
        if name not in positions:
            raise unknown_column_error(where, role, name, names, delimiter=delimiter)
    return [positions[name] for name in columns_needed]


def _make_key_function(
    spec: DatasetSpec, names: list[str], where: str, delimiter: str, *, is_nullable: bool = False
) -> Callable[[Any], str]:
    """Return the function from a row's fields to its key, not yet normalised. Raises BadSource for a missing column."""
    columns = spec.key.columns
    positions = _find_positions(where, "key.columns", columns, names, delimiter)
    if is_nullable or spec.source.csv.null_values:
        parts = list(zip(columns, positions, strict=True))
        return lambda fields: _join_nullable(parts, fields, spec.key.separator)
    if len(positions) == 1:
        return itemgetter(positions[0])
    separator, pick = spec.key.separator, itemgetter(*positions)
    return lambda fields: join_key(columns, pick(fields), separator)


def _join_nullable(parts: list[tuple[str, int]], fields: Fields, separator: str) -> str:
    """Return the key of fields that may be null."""
    texts: list[str] = []
    for column, position in parts:
        text = fields[position]
        if text is None:
            raise RowRejected(f"the key column {column} is null")
        texts.append(text)
    return texts[0] if len(texts) == 1 else join_key([column for column, _ in parts], texts, separator)


def _make_value_function(spec: DatasetSpec, names: list[str], where: str, delimiter: str) -> Callable[[Any], bytes]:
    """Return the function from a row's fields to its value. Raises BadSource for a missing column."""
    types = {column.name: column for column in spec.source.csv.columns}
    _find_positions(where, "source.csv.columns", list(types), names, delimiter)
    role, columns_needed = value_columns(spec.value)
    positions = _find_positions(where, role, columns_needed, names, delimiter)
    if spec.value.field is not None:
        raise BadSource(f"{where}: value.field is for JSON and Parquet", hint=_single_column_hint(spec.value.field))
    if spec.value.column is not None:
        return _make_column_function(positions[0], spec.value.column, spec.value.format)
    if not columns_needed:
        positions = [number for number, name in enumerate(names) if name not in spec.key.columns]
    return _make_object_function([(number, names[number]) for number in positions], types)


def _make_column_function(position: int, name: str, value_format: str) -> Callable[[Fields], bytes]:
    alternative = _single_column_hint(name)

    def raw(fields: Fields) -> bytes:
        field = fields[position]
        if field is None:
            raise RowRejected(f"the column {name} is null, and a raw value is text")
        return field.encode()

    def json(fields: Fields) -> bytes:
        field = fields[position]
        return b"null" if field is None else check_json_text(field.encode(), f"the column {name}", alternative)

    return raw if value_format == "raw" else json


def _single_column_hint(name: str) -> str:
    """Return a hint on how to make the text of one CSV column the value."""
    return f"for the text as it is, set value.column and `value.format: raw`; for an object, `value.columns: [{name}]`"


def _make_object_function(columns: list[tuple[int, str]], types: dict[str, CsvColumn]) -> Callable[[Fields], bytes]:
    converters = [
        (number, name, convert)
        for number, name in columns
        if (convert := _find_converter(types.get(name, CsvColumn(name)))) is not None
    ]

    def make(fields: Fields) -> bytes:
        members: dict[str, Any] = {name: fields[number] for number, name in columns}
        for number, name, convert in converters:
            field = fields[number]
            if field is None:
                continue
            try:
                members[name] = convert(field)
            except RowRejected as rejected:
                raise RowRejected(f"the column {name}: {rejected}") from None
        return orjson.dumps(members)

    return make


def _find_converter(column: CsvColumn) -> Convert | None:
    """Return the function from a field to a JSON value; None for text that stays unchanged."""
    convert = _TYPES[column.type]
    if column.empty == "null":
        return lambda field: None if field == "" else (convert(field) if convert else field)
    return convert


def _parse_digits(pattern: re.Pattern[str], what: str, field: str) -> orjson.Fragment:
    if not pattern.fullmatch(field):
        raise RowRejected(f"expected {what}, found {_describe_field(field)}")
    return orjson.Fragment(field)


def _parse_boolean(field: str) -> bool:
    found = BOOLEANS.get(field.lower())
    if found is None:
        raise RowRejected(f"expected a boolean ({', '.join(BOOLEANS)}), found {_describe_field(field)}")
    return found


def _describe_field(field: str) -> str:
    """Return the shape of ``field``, without its content."""
    if not field:
        return 'nothing (`empty: "null"` would make it null)'
    shape = next((f" ({shape})" for shape, pattern in _SHAPES.items() if pattern.fullmatch(field)), "")
    return f"text of {format_count(len(field), 'character')}{shape}"


_TYPES: Final[dict[str, Convert | None]] = {
    "text": None,
    "integer": partial(_parse_digits, _INTEGER, "an integer"),
    "number": partial(_parse_digits, _NUMBER, "a number"),
    "boolean": _parse_boolean,
    "json": lambda field: orjson.Fragment(check_json_text(field.encode(), _describe_field(field))),
}


_TOO_LONG: Final = "larger than"
"""Part of the csv module's message about a long field, and of our message about a long row."""
_ROW_END_WINDOW: Final = 32 << 10
"""Bytes read at first beyond a slice: most rows end soon."""
_HEAD_BYTES: Final = 256 << 10
"""Bytes of the file to read at once, and to search for an escaped quote if the rejected row has none."""
_ESCAPES: Final = (
    """if quotes are escaped, set source.csv.escape: '\\' (or have Spark double them: option("escape", "\\""))"""
)


class CsvParser(RowParser):
    """Parse CSV. Rows are lists of text, as long as the header."""

    names: list[str]

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        super().__init__(file, raw)
        self._csv, self._slice, self._max_row = spec.source.csv, piece, max_row_bytes
        self._mark = f"\\{self._csv.quote}"
        """A quote after a backslash: perhaps the file escapes quotes."""
        self.partitions = find_partitions(spec, file.name)
        """The columns from the file's path. A file without a header has none of these columns."""
        self._row_end_lines = (
            _LinesToRowEnd(file, piece, max_row_bytes) if piece.extends_to_row_end and piece.end is not None else None
        )
        csv.field_size_limit(max_row_bytes)
        if piece.start and self._csv.header:
            with SliceFile(file.path, Slice(piece.file)) as top:
                text = _open_text(top, buffer=io.DEFAULT_BUFFER_SIZE)
                self.names, _ = self._read_header(self._open_rows(text, has_header=True, extends=False))
            self._lines = self._open_rows(_open_text(raw, "utf-8"))
        elif piece.start:
            self.names, self._lines = self._read_header(self._open_rows(_open_text(raw, "utf-8")))
        else:
            self.names, self._lines = self._read_header(self._open_rows(_open_text(raw), has_header=self._csv.header))
        self._width = len(self.names)
        self.partitions = {name: text for name, text in self.partitions.items() if name not in self.names}
        self.names += self.partitions
        is_nullable = None in self.partitions.values()
        self.key = _make_key_function(spec, self.names, file.name, file.delimiter, is_nullable=is_nullable)
        self.value = _make_value_function(spec, self.names, file.name, file.delimiter)

    def _open_rows(self, text: IO[str], *, has_header: bool = False, extends: bool = True) -> Any:
        """Return the rows of ``text``. With ``extends``, read the last row to its end if the slice extends so far."""
        lines = _read_lines(text, self._max_row, self._file.name)
        if extends and self._row_end_lines is not None:
            lines = self._row_end_lines.extend(lines)
        self._row_length = _RowLength(self._max_row, self._mark)
        return open_csv_reader(self._row_length.count(lines), self._csv, self._file.delimiter, has_header=has_header)

    def _read_header(self, reader: Any) -> tuple[list[str], Any]:
        if not self._csv.header:
            return [column.name for column in self._csv.columns if column.name not in self.partitions], reader
        try:
            names = next(reader, None)
        except csv.Error as error:
            raise BadSource(
                f"{self._file.name}: its header is not CSV: {self._explain(str(error))}", hint=self._dialect_hint("")
            ) from error
        except UnicodeDecodeError as error:
            raise self._utf8_error() from error
        self._row_length.characters = 0
        if self._row_end_lines is not None:
            self._row_end_lines.in_row = False
        if names is None:
            raise BadSource(
                f"{self._file.name} is empty, expected a header",
                hint="check the program that writes it: a file without rows still needs its header",
            )
        if not names:
            raise BadSource(
                f"{self._file.name} begins with an empty line, expected a header",
                hint="remove the line, or set source.csv.header: false if it has no header by design",
            )
        check_names_once(names, f"{self._file.name}: its header")
        return names, reader

    def __iter__(self) -> Iterator[list[str | None]]:
        width, row, lines_before = self._width, self._slice.rows_before, self._slice.lines_before
        more = list(self.partitions.values())
        rows = self._lines if self._row_end_lines is None else self._row_end_lines.rows(self._lines)
        try:
            for fields in rows:
                self._row_length.characters = 0
                if len(fields) == width:
                    row += 1
                    yield fields + more if more else fields
                elif fields:  # skip blank lines, which have no fields
                    raise self._width_error(row + 1, width, len(fields), lines_before + self._lines.line_num)
        except csv.Error as error:
            raise self._syntax_error(row + 1, str(error), lines_before + self._lines.line_num) from error
        except UnicodeDecodeError as error:
            raise self._utf8_error() from error
        self.lines = self._lines.line_num
        self.quotes_seen = self._row_length.has_mark, None
        if isinstance(self._lines, DialectReader):
            self.quotes_seen = self._lines.escaped_quote, self._lines.plain_quote
        self.end = None if self._row_end_lines is None else self._row_end_lines.end

    def _utf8_error(self) -> BadSource:
        """Return the error for a file that is not UTF-8. Text is decoded ahead of its rows, so look for the line."""
        decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
        with FileIO(self._file.path) as raw:
            try:
                while chunk := raw.read(_HEAD_BYTES):
                    line += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
        return BadSource(f"{self._file.name} line {line} is not valid UTF-8", hint="write the file in UTF-8")

    def _width_error(self, row: int, expected: int, actual: int, line: int) -> BadSource:
        return BadSource(
            f"{self._file.name} row {row} (line {line}): expected {format_count(expected, 'field')}, found {actual}",
            hint=self._dialect_hint(": check both, and the row"),
        )

    def _dialect_hint(self, note: str) -> str:
        """Return the dialect, and perhaps a missing option, which only the process that reports errors looks for."""
        hint = f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r}"
        if self._csv.escape:
            return f"{hint}, escape '{self._csv.escape}'{note}"
        if self._csv.quote and self._csv.escape is None and self._slice.extends_to_row_end:
            where = "the row" if self._row_length.row_has_mark else ""
            if not where:
                with FileIO(self._file.path) as raw:
                    head = raw.read(_HEAD_BYTES)
                place = head.find(self._mark.encode())
                where = "" if place < 0 else f"line {len(head[: place + 1].splitlines())}"
            if where:
                return f"{hint}{note}; {where} has {self._mark}: {_ESCAPES}"
        return f"{hint}{note}"

    def unfinished_error(self, row: int, line: int, text: bytes) -> BadSource:
        """Return the error for a slice that ends within quotes, in row ``row`` and line ``line``: ``text`` is the
        row."""
        self._row_length.row_has_mark = self._mark.encode() in text
        row, line = self._slice.rows_before + row, self._slice.lines_before + line
        return self._syntax_error(row, "unexpected end of data", line)

    def _syntax_error(self, row: int, reason: str, line: int) -> BadSource:
        kind = UnfinishedSlice if "unexpected end of data" in reason else BadSource
        return kind(
            f"{self._file.name} row {row} (up to line {line}): {self._explain(reason)}",
            hint=self._dialect_hint(" (doubled within quotes)" if self._csv.quote else ""),
        )

    def _explain(self, reason: str) -> str:
        """Return the meaning of the csv module's ``reason``."""
        if "unexpected end of data" in reason:
            return "a quote is opened and never closed" if self._csv.quote else "the file ends after an escape"
        if _TOO_LONG in reason:
            too_long = f"it is longer than {self._max_row} characters, more than the memory limit allows"
            return f"{too_long}, or a quote in it is never closed"
        return reason


class _RowLength:
    """Limit the length of a whole row, because each of its lines and fields may be short. Look for a mark in its
    lines."""

    def __init__(self, limit: int, mark: str) -> None:
        self._limit, self._mark = limit, mark
        self.has_mark = self.row_has_mark = False
        """Whether any line holds ``mark``, and whether a line of the last row does."""
        self.characters = 0
        """Characters of the current row; the reader of rows resets them to 0."""

    def count(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield ``lines``. Raises csv.Error within a row that is too long."""
        for line in lines:
            if not self.characters:
                self.row_has_mark = False
            self.characters += len(line)
            if self.characters > self._limit:
                raise csv.Error(f"row {_TOO_LONG}")
            if self._mark in line:
                self.has_mark = self.row_has_mark = True
            yield line


class _LinesToRowEnd:
    """Read on beyond a slice, line by line, until its last row ends."""

    def __init__(self, file: LocalFile, piece: Slice, limit: int) -> None:
        assert piece.end is not None
        self._file, self._limit = file, limit
        self.end = piece.end
        """Offset in the file at the end of the last line that was read."""
        self.in_row = False
        """True while a row is open."""

    def rows(self, reader: Iterable[list[str | None]]) -> Iterator[list[str | None]]:
        """Yield the rows of ``reader``, which parses the lines of ``extend``."""
        for fields in reader:
            self.in_row = False
            yield fields

    def extend(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield the slice's own ``lines``, then the lines after it while a row is open."""
        for line in lines:
            self.in_row = True
            yield line
        if not self.in_row:
            return
        with SliceFile(self._file.path, Slice(0, self.end)) as raw:
            text = _open_text(raw, "utf-8", buffer=_ROW_END_WINDOW)
            for line in _read_lines(text, self._limit, self._file.name):
                self.end += len(line) if line.isascii() else len(line.encode())
                self.in_row = True
                yield line
                if not self.in_row:
                    return


def _open_text(raw: io.RawIOBase, encoding: str = "utf-8-sig", buffer: int = 1 << 18) -> IO[str]:
    return io.TextIOWrapper(io.BufferedReader(raw, buffer), encoding=encoding, newline="")


def _read_lines(text: IO[str], limit: int, name: str) -> Iterator[str]:
    """Yield lines that fit in memory: a file without line breaks is not read whole."""
    for line in iter(lambda: text.readline(limit), ""):
        if len(line) >= limit:
            raise NotEnoughRoom(
                f"{name}: a line is longer than {limit} characters, more than the memory limit allows",
                hint="raise --memory-limit, or correct source.format or source.compression",
            )
        yield line


def check_quotes(file: LocalFile, options: Csv, findings: Sequence[QuotesSeen], limit: int) -> None:
    """Raise BadSource if quotes of ``file`` may be escaped: see the module's docstring. ``findings`` are the
    ``quotes_seen`` of its slices.

    Reads the file again to find the rows: Python's csv module does not report what was quoted.
    """
    escaped, plain = any(escaped for escaped, _ in findings), any(plain is not False for _, plain in findings)
    if options.escape is not None or not options.quote or not (escaped and plain):
        return
    with FileIO(file.path) as raw:
        text = _open_text(raw)
        reader = DialectReader(_read_lines(text, limit, file.name), options, file.delimiter)
        escaped_row = plain_row = None
        for row, _ in enumerate(filter(None, reader), 0 if options.header else 1):
            escaped_row = row if escaped_row is None and reader.escaped_quote else escaped_row
            plain_row = row if plain_row is None and reader.plain_quote else plain_row
            if escaped_row is not None and plain_row is not None:
                escaped_name, plain_name = (f"row {row}" if row else "the header" for row in (escaped_row, plain_row))
                raise BadSource(
                    f"{file.name}: {escaped_name} has a quote after a backslash in a quoted field, and {plain_name} "
                    "has a quote in an unquoted field: if the file escapes quotes, its rows were read wrongly",
                    hint=f"{_ESCAPES}; if backslashes are text, set source.csv.escape: ''",
                )


# Read slices with the native row kernel.
#
# The kernel turns usual rows into records and stops at any other. Python's parser takes such a row; if the rest of a
# slice is not CSV, Python takes it all. So only Python rejects rows and reports errors.


_WINDOW: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"


def find_csv_obstacle(spec: DatasetSpec, delimiter: str) -> str | None:
    """Return why the native kernel cannot read CSV for ``spec``; None if it can."""
    quote = spec.source.csv.quote
    if not delimiter.isascii() or not quote.isascii() or delimiter in (quote, "\r", "\n") or quote in ("\r", "\n"):
        return f"the delimiter is {delimiter!r} and the quote {quote!r}"
    return None


class NativeCsv:
    """Read a slice of CSV into its records. Afterwards, ``lines`` is the number of lines, and ``position`` the number
    of the slice's bytes that were read. For ``end``, see ``RowParser``."""

    def __init__(
        self,
        kernels: Any,
        spec: DatasetSpec,
        file: LocalFile,
        piece: Slice,
        max_row: int,
        parser: CsvParser,
        records: SliceRecords,
    ) -> None:
        self._file, self._piece, self._max_row = file, piece, max_row
        self._parser, self._records = parser, records
        self._has_header = spec.source.csv.header and not piece.start
        self._extends = piece.extends_to_row_end and piece.end is not None
        self.end = piece.end if self._extends else None
        self.lines = self.position = 0
        self._block, self._at, self._is_last = b"", 0, False
        self._window = _WINDOW
        quote, escape = spec.source.csv.quote, spec.source.csv.escape
        nulls = [text.encode() for text in spec.source.csv.null_values]
        names, positions = parser.names, {name: number for number, name in enumerate(parser.names)}
        _, chosen = value_columns(spec.value)
        types = {column.name: column for column in spec.source.csv.columns}
        columns: list[tuple[int, bytes, str, bool]] = []
        """For each column: field number, text before the member, type, and whether empty means null."""
        for number, name in enumerate(chosen or [name for name in names if name not in spec.key.columns]):
            column = types.get(name, CsvColumn(name))
            head = (b"," if number else b"{") + orjson.dumps(name) + b":"
            columns.append((positions[name], head, column.type, column.empty == "null"))
        self._rules = kernels.CsvRows(
            list(spec.key.normalize),
            records.encode,
            (ord(file.delimiter), ord(quote) if quote else None, ord(escape) if escape else None, nulls),
            len(names),
            [positions[name] for name in spec.key.columns],
            spec.key.separator.encode(),
            "object" if spec.value.column is None else spec.value.format,
            columns,
            max_native_value(spec),
            max_row,
        )

    def read(self, report: ReportProgress) -> bool:
        """Read the slice to its end. Return False if Python's parser must continue after the rows taken so far. Raises
        BadSource, NotEnoughRoom."""
        records, sorter = self._records, self._records.sorter
        with SliceFile(self._file.path, self._piece) as raw:
            while len(self._block) < len(_BOM) and not self._is_last:
                self._read_more(raw)
            if not self._piece.start and self._block.startswith(_BOM):
                self._at = len(_BOM)
            if self._has_header and self._next_fields(raw, is_header=True) != self._parser.names:
                return False
            reported = (0, 0)
            while True:
                stop, self._at, rows, lines = self._rules.read(
                    self._block, self._at, self._is_last, records.place, sorter.records, sorter.memory, records.sample
                )
                records.row += rows
                self.lines += lines
                if stop == "full":
                    sorter.spill_if_full()
                elif stop == "odd":
                    fields = self._next_fields(raw)
                    assert fields is not None, "the kernel found this row"
                    self._records.take(self._parser.key, self._parser.value, fields)
                elif stop == "end":
                    report(self.position - reported[0], records.row - reported[1])
                    reported = (self.position, records.row)
                    if self._is_last:
                        sorter.spill_if_full()
                        return True
                    if len(self._block) - self._at > self._max_row:
                        return False
                    if self._at:
                        self._window = _WINDOW
                    self._read_more(raw)
                else:
                    return stop == "open quote" and self._finish_row()

    @property
    def quotes_seen(self) -> QuotesSeen:
        """The quotes found."""
        seen: tuple[bool, bool] = self._rules.quotes_seen()
        return seen

    def _read_more(self, raw: SliceFile) -> None:
        """Read on after the rest of the block. Windows grow until a row fits."""
        rest = self._block[self._at :]
        chunk = raw.read(min(self._window, self._max_row + _WINDOW - len(rest)))
        self._window *= 2
        self.position += len(chunk)
        self._block, self._at, self._is_last = rest + chunk, 0, not chunk

    def _next_fields(self, raw: SliceFile, *, is_header: bool = False) -> list[str | None] | None:
        """Return the fields of the next row; None if there is no whole row, or it is not UTF-8."""
        while True:
            try:
                found = self._rules.read_fields(self._block, self._at, self._is_last, is_header)
            except UnicodeDecodeError:
                return None
            if found is not None or self._is_last or len(self._block) - self._at > self._max_row:
                break
            self._read_more(raw)
        if found is None:
            return None
        end, fields = found
        self.lines += len(self._block[self._at : end].splitlines())
        self._at = end
        return list(fields)

    def _finish_row(self) -> bool:
        """The slice ended within quotes: read its last row to its end, or raise if it must not extend. Return False if
        that gives no valid row."""
        if not self._extends:
            rest = self._block[self._at :]
            raise self._parser.unfinished_error(self._records.row + 1, self.lines + len(rest.splitlines()), rest)
        assert self._piece.end is not None
        inside = len(self._block) - self._at
        with SliceFile(self._file.path, Slice(self._piece.file, self._piece.end)) as behind:
            self._is_last, self._window = False, _ROW_END_WINDOW
            position = self.position
            self._read_more(behind)
            fields = self._next_fields(behind)
            self.position = position
            if fields is None or len(fields) != len(self._parser.names):
                return False
            self.end = self._piece.end + self._at - inside
        self._records.take(self._parser.key, self._parser.value, fields)
        return True
