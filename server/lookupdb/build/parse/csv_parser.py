"""CSV: every field is text exactly as it stands in the file, unless the spec gives its column a type.

Python's csv module parses, in strict mode, because it tells row and line and never guesses: DuckDB's reader does not
number rows, and takes empty fields for nulls.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from operator import itemgetter
from typing import IO, Any, Final

import orjson

from lookupdb.build.parse.rows import RowRejected, Unfinished, joined_key, json_text, unknown_column, value_names
from lookupdb.build.source.csv_cuts import csv_reader
from lookupdb.build.source.fetch import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import CsvColumn, DatasetSpec

Convert = Callable[[str], Any]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BEYOND_BYTES: Final = 32 << 10
"""What is read at once behind a slice: most rows end soon."""
_BOOLEANS: Final = {"true": True, "false": False}


class CsvParser:
    """CSV. Rows are lists of text, as long as the header is."""

    columns = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._csv, self._file, self._piece, self._max_row = spec.source.csv, file, piece, max_row_bytes
        self._raw = raw
        self._beyond = LinesToRowEnd(file, piece, max_row_bytes) if piece.runs_on and piece.end is not None else None
        csv.field_size_limit(max_row_bytes)
        if piece.start and self._csv.header:
            with SliceFile(file.path, Slice(piece.file)) as top:
                self.names, _ = self._begin(self._reader(_open_text(top, buffer=io.DEFAULT_BUFFER_SIZE)))
            self._lines = self._rows(_open_text(raw, "utf-8"))
        elif piece.start:
            self.names, self._lines = self._begin(self._rows(_open_text(raw, "utf-8")))
        else:
            self.names, self._lines = self._begin(self._rows(_open_text(raw)))
        self.key = _key_function(spec, self.names, file.name)
        self.value = _value_function(spec, self.names, file.name)

    def _rows(self, text: IO[str]) -> Any:
        """The slice's rows, and with ``runs_on`` the whole of the last one."""
        if self._beyond is None:
            return self._reader(text)
        lines = self._beyond.behind(_lines(text, self._max_row, self._file.name))
        return csv_reader(lines, self._csv, self._file.delimiter)

    def _reader(self, text: IO[str]) -> Any:
        return csv_reader(_lines(text, self._max_row, self._file.name), self._csv, self._file.delimiter)

    def _begin(self, reader: Any) -> tuple[list[str], Any]:
        if not self._csv.header:
            return [column.name for column in self._csv.columns], reader
        try:
            names = next(reader, None)
        except csv.Error as error:
            raise BadSource(f"{self._file.name}: its header is not CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error
        if self._beyond is not None:
            self._beyond.end_row()
        return _checked_header(names, self._file.name), reader

    def __iter__(self) -> Iterator[list[str]]:
        width, row = len(self.names), self._piece.rows_before
        rows = self._lines if self._beyond is None else self._beyond.rows(self._lines)
        try:
            for fields in rows:
                if len(fields) == width:
                    row += 1
                    yield fields
                elif fields:  # else the line is blank
                    raise self._wrong_width(row + 1, width, len(fields), self._piece.lines_before + self.lines)
        except csv.Error as error:
            raise self._broken(row + 1, str(error), self._piece.lines_before + self.lines) from error
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error

    def _not_utf8(self) -> BadSource:
        """The first error of the file, one row of which is not UTF-8.

        Reads the file anew, because text is decoded ahead of its rows: how far, depends on where the slice begins.
        """
        with FileIO(self._file.path) as raw:
            reader = self._reader(_open_text(raw, errors="surrogateescape"))
            row, width = (-1, 0) if self._csv.header else (0, len(self._csv.columns))
            try:
                for fields in reader:
                    row += bool(fields)
                    if any("\udc80" <= character <= "\udcff" for field in fields for character in field):
                        break
                    width = width or len(fields)
                    if fields and len(fields) != width:
                        return self._wrong_width(row, width, len(fields), reader.line_num)
            except csv.Error as error:
                return self._broken(row + 1, str(error), reader.line_num)
        where = f"row {row} (line {reader.line_num})" if row else "header"
        return BadSource(f"{self._file.name} {where} is not valid UTF-8", hint="write the file in UTF-8")

    def _wrong_width(self, row: int, expected: int, found: int, line: int) -> BadSource:
        return BadSource(
            f"{self._file.name} row {row} (line {line}): expected {expected} fields, found {found}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r}: check both, and the row",
        )

    def _broken(self, row: int, reason: str, line: int) -> BadSource:
        if "field larger than" in reason:
            reason = f"a field is longer than {self._max_row} bytes; or a quote before it is never closed"
        kind = BadSource
        if "unexpected end of data" in reason:
            kind, reason = Unfinished, "a quote is opened and never closed"
        return kind(
            f"{self._file.name} row {row} (up to line {line}): {reason}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r} (doubled within quotes)",
        )

    def position(self) -> int:
        """How many bytes were read, which is a little more than was parsed."""
        return self._raw.tell()

    @property
    def end(self) -> int | None:
        """Where in the file the last row ends, when the slice runs on; else None."""
        return None if self._beyond is None else self._beyond.end

    @property
    def lines(self) -> int:
        """How many lines were read, the header included."""
        number: int = self._lines.line_num
        return number


class LinesToRowEnd:
    """Lines of a file behind a slice: as many as the slice's last row needs to end."""

    def __init__(self, file: LocalFile, piece: Slice, limit: int) -> None:
        assert piece.end is not None
        self._file, self._limit = file, limit
        self.end = piece.end
        """Where in the file the last of them ends."""
        self._in_row = False

    def rows(self, reader: Iterable[list[str]]) -> Iterator[list[str]]:
        """The rows of ``reader``, which reads ``behind``'s lines."""
        for fields in reader:
            self._in_row = False
            yield fields

    def end_row(self) -> None:
        """A row was read otherwise."""
        self._in_row = False

    def behind(self, lines: Iterator[str]) -> Iterator[str]:
        """``lines``, the slice's own, and those behind it while a row is not at its end."""
        for line in lines:
            self._in_row = True
            yield line
        if self._in_row:
            yield from self._further()

    def _further(self) -> Iterator[str]:
        with SliceFile(self._file.path, Slice(0, self.end)) as raw:
            for line in _lines(_open_text(raw, "utf-8", buffer=_BEYOND_BYTES), self._limit, self._file.name):
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


def _lines(text: IO[str], limit: int, name: str) -> Iterator[str]:
    """Lines that fit the memory: a file without line breaks is not read into it whole."""
    for line in iter(lambda: text.readline(limit), ""):
        if len(line) >= limit:
            raise NotEnoughRoom(
                f"{name}: a line is longer than {limit} characters, more than the memory limit allows",
                hint="raise --memory-limit; or source.format or source.compression is not what the file is",
            )
        yield line


def _checked_header(names: list[str] | None, where: str) -> list[str]:
    if not names:
        raise BadSource(
            f"{where} is empty, expected a header", hint="set source.csv.header: false if it has none by design"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadSource(f"{where}: its header names {', '.join(map(repr, twice))} more than once")
    return names


def _positions(where: str, role: str, wanted: Sequence[str], names: list[str]) -> list[int]:
    for name in wanted:
        if name not in names:
            raise unknown_column(where, role, name, names)
    return [names.index(name) for name in wanted]


def _key_function(spec: DatasetSpec, names: list[str], where: str) -> Callable[[list[str]], str]:
    columns = spec.key.columns
    positions = _positions(where, "key.columns", columns, names)
    if len(positions) == 1:
        return itemgetter(positions[0])
    separator, pick = spec.key.separator, itemgetter(*positions)
    return lambda fields: joined_key(columns, pick(fields), separator)


def _value_function(spec: DatasetSpec, names: list[str], where: str) -> Callable[[list[str]], bytes]:
    types = {column.name: column for column in spec.source.csv.columns}
    _positions(where, "source.csv.columns", list(types), names)
    role, wanted = value_names(spec.value)
    positions = _positions(where, role, wanted, names)
    if spec.value.field is not None:
        raise BadSource(f"{where}: value.field is for JSON and Parquet", hint=_one_column(spec.value.field))
    if spec.value.column is not None:
        position, name = positions[0], spec.value.column
        if spec.value.format == "raw":
            return lambda fields: fields[position].encode()
        otherwise = _one_column(name)
        return lambda fields: json_text(fields[position].encode(), f"the column {name}", otherwise)
    if not wanted:
        positions = [number for number, name in enumerate(names) if name not in spec.key.columns]
    return _object_function([(number, names[number]) for number in positions], types)


def _one_column(name: str) -> str:
    """How the text of one CSV column becomes the value."""
    return f"value.column with value.format: raw takes text as it is, value.columns: [{name}] makes an object of it"


def _object_function(columns: list[tuple[int, str]], types: dict[str, CsvColumn]) -> Callable[[list[str]], bytes]:
    members = [name for _, name in columns]
    converters = [
        (number, name, convert)
        for number, name in columns
        if (convert := _converter(types.get(name, CsvColumn(name)))) is not None
    ]
    dumps = orjson.dumps

    def plain(fields: list[str]) -> bytes:
        return dumps({name: fields[number] for number, name in columns})

    def typed(fields: list[str]) -> bytes:
        members = {name: fields[number] for number, name in columns}
        for number, name, convert in converters:
            try:
                members[name] = convert(fields[number])
            except RowRejected as rejected:
                raise RowRejected(f"the column {name}: {rejected}") from None
        return dumps(members)

    if not converters and len(columns) > 1:
        pick = itemgetter(*(number for number, _ in columns))
        return lambda fields: dumps(dict(zip(members, pick(fields), strict=True)))
    return typed if converters else plain


def _converter(column: CsvColumn) -> Convert | None:
    """How a field becomes a JSON value; None for text that stays as it is."""
    convert = _TYPES[column.type]
    if column.empty == "null":
        return lambda field: None if field == "" else (convert(field) if convert else field)
    return convert


def _integer(field: str) -> orjson.Fragment:
    if not _INTEGER.fullmatch(field):
        raise RowRejected(f"expected an integer, found {_found(field)}")
    return orjson.Fragment(field)


def _number(field: str) -> orjson.Fragment:
    if not _NUMBER.fullmatch(field):
        raise RowRejected(f"expected a number, found {_found(field)}")
    return orjson.Fragment(field)


def _boolean(field: str) -> bool:
    if field not in _BOOLEANS:
        raise RowRejected(f"expected true or false, found {_found(field)}")
    return _BOOLEANS[field]


def _json(field: str) -> orjson.Fragment:
    return orjson.Fragment(json_text(field.encode(), _found(field)))


def _found(field: str) -> str:
    if not field:
        return 'nothing (`empty: "null"` would make it null)'
    return repr(field if len(field) <= 40 else field[:40] + "…")


_TYPES: Final[dict[str, Convert | None]] = {
    "text": None,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
}
