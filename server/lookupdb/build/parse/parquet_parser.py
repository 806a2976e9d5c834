"""Parquet, read by DuckDB: every type keeps its own value, exactly.

| Parquet | JSON |
| --- | --- |
| integers, decimals | a number, digit for digit; a decimal of more than 38 digits is a BadSource |
| float, double | the shortest number that reads back the same; NaN and infinities reject the row |
| boolean, string, enum, null | as they are |
| date, time, timestamp | text, ISO 8601; with time zone: in UTC, ending in Z |
| uuid, interval | text |
| binary | text, base64 (with ``format: raw``, the bytes as they are) |
| list, struct | array, object |
| map | an object, if its keys are text; else a BadSource |
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Self

import duckdb
import orjson

from lookupdb.build.parse.dict_rows import NOT_FINITE, DictRows, NotFinite, unwritable_column_error
from lookupdb.build.parse.duckdb_errors import describe_memory_error, describe_value_error
from lookupdb.build.parse.parquet_schema import ParquetSchema, SchemaElement, read_schema
from lookupdb.build.parse.rows import check_names_once, shorten_name, value_columns
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.errors import BadSource, NotEnoughRoom
from lookupdb.spec import DatasetSpec

Convert = Callable[[Any], Any]
"""From DuckDB's value, if it is not null, to one that orjson writes."""

_MAGIC: Final = b"PAR1"
_BATCH: Final = 256
_UNCONVERTED: Final = frozenset(
    ["boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint"]
    + ["varchar", "enum", "null"]
)
_DIGITS: Final = frozenset(["hugeint", "uhugeint", "decimal", "bignum"])
_FRACTIONS: Final = frozenset(["float", "double"])
_DATES: Final = frozenset(["date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp_us"])
_TIMES_IN_UTC: Final = frozenset(["timestamp with time zone", "timestamptz_ns"])
_TEXTS: Final = frozenset(["time", "time_ns", "uuid", "interval"])
_BEFORE_CHRIST: Final = " (BC)"
_READ: Final = "read_parquet($1, hive_partitioning=false)"
"""A folder called `name=value` adds or replaces no column: what a file holds does not depend on where it lies."""


class ParquetParser:
    """Parses one Parquet file. Rows are dicts."""

    lines = 0
    columns = None
    end = None
    names: list[str]

    def __init__(self, spec: DatasetSpec, file: LocalFile, memory: int, threads: int) -> None:
        """``memory`` is DuckDB's limit, in bytes."""
        _check_magic(file)
        self._file, self._memory = file, memory
        self._connection = _connect(memory, threads)
        self._raw_column = spec.value.column if spec.value.format == "raw" else None
        self._objects = DictRows(spec, file.name)
        self.key, self.value = self._objects.key, self._objects.value
        self._rows_read = 0
        self._chosen: list[str] = []
        """The columns that are read."""
        self._casts: list[str] = []
        self._converts: list[tuple[str, Convert]] = []
        self._json_columns: list[str] = []
        with _duckdb_errors(file.name):
            self._row_count = self._count_rows()
            self._schema = self._read_schema()
            self.names = self._schema.names
            self._plan_columns(spec)

    def _count_rows(self) -> int:
        found = self._connection.execute(
            "SELECT num_rows FROM parquet_file_metadata($1)", [_escape_path(self._file)]
        ).fetchone()
        return int(found[0])

    def _read_schema(self) -> ParquetSchema:
        """Raises BadSource if a name stands twice."""
        query = "SELECT name, coalesce(num_children, 0), coalesce(precision, 0) FROM parquet_schema($1)"
        found = self._connection.execute(query, [_escape_path(self._file)]).fetchall()
        schema = read_schema(SchemaElement(*element) for element in found)
        check_names_once(schema.names, f"{self._file.name}: its footer")
        return schema

    def _plan_columns(self, spec: DatasetSpec) -> None:
        self._connection.execute(f"SELECT * FROM {_READ} LIMIT 0", [_escape_path(self._file)])  # noqa: S608 - ours
        nested: list[str] = []
        kinds = []
        for name, (name_to_duckdb, kind, *_) in zip(self.names, self._connection.description, strict=True):
            kinds.append((name_to_duckdb, kind))
            nested += _nested_names(name, kind)
        self._objects.check_declared(self.names, nested)
        for number in _choose_columns(spec, self.names):
            self._plan_column(number, *kinds[number])

    def _plan_column(self, number: int, name_to_duckdb: str, kind: Any) -> None:
        """Raises BadSource for a column whose values could not be written as they are."""
        name = self.names[number]
        is_raw = name == self._raw_column and kind.id == "blob"
        plan = ("BLOB", None) if is_raw else plan_type(kind)
        if plan is None:
            raise unwritable_column_error(
                self._file.name, name, f"is of type {shorten_name(str(kind))}, which cannot be written as JSON"
            )
        if obstacle := self._schema.obstacles.get(number):
            raise unwritable_column_error(self._file.name, name, obstacle)
        cast, convert = plan
        quoted = '"' + name_to_duckdb.replace('"', '""') + '"'
        self._chosen.append(name)
        self._casts.append(f"CAST({quoted} AS {cast})" if cast != str(kind) else quoted)
        if convert is not None:
            self._converts.append((name, convert))
        if _holds_json(kind):
            self._json_columns.append(name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names, converts = self._chosen, self._converts
        query = f"SELECT {', '.join(self._casts)} FROM {_READ}"  # noqa: S608 - names are quoted
        with self._errors():
            self._connection.execute(query, [_escape_path(self._file)])
        while True:
            with self._errors():
                batch = self._connection.fetchmany(_BATCH)
            if not batch:
                return
            for fields in batch:
                self._rows_read += 1
                record = dict(zip(names, fields, strict=True))
                for name, convert in converts:
                    if record[name] is not None:
                        record[name] = convert(record[name])
                yield record

    def _errors(self) -> _duckdb_errors:
        return _duckdb_errors(self._file.name, lambda: self._rows_read, self._json_columns)

    def position(self) -> int:
        """The share of the file's bytes that corresponds to the rows read."""
        return self._file.bytes * self._rows_read // max(1, self._row_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _choose_columns(spec: DatasetSpec, names: Sequence[str]) -> list[int]:
    """The numbers of the columns that keys and values are made of. Dots reach into nested columns."""
    _, chosen = value_columns(spec.value)
    wanted, known = (*spec.key.columns, *chosen), set(names)
    needed = {name if name in known else name.partition(".")[0] for name in wanted}
    return [number for number, name in enumerate(names) if not chosen or name in needed]


def _connect(memory: int, threads: int) -> Any:
    """A DuckDB connection that loads no extensions and writes no files."""
    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory // 1024}KiB",
            "threads": threads,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    connection.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
    return connection


def plan_type(kind: Any) -> tuple[str, Convert | None] | None:
    """The SQL type to fetch a column of the DuckDB type ``kind`` as, and the conversion of its values.

    None if the type has no JSON form.
    """
    name = kind.id
    if name in _UNCONVERTED:
        return str(kind), None
    if name in _DIGITS:
        return "VARCHAR", _parse_digits
    if name in _FRACTIONS:
        return "VARCHAR", _parse_fraction
    if name in _TEXTS:
        return "VARCHAR", None
    if name in _DATES:
        return "VARCHAR", _write_date
    if name in _TIMES_IN_UTC:
        return "VARCHAR", lambda text: _write_date(f"{text[:-3]}Z" if text.endswith("+00") else text)
    if name == "blob":
        return "BLOB", lambda content: b64encode(content).decode()
    if name in ("list", "array"):
        return _plan_list(kind)
    if name == "struct":
        return _plan_struct(kind)
    return _plan_map(kind) if name == "map" else None


def _plan_list(kind: Any) -> tuple[str, Convert | None] | None:
    plan = plan_type(dict(kind.children)["child"])
    if plan is None:
        return None
    cast, convert = plan
    if convert is None:
        return f"{cast}[]", list if kind.id == "array" else None
    return f"{cast}[]", lambda items: [None if item is None else convert(item) for item in items]


def _plan_struct(kind: Any) -> tuple[str, Convert | None] | None:
    members, converts = [], []
    for name, child in kind.children:
        plan = plan_type(child)
        if plan is None:
            return None
        quoted = '"' + name.replace('"', '""') + '"'
        members.append(f"{quoted} {plan[0]}")
        if plan[1] is not None:
            converts.append((name, plan[1]))

    def convert_members(record: dict[str, Any]) -> dict[str, Any]:
        for name, convert in converts:
            if record[name] is not None:
                record[name] = convert(record[name])
        return record

    return f"STRUCT({', '.join(members)})", convert_members if converts else None


def _plan_map(kind: Any) -> tuple[str, Convert | None] | None:
    children = dict(kind.children)
    plan = plan_type(children["value"])
    if children["key"].id != "varchar" or plan is None:
        return None
    cast, convert = plan
    if convert is None:
        return f"MAP(VARCHAR, {cast})", None
    return f"MAP(VARCHAR, {cast})", lambda entries: {
        key: None if value is None else convert(value) for key, value in entries.items()
    }


def _parse_digits(text: str) -> orjson.Fragment:
    """A number: DuckDB writes no zero before the point of a decimal that has no digits there."""
    return orjson.Fragment(text if text.lstrip("-")[0] != "." else text.replace(".", "0.", 1))


def _write_date(text: str) -> str:
    """A date, with its time if it has one, as ISO 8601 has it: there, 1 BC is the year 0000, and 2 BC is -0001."""
    if _BEFORE_CHRIST in text:
        year, _, rest = text.replace(_BEFORE_CHRIST, "", 1).partition("-")
        text = f"{'-' if int(year) > 1 else ''}{int(year) - 1:04}-{rest}"
    return text.replace(" ", "T", 1)


def _parse_fraction(text: str) -> orjson.Fragment | NotFinite:
    return orjson.Fragment(text) if text[-1].isdigit() else NOT_FINITE


def _nested_names(prefix: str, kind: Any) -> list[str]:
    if kind.id != "struct":
        return []
    found = []
    for name, child in kind.children:
        found += [f"{prefix}.{name}", *_nested_names(f"{prefix}.{name}", child)]
    return found


def _holds_json(kind: Any) -> bool:
    if kind.id in ("list", "array", "struct", "map"):
        return any(_holds_json(child) for name, child in kind.children if name != "size")
    return str(kind) == "JSON"


def _escape_path(file: LocalFile) -> str:
    """The path, escaped for functions of DuckDB that take patterns."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(file.path))


def _check_magic(file: LocalFile) -> None:
    with file.path.open("rb") as opened:
        first = opened.read(4)
        opened.seek(max(0, file.bytes - 4))
        last = opened.read(4)
    if first != _MAGIC or last != _MAGIC:
        what = "is cut short" if first == _MAGIC else "is not Parquet"
        raise BadSource(
            f"{file.name} {what}: a Parquet file begins and ends with PAR1",
            hint="source.format says what a file is, if its name does not",
        )


class _duckdb_errors:  # noqa: N801 - used as a function
    """Turns DuckDB's errors about a Parquet file into ours."""

    def __init__(self, where: str, read: Callable[[], int] = int, json_columns: Collection[str] = ()) -> None:
        self._where, self._rows_read, self._json_columns = where, read, json_columns

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, duckdb.OutOfMemoryException):
            raise NotEnoughRoom(
                f"{self._where}: its row groups need more memory than the limit leaves to read them: "
                + describe_memory_error(error),
                hint="raise --memory-limit, or write the file with smaller row groups",
            ) from error
        if isinstance(error, (duckdb.Error, UnicodeDecodeError)):
            after = f" after row {self._rows_read()}" if self._rows_read() else ""
            why = describe_value_error(error, self._json_columns)
            raise BadSource(f"{self._where} cannot be read as Parquet{after}: {why}") from error
