"""CSV: every field is text exactly as it stands in the file, unless the spec gives its column a type.

Python's csv module parses, in strict mode, because it tells row and line and never guesses: DuckDB's reader does not
number rows, and takes empty fields for nulls.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from operator import itemgetter
from typing import IO, Any, Final

import orjson

from lookupdb.build.fetch import LocalFile
from lookupdb.build.rows import RowRejected, Unfinished, joined_key, json_text, unknown_column, value_names
from lookupdb.build.slices import Slice, SliceFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import Csv, CsvColumn, DatasetSpec

Convert = Callable[[str], Any]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS: Final = {"true": True, "false": False}


class CsvParser:
    """CSV. Rows are lists of text, as long as the header is."""

    columns = None

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        self._csv, self._file, self._piece, self._max_row = spec.source.csv, file, piece, max_row_bytes
        self._raw = raw
        csv.field_size_limit(max_row_bytes)
        if piece.start and self._csv.header:
            with SliceFile(file.path, Slice(piece.file)) as top:
                self.names, _ = self._begin(_open_text(top))
            self._lines = self._rows(_open_text(raw, "utf-8"))
        elif piece.start:
            self.names, self._lines = self._begin(_open_text(raw, "utf-8"))
        else:
            self.names, self._lines = self._begin(_open_text(raw))
        self.key = _key_function(spec, self.names, file.name)
        self.value = _value_function(spec, self.names, file.name)

    def _rows(self, text: IO[str]) -> Any:
        return _reader(_lines(text, self._max_row, self._file.name), self._csv, self._file.delimiter)

    def _begin(self, text: IO[str]) -> tuple[list[str], Any]:
        reader = self._rows(text)
        if not self._csv.header:
            return [column.name for column in self._csv.columns], reader
        try:
            names = next(reader, None)
        except csv.Error as error:
            raise BadSource(f"{self._file.name}: its header is not CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error
        return _checked_header(names, self._file.name), reader

    def __iter__(self) -> Iterator[list[str]]:
        reader, width, row = self._lines, len(self.names), self._piece.rows_before
        try:
            for fields in reader:
                if len(fields) == width:
                    row += 1
                    yield fields
                elif fields:  # else the line is blank
                    raise self._wrong_width(row + 1, len(fields))
        except csv.Error as error:
            raise self._broken(row + 1, str(error)) from error
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error

    def _not_utf8(self) -> BadSource:
        where = f"{self._file.name} {self._first_invalid()}"
        return BadSource(f"{where} is not valid UTF-8", hint="write the file in UTF-8")

    def _wrong_width(self, row: int, found: int) -> BadSource:
        width = len(self.names)
        line = self._piece.lines_before + self.lines
        return BadSource(
            f"{self._file.name} row {row} (line {line}): expected {width} fields, found {found}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r}: check both, and the row",
        )

    def _broken(self, row: int, reason: str) -> BadSource:
        line = self._piece.lines_before + self.lines
        if "field larger than" in reason:
            reason = f"a field is longer than {self._max_row} bytes; or a quote before it is never closed"
        kind = BadSource
        if "unexpected end of data" in reason:
            kind, reason = Unfinished, "a quote is opened and never closed"
        return kind(
            f"{self._file.name} row {row} (up to line {line}): {reason}",
            hint=f"delimiter is {self._file.delimiter!r}, quote {self._csv.quote!r} (doubled within quotes)",
        )

    def _first_invalid(self) -> str:
        """Where the first byte is that is not UTF-8: reads the file anew, because text is decoded ahead of its rows."""
        with FileIO(self._file.path) as raw:
            text = _open_text(raw, errors="surrogateescape")
            lines = _lines(text, self._max_row, self._file.name)
            reader = _reader(lines, self._csv, self._file.delimiter)
            row = -1 if self._csv.header else 0
            try:
                for fields in reader:
                    row += bool(fields)
                    if any("\udc80" <= character <= "\udcff" for field in fields for character in field):
                        break
            except csv.Error:
                row += 1
            return f"row {row} (line {reader.line_num})" if row else "header"

    def position(self) -> int:
        """How many bytes were read, which is a little more than was parsed."""
        return self._raw.tell()

    @property
    def lines(self) -> int:
        """How many lines were read, the header included."""
        number: int = self._lines.line_num
        return number


def _open_text(raw: io.RawIOBase, encoding: str = "utf-8-sig", errors: str = "strict") -> IO[str]:
    return io.TextIOWrapper(
        io.BufferedReader(raw, 1 << 18),
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


def _reader(lines: Iterator[str], options: Csv, delimiter: str) -> Any:
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)


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
        raise BadSource(f"{where}: value.field is for JSON and Parquet", hint="use value.column with CSV")
    if spec.value.column is not None:
        position, name = positions[0], spec.value.column
        if spec.value.format == "raw":
            return lambda fields: fields[position].encode()
        return lambda fields: json_text(fields[position].encode(), f"the column {name}")
    if not wanted:
        positions = [number for number, name in enumerate(names) if name not in spec.key.columns]
    return _object_function([(number, names[number]) for number in positions], types)


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
