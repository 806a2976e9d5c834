"""The columns of a table, and the SQL that reads them from a data file that was written with an earlier schema.

A table's files are Parquet. Since a file was written, columns may have been added, dropped, renamed or moved, and types
widened. Iceberg finds a column in a file by its field id, Delta by its physical name or by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, or a part of one."""

    name: str
    type: str
    """DuckDB's type; STRUCT, LIST (of one child) or MAP (of key and value) if it has children."""
    id: int | None = None
    """Its field id, for files with ids."""
    file_names: tuple[str, ...] = ()
    """Its names in files without ids."""
    children: tuple[TableColumn, ...] = ()
    default: str | None = None
    """The text of its value in files that lack it."""

    @property
    def sql_type(self) -> str:
        """The whole type."""
        types = [child.sql_type for child in self.children]
        if self.type == "STRUCT":
            names = [quote_name(child.name) for child in self.children]
            return f"STRUCT({', '.join(map(' '.join, zip(names, types, strict=True)))})"
        if self.type == "LIST":
            return f"{types[0]}[]"
        return f"MAP({', '.join(types)})" if self.type == "MAP" else self.type

    def as_of_file(self) -> FileColumn:
        """Return this column as files written with this schema have it."""
        return FileColumn(self.name, children=[child.as_of_file() for child in self.children])


@dataclass(frozen=True, slots=True)
class TableFile:
    """How to read a data file as a part of its table."""

    columns: tuple[TableColumn, ...]
    fingerprint: str
    """The fingerprint of the table's state."""
    constants: dict[str, str | None] = field(default_factory=dict)
    """Column of the file's partition → the text of its value in all rows, if the file lacks the column."""
    deleted: str | None = None
    """The path of a file with the positions of deleted rows: a 64-bit roaring bitmap."""

    def open_deleted(self) -> Iterator[int]:
        """Yield the positions of deleted rows, in their order, then -1."""
        if self.deleted is not None:
            from pyroaring import BitMap64

            yield from BitMap64.deserialize(Path(self.deleted).read_bytes())
        yield -1


class UnreadableColumn(ValueError):
    """A column cannot be read from a file. The text continues a sentence that begins with the column's name."""


@dataclass(slots=True)
class FileColumn:
    """A column of a Parquet file, or a part of one, or the root of all."""

    name: str
    id: int | None = None
    precision: int = 0
    """Digits of a decimal; 0 for other types."""
    is_int96: bool = False
    children: list[FileColumn] = field(default_factory=list)


def build_tree(elements: Iterable[tuple[str, int, int | None, int, bool]]) -> FileColumn:
    """Return the root of the tree of ``elements``, each of which precedes its children: name, number of children, field
    id, precision, and whether it is an INT96."""
    remaining = iter(elements)

    def build() -> FileColumn:
        name, children, field_id, precision, is_int96 = next(remaining)
        return FileColumn(name, field_id, precision, is_int96, [build() for _ in range(children)])

    return build()


def select_columns(
    table: TableFile, root: FileColumn, described: Sequence[tuple[str, Any]]
) -> Iterator[tuple[str, str | None]]:
    """Yield the SQL for each of the table's columns, or an empty text and why it cannot be read.

    ``described`` has DuckDB's name and type for each of the columns of the file.
    """
    has_ids = any(column.id is not None for column in root.children)
    for column in table.columns:
        try:
            match = _find(column, root, described, has_ids)
            if match is not None:
                source, name, kind = match
                sql = _read(column, source, kind, quote_name(name), has_ids, 0)
            else:
                sql = _write_constant(column, table.constants.get(column.name, column.default))
            yield f"{sql} AS {quote_name(column.name)}", None
        except UnreadableColumn as error:
            yield "", str(error)


def _find(
    column: TableColumn, source: FileColumn, described: Sequence[tuple[str, Any]], has_ids: bool
) -> tuple[FileColumn, str, Any] | None:
    """Return the part of ``source`` that holds ``column``, with DuckDB's name and type; None if there is none."""
    by_id = has_ids and column.id is not None
    if not by_id and not column.file_names:
        raise UnreadableColumn("has only a field id, but the file has none, and the table has no name mapping")
    for child, (name, kind) in zip(source.children, described, strict=True):
        if child.id == column.id if by_id else child.name in column.file_names:
            return child, name, kind
    return None


def _read(column: TableColumn, source: FileColumn, kind: Any, sql: str, has_ids: bool, depth: int) -> str:
    """Return the SQL for the value of ``column``. If nothing has changed, it is ``sql``, the column in the file."""
    expected = {"STRUCT": "struct", "LIST": "list", "MAP": "map"}.get(column.type)
    if expected is None:
        return _cast(column.type, kind, sql)
    if kind.id != expected:
        raise UnreadableColumn(f"is of type {column.sql_type}, but in this file of type {kind}")
    if expected == "struct":
        return _read_struct(column, source, kind, sql, has_ids, depth)
    item, group = f"x{depth}", source.children[0]
    kinds = [child for name, child in kind.children if name != "size"]
    if expected == "list":
        # A list has three levels, or two from old writers: then the repeated group is the item itself.
        inner = group.children[0] if len(group.children) == 1 and group.name in ("list", "bag") else group
        part = _read(column.children[0], inner, kinds[0], item, has_ids, depth + 1)
        return sql if part == item else f"list_transform({sql}, lambda {item}: {part})"
    paths = [f'{item}."key"', f'{item}."value"']
    parts = [
        _read(child, inner, inner_kind, path, has_ids, depth + 1)
        for child, inner, inner_kind, path in zip(column.children, group.children, kinds, paths, strict=True)
    ]
    if parts == paths:
        return sql
    packed = f'struct_pack("key" := {parts[0]}, "value" := {parts[1]})'
    return f"map_from_entries(list_transform(map_entries({sql}), lambda {item}: {packed}))"


def _read_struct(column: TableColumn, source: FileColumn, kind: Any, sql: str, has_ids: bool, depth: int) -> str:
    members = list(kind.children)
    parts = []
    for child in column.children:
        match = _find(child, source, members, has_ids)
        if match is None:
            parts.append(_write_constant(child, child.default))
        else:
            inner, name, inner_kind = match
            parts.append(_read(child, inner, inner_kind, f"{sql}.{quote_name(name)}", has_ids, depth))
    names = [child.name for child in column.children]
    if names == [name for name, _ in members] and parts == [f"{sql}.{quote_name(name)}" for name in names]:
        return sql
    packed = ", ".join(
        f"{quote_name(child.name)} := {part}" for child, part in zip(column.children, parts, strict=True)
    )
    return f"CASE WHEN {sql} IS NULL THEN NULL ELSE struct_pack({packed}) END"


def _cast(expected: str, kind: Any, sql: str) -> str:
    found = str(kind)
    if found == expected:
        return sql
    if kind.id in ("list", "map", "struct") and not is_int96(kind):
        raise UnreadableColumn(f"is of type {expected}, but in this file of type {found}")
    if is_int96(kind):
        # Spark writes timestamps of tables, which have microseconds, as INT96, which has nanoseconds.
        return f'CAST({sql}."date" + CAST({sql}."time" AS TIME) AS {expected})'
    if kind.id == "blob" and expected == "VARCHAR":
        return f"decode({sql})"
    return f"CAST({sql} AS {expected})"


def _write_constant(column: TableColumn, text: str | None) -> str:
    literal = "NULL" if text is None else quote_text(text)
    return f"CAST({literal} AS {column.sql_type})"


def is_int96(kind: Any) -> bool:
    """Return whether ``kind`` is an INT96 timestamp, which is fetched as a struct of date and time."""
    return kind.id == "struct" and [(name, child.id) for name, child in kind.children] == [
        ("date", "date"),
        ("time", "time_ns"),
    ]


def connect_duckdb(memory: int, threads: int) -> Any:
    """Return a DuckDB connection that loads no extensions and writes no files. ``memory`` is its limit, in bytes."""
    import duckdb

    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory // 1024}KiB",
            "threads": threads,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    connection.execute(
        "SET enable_progress_bar = false; SET TimeZone = 'UTC'; SET enable_geoparquet_conversion = false"
    )
    return connection


def quote_name(name: str) -> str:
    """Return ``name`` as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return ``text`` as a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
