"""Parquet, read by DuckDB: every type keeps its own value, exactly.

| Parquet | JSON |
| --- | --- |
| integers, decimals | a number, digit for digit; a decimal of more than 38 digits is a BadSource |
| float, double | the shortest number that reads back the same; NaN and infinities reject the row |
| boolean, string, enum, null | as they are |
| date, time, timestamp, INT96 | text, ISO 8601; with time zone: in UTC, ending in Z |
| uuid, interval | text |
| binary, geometry (WKB) | base64, or text if ``source.parquet.columns`` says so; a key is text |
| list, struct | array, object |
| map | an object if its keys are text, else a BadSource; if a key occurs twice, its last value counts |

With ``value.column``, a binary column holds the value itself: JSON, or with ``format: raw`` any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import duckdb
import orjson

from lookupdb.builder.files import LocalFile, SliceFile
from lookupdb.builder.rows import (
    BINARY_CONVERTS,
    MAX_DIGITS,
    NOT_FINITE,
    Convert,
    DictRows,
    Form,
    RowRejected,
    UnusableRow,
    check_binaries,
    check_names_once,
    choose_columns,
    convert_members,
    decode_text,
    find_form,
    make_forms,
    shorten_name,
    unwritable_column_error,
)
from lookupdb.builder.tables import (
    FileColumn,
    TableFile,
    build_tree,
    connect_duckdb,
    is_int96,
    quote_name,
    quote_text,
    select_columns,
)
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.wording import shorten

# Schemas that DuckDB would change. This part does no I/O.
#
# DuckDB ignores the case of names and renames the second one of "name" and "NAME" to "NAME_1", calls a column without a
# name "C1", and turns decimals with more digits than its own into doubles.


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The columns of a file."""

    names: list[str]
    """The names as in the file, in its order."""
    obstacles: dict[int, str]
    """Column → why DuckDB would read it as something else."""
    int96: frozenset[int]
    """Columns that are, or contain, timestamps of the type INT96."""


def read_schema(root: FileColumn) -> ParquetSchema:
    """Return the schema of a file from the ``root`` of its columns."""
    obstacles: dict[int, str] = {}
    int96: set[int] = set()
    for number, column in enumerate(root.children):
        parts = [column]
        for part in parts:  # the list grows during the loop
            parts += part.children
            if part.precision > MAX_DIGITS:
                why = f"has decimals of {part.precision} digits, but only {MAX_DIGITS} can be read exactly"
                obstacles[number] = why
            seen: dict[bytes, str] = {}
            for name in (child.name for child in part.children):
                folded = name.encode().lower()  # DuckDB ignores the case of ASCII letters
                if folded in seen:
                    first, other = shorten_name(seen[folded]), shorten_name(name)
                    obstacles[number] = f"has members called {first!r} and {other!r}, which are read as one name"
                seen[folded] = name
        if any(part.is_int96 for part in parts):
            int96.add(number)
            if any([child.name for child in part.children] == ["date", "time"] for part in parts):
                why = "has INT96 timestamps and a struct of a date and a time, which cannot be told apart"
                obstacles[number] = why
    return ParquetSchema([column.name for column in root.children], obstacles, frozenset(int96))


# DuckDB's errors in our words.
#
# DuckDB's messages quote the value that it cannot read, but ours never show a value (see ``rows``). The wording differs
# between errors and versions. So errors that hold a known phrase get our text. All others show only their kind.


_MAX_CHARACTERS: Final = 200
_UNKNOWN: Final = "DuckDB cannot read it"
_NO_JSON: Final = "a value that is not JSON"
_NO_UTF8: Final = "a text that is not UTF-8"
_NO_PARQUET: Final = "it is cut short, or of another format: a Parquet file begins and ends with PAR1"
_DAMAGED: Final = "its metadata are damaged"
_NOT_UNPACKED: Final = "a page of it is damaged, and cannot be decompressed"

_SIGNS: Final = {
    "Invalid JSON found in Parquet file": _NO_JSON,
    "Invalid string encoding found in Parquet file": _NO_UTF8,
    "Invalid unicode": _NO_UTF8,
    "UnicodeDecodeError": _NO_UTF8,  # DuckDB's message quotes text that is not UTF-8
    "No magic bytes found": _NO_PARQUET,
    "too small to be a Parquet file": _NO_PARQUET,
    "Footer length error": _DAMAGED,
    "TProtocolException: Invalid data": _DAMAGED,
    "Failed to decompress": _NOT_UNPACKED,
    "Snappy decompression failure": _NOT_UNPACKED,
    "ZSTD Decompression failure": _NOT_UNPACKED,
    "Could not read enough bytes from file": "it ends within a page, or its metadata are damaged",
    "Date out of range": "a date or timestamp that is out of range",
    "ConversionException": "a value that cannot be converted to its column's type, such as a timestamp out of range",
    "OutOfRangeException": "a value that is out of range of its column's type",
}
"""A part of an error's class and message → our words."""


def describe_schema_error(error: Exception) -> str:
    """Return why DuckDB cannot read a file's footer. No value was read, so DuckDB's message may be passed on."""
    known = describe_value_error(error)
    message = shorten(str(error).partition("\n")[0], _MAX_CHARACTERS)
    return f"{known}: {message}" if known.startswith(_UNKNOWN) and message else known


def describe_value_error(error: Exception) -> str:
    """Return why DuckDB cannot read a file, without quoting a value."""
    text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    unknown = f"{_UNKNOWN} ({type(error).__name__})"
    return next((words for sign, words in _SIGNS.items() if sign in text), unknown)


_BATCH: Final = 256
_UNCONVERTED: Final = frozenset(
    ["boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"]
    + ["varchar", "enum", "null"]
)
_DIGITS: Final = frozenset(["hugeint", "uhugeint", "decimal", "bignum"])
_FRACTIONS: Final = frozenset(["float", "double"])
_TEXTS: Final = frozenset(["time", "time_ns", "uuid"])
_LAST_NANOSECONDS: Final = {"infinity": "2262-04-11 23:47:16.854775807", "-infinity": "1677-09-21 00:12:43.145224193"}
"""The two timestamps of nanoseconds that DuckDB writes as words."""
_BEFORE_CHRIST: Final = " (BC)"
_BINARIES: Final = frozenset(["blob", "geometry", "geography"])
_READ: Final = "read_parquet({}, hive_partitioning=false, int96_as='struct')"
"""A folder called `name=value` neither adds nor replaces a column: a file's content does not depend on its place.
DuckDB's timestamp of an INT96 would lose nanoseconds, or wrap around; its separate date and time are exact."""


class ParquetParser(DictRows):
    """Parse one Parquet file. Rows are dicts."""

    def __init__(self, spec: DatasetSpec, file: LocalFile, raw: SliceFile, memory: int, threads: int) -> None:
        """``memory`` is DuckDB's limit, in bytes."""
        super().__init__(spec, file, raw)
        self._connection = connect_duckdb(memory, threads)
        self._forms = make_forms(spec)
        if file.table is not None:
            self.partitions.clear()  # the table knows its partitions, whatever its folders are called
        self._rows_read = 0
        self._chosen: list[str] = []
        """The columns to read."""
        self._expressions: list[str] = []
        """The SQL expression for each column to read."""
        self._converts: list[tuple[str, Convert]] = []
        self.binaries: list[tuple[str, Form]] = []
        """The binary columns that are read, nested ones too, and their forms."""
        with self._errors(describe_schema_error):
            found = self._connection.execute(
                "SELECT num_rows FROM parquet_file_metadata($1)", [_escape_path(self._file)]
            ).fetchone()
            self._row_count = int(found[0])
            elements = self._connection.execute(
                "SELECT name, coalesce(num_children, 0), field_id, coalesce(precision, 0), type = 'INT96'"
                " FROM parquet_schema($1)",
                [_escape_path(self._file)],
            ).fetchall()
            root = build_tree(elements)
            self._schema = read_schema(root)
            check_names_once(self._schema.names, f"{file.name}: its footer")
            self._source = _READ.format(quote_text(_escape_path(self._file)))
            if file.table is not None:
                self._select_table(file.table, root)
            self._names = self._schema.names
            self._plan_columns(spec)

    def _describe(self, source: str) -> list[tuple[str, Any]]:
        """Return DuckDB's names and types of the columns of ``source``."""
        # This runs no query: even one with LIMIT 0 would take 16 KiB for each column and thread.
        relation = self._connection.sql(f"SELECT * FROM {source}")  # noqa: S608 - names and paths are quoted
        return list(zip(relation.columns, relation.types, strict=True))

    def _select_table(self, table: TableFile, root: FileColumn) -> None:
        """Read the table's columns instead of the file's, which are in ``root``."""
        self._schema = read_schema(FileColumn("", children=[column.as_of_file() for column in table.columns]))
        parts = []
        for number, (sql, obstacle) in enumerate(select_columns(table, root, self._describe(self._source))):
            if obstacle is not None:
                self._schema.obstacles[number] = obstacle
            parts.append(
                f"NULL AS {quote_name(self._schema.names[number])}" if number in self._schema.obstacles else sql
            )
        self._source = f"(SELECT {', '.join(parts)} FROM {self._source})"  # noqa: S608 - quoted

    def _plan_columns(self, spec: DatasetSpec) -> None:
        """Raises BadSource for a column whose values cannot be written exactly."""
        nested: list[str] = []
        binaries: list[list[str]] = []
        described = self._describe(self._source)
        for number, (name, (_, kind)) in enumerate(zip(self._names, described, strict=True)):
            nested += _nested_names(name, kind, has_int96=number in self._schema.int96)
            binaries.append(_find_binaries(name, kind))
        self.declare(self._names, nested)
        check_binaries(spec, self._file.name, {path for paths in binaries for path in paths}, self._names, nested)
        for number in choose_columns(spec, self._names):
            name, (name_to_duckdb, kind) = self._names[number], described[number]
            plan = plan_type(kind, name, self._forms, has_int96=number in self._schema.int96)
            if plan is None:
                why = f"is of type {shorten_name(str(kind))}, which cannot be written as JSON"
                raise unwritable_column_error(self._file.name, name, why)
            if obstacle := self._schema.obstacles.get(number):
                raise unwritable_column_error(self._file.name, name, obstacle)
            quoted = quote_name(name_to_duckdb)
            self._chosen.append(name)
            self._expressions.append(quoted if plan.cast == str(kind) else plan.fetch(quoted, 0))
            if plan.convert is not None:
                self._converts.append((name, plan.convert))
            self.binaries += [(path, find_form(path, self._forms)) for path in binaries[number]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names, converts = self._chosen, self._converts
        query = f"SELECT {', '.join(self._expressions)} FROM {self._source}"  # noqa: S608 - quoted
        with self._errors():
            self._connection.execute(query)
        deleted_rows = iter(()) if self._file.table is None else self._file.table.open_deleted()
        deleted = next(deleted_rows, -1)
        while True:
            with self._errors():
                batch = self._connection.fetchmany(_BATCH)
            if not batch:
                return
            for fields in batch:
                self._rows_read += 1
                if self._rows_read - 1 == deleted:
                    deleted = next(deleted_rows)
                    continue
                record = dict(zip(names, fields, strict=True))
                try:
                    for name, convert in converts:
                        if record[name] is not None:
                            record[name] = convert(record[name])
                except RowRejected as rejected:
                    yield UnusableRow(f"the column {shorten_name(name)} {rejected}")
                    continue
                if self.partitions:
                    record |= self.partitions
                yield record

    @contextmanager
    def _errors(self, describe: Callable[[Exception], str] = describe_value_error) -> Iterator[None]:
        """Turn DuckDB's errors about the file into ours."""
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise NotEnoughRoom(
                f"{self._file.name}: reading its row groups needs more memory than the limit leaves:"
                f" {str(error).splitlines()[0]}",  # this message names only sizes of memory
                hint="raise --memory-limit, or write the file with smaller row groups",
            ) from error
        except (duckdb.Error, UnicodeDecodeError) as error:
            after = f" after row {self._rows_read}" if self._rows_read else ""
            raise BadSource(f"{self._file.name} cannot be read as Parquet{after}: {describe(error)}") from error

    def position(self) -> int:
        """Return the share of the file's bytes that corresponds to the rows read."""
        return self._file.bytes * self._rows_read // max(1, self._row_count)

    def close(self) -> None:
        """Close DuckDB."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class TypePlan:
    """The plan to fetch a column, or a part of one, from DuckDB."""

    fetch: Callable[[str, int], str]
    """Takes an SQL expression of the column and the number of lambdas around it; returns the expression to fetch."""
    cast: str | None
    """The SQL type, if a cast to it equals ``fetch``; else None."""
    convert: Convert | None


def _cast_to(sql_type: str, convert: Convert | None = None) -> TypePlan:
    return TypePlan(lambda expression, _: f"CAST({expression} AS {sql_type})", sql_type, convert)


def plan_type(kind: Any, path: str, forms: Mapping[str, Form], *, has_int96: bool) -> TypePlan | None:
    """Return how to fetch a column of the DuckDB type ``kind``. None if the type has no JSON form."""
    name = kind.id
    if name in _UNCONVERTED:
        return _cast_to(str(kind))
    if name in _DIGITS:
        # DuckDB omits the zero before a decimal's point.
        return _cast_to(
            "VARCHAR", lambda text: orjson.Fragment(text if text.lstrip("-")[0] != "." else text.replace(".", "0.", 1))
        )
    if name in _FRACTIONS:
        return _cast_to("VARCHAR", lambda text: orjson.Fragment(text) if text[-1].isdigit() else NOT_FINITE)
    if name == "interval":
        return _cast_to("VARCHAR", _check_interval)
    if name in _TEXTS:
        return _cast_to("VARCHAR")
    if name in _DATES:
        return _cast_to("VARCHAR", _DATES[name])
    if name in _BINARIES:
        return _cast_to("BLOB", BINARY_CONVERTS[find_form(path, forms)])
    if has_int96 and is_int96(kind):
        return _cast_to('STRUCT(date VARCHAR, "time" VARCHAR)', _write_int96)
    if name in ("list", "array"):
        return _plan_list(kind, path, forms, has_int96)
    if name == "struct":
        return _plan_struct(kind, path, forms, has_int96)
    return _plan_map(kind, path, forms, has_int96) if name == "map" else None


def _plan_list(kind: Any, path: str, forms: Mapping[str, Form], has_int96: bool) -> TypePlan | None:
    item = plan_type(dict(kind.children)["child"], path, forms, has_int96=has_int96)
    if item is None:
        return None
    convert: Convert | None = list if kind.id == "array" else None
    if item_convert := item.convert:

        def convert(items: Sequence[Any]) -> list[Any]:
            return [None if member is None else item_convert(member) for member in items]

    if item.cast is not None:
        return _cast_to(f"{item.cast}[]", convert)
    fetch_item = item.fetch
    return TypePlan(
        lambda expression, depth: (
            f"list_transform({expression}, lambda x{depth}: {fetch_item(f'x{depth}', depth + 1)})"
        ),
        None,
        convert,
    )


def _plan_struct(kind: Any, path: str, forms: Mapping[str, Form], has_int96: bool) -> TypePlan | None:
    plans: dict[str, TypePlan] = {}
    for name, child in kind.children:
        plan = plan_type(child, f"{path}.{name}", forms, has_int96=has_int96)
        if plan is None:
            return None
        plans[name] = plan
    converts = [(name, plan.convert) for name, plan in plans.items() if plan.convert is not None]
    convert = partial(convert_members, converts) if converts else None
    if all(plan.cast is not None for plan in plans.values()):
        return _cast_to(
            f"STRUCT({', '.join(f'{quote_name(name)} {plan.cast}' for name, plan in plans.items())})", convert
        )

    def fetch(expression: str, depth: int) -> str:
        members = [
            f"{quote_name(name)} := {plan.fetch(f'{expression}.{quote_name(name)}', depth)}"
            for name, plan in plans.items()
        ]
        return f"CASE WHEN {expression} IS NULL THEN NULL ELSE struct_pack({', '.join(members)}) END"

    return TypePlan(fetch, None, convert)


def _plan_map(kind: Any, path: str, forms: Mapping[str, Form], has_int96: bool) -> TypePlan | None:
    """Fetch a map as its entries: DuckDB fails on a map that has a key twice, which Parquet allows."""
    children = dict(kind.children)
    value = plan_type(children["value"], path, forms, has_int96=has_int96)
    has_text = children["key"].id == "varchar"
    if value is None or not (has_text or (children["key"].id == "blob" and find_form(path, forms) == "text")):
        return None
    key_type = "VARCHAR" if has_text else "BLOB"
    convert_value, fetch_value = value.convert, value.fetch

    def convert(entries: Sequence[dict[str, Any]]) -> Any:
        members: dict[str, Any] = {}
        for entry in entries:
            key, content = entry["key"], entry["value"]
            if key is None:
                raise RowRejected("holds a map in which a key is null")
            if not has_text:
                key = decode_text(key)
            members[key] = content if content is None or convert_value is None else convert_value(content)
        return members

    def fetch(expression: str, depth: int) -> str:
        entry = f"x{depth}"
        content = fetch_value(f'{entry}."value"', depth + 1)
        packed = f'struct_pack("key" := CAST({entry}."key" AS {key_type}), "value" := {content})'
        return f"list_transform(map_entries({expression}), lambda {entry}: {packed})"

    return TypePlan(fetch, None, convert)


def _write_int96(parts: dict[str, str]) -> str:
    if parts["time"] >= "24" or parts["date"].endswith("infinity"):
        raise RowRejected("holds an INT96 timestamp whose day or time is out of range")
    return f"{_write_date(parts['date'])}T{parts['time']}"


def _check_interval(text: str) -> str:
    if "-" in text:  # a Parquet interval has no sign, and DuckDB's numbers have one bit less
        raise RowRejected("holds an interval that is too long to be read exactly")
    return text


def _write_utc(text: str) -> str:
    return _write_date(f"{text[:-3]}Z" if text.endswith("+00") else text)


def _write_date(text: str) -> str:
    """Return a date, with its time if it has one, in ISO 8601, where 1 BC is the year 0000, and 2 BC is -0001."""
    if _BEFORE_CHRIST in text:
        year, _, rest = text.replace(_BEFORE_CHRIST, "", 1).partition("-")
        text = f"{'-' if int(year) > 1 else ''}{int(year) - 1:04}-{rest}"
    return text.replace(" ", "T", 1)


_DATES: Final[dict[str, Convert]] = {
    **dict.fromkeys(["date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_us"], _write_date),
    "timestamp_ns": lambda text: _write_date(_LAST_NANOSECONDS.get(text) or text),
    "timestamp with time zone": _write_utc,
    "timestamptz_ns": lambda text: _write_utc(f"{_LAST_NANOSECONDS[text]}+00" if text in _LAST_NANOSECONDS else text),
}


def _nested_names(prefix: str, kind: Any, *, has_int96: bool) -> list[str]:
    if kind.id != "struct" or (has_int96 and is_int96(kind)):
        return []
    found = []
    for name, child in kind.children:
        found += [f"{prefix}.{name}", *_nested_names(f"{prefix}.{name}", child, has_int96=has_int96)]
    return found


def _find_binaries(path: str, kind: Any) -> list[str]:
    """Return the names of a column's binaries. Items of a list, and keys and values of a map, have the name of the list
    or map."""
    if kind.id in _BINARIES:
        return [path]
    if kind.id == "struct":
        return [found for name, child in kind.children for found in _find_binaries(f"{path}.{name}", child)]
    if kind.id in ("list", "array", "map"):
        inner = [found for name, child in kind.children if name != "size" for found in _find_binaries(path, child)]
        return list(dict.fromkeys(inner))
    return []


def _escape_path(file: LocalFile) -> str:
    """Return the path, escaped for functions of DuckDB that take patterns."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(file.path))
