"""The key and the value of a record that is a dict: a JSON object, or a Parquet row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from lookupdb.build.parse.columns import ABSENT, ColumnTracker, find_owner, get_column
from lookupdb.build.parse.rows import (
    RowRejected,
    UnusableRow,
    check_json_text,
    find_partitions,
    join_key,
    shorten_name,
    unknown_column_error,
    value_columns,
)
from lookupdb.errors import BadSource
from lookupdb.spec import DatasetSpec


class NotFinite:
    """NaN or an infinity: orjson cannot write it, so a row with such a value is rejected."""


NOT_FINITE: Final = NotFinite()


class DictRows:
    """Makes keys and values of dicts, as the spec says. A dot in a column's name reaches into nested dicts, unless a
    member has the whole name.

    A value leaves out a column that its row does not have; a column that no row has is a BadSource.
    """

    def __init__(self, spec: DatasetSpec, where: str) -> None:
        self._where = where
        self.columns = ColumnTracker(spec)
        self.partitions = find_partitions(spec, where)
        """The columns that a record has from its file's path, unless it has them itself."""
        self.key = _make_key_function(spec)
        """The function from a record to its key, not yet normalised. Raises RowRejected."""
        self.value = _make_value_function(spec)
        """The function from a record to its value; it consumes the record. Raises RowRejected or
        orjson.JSONEncodeError."""

    def add_partitions(self, record: dict[str, Any]) -> None:
        """Add the columns that come from the file's path."""
        for name, text in self.partitions.items():
            record.setdefault(name, text)

    def check_declared(self, names: Iterable[str], nested: Iterable[str] = ()) -> None:
        """Check the spec's columns against those that the file declares. Raises BadSource for a missing one."""
        names, nested = list(names), list(nested)
        declared = {*names, *nested, *self.partitions}
        for name, role in self.columns.roles.items():
            if name not in declared:
                raise unknown_column_error(self._where, role, name, names, nested=nested)
        self.columns.missing.clear()


class MemberValues:
    """Makes values of the members of one JSON object: a member's whole content, or a part of it if that is an
    object."""

    def __init__(self, spec: DatasetSpec, where: str) -> None:
        objects = DictRows(spec, where)
        self.columns, self._object_value = objects.columns, objects.value
        self._role = value_columns(spec.value)[0] if self.columns.roles else None
        """The field of the spec that selects a part."""

    def value(self, row: tuple[str, Any]) -> bytes:
        """The value of a pair of name and content. Raises RowRejected or orjson.JSONEncodeError."""
        member = row[1]
        if type(member) is UnusableRow:
            raise RowRejected(member.reason)
        if self._role is None:
            return orjson.dumps(member)
        if type(member) is not dict:
            raise RowRejected(f"its value is {_kind(member)}, and {self._role} chooses from objects")
        return self._object_value(member)


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _make_key_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], str]:
    columns, separator = spec.key.columns, spec.key.separator
    if len(columns) != 1:
        return lambda record: join_key(columns, [key_column_text(record, name) for name in columns], separator)
    column = columns[0]

    def key(record: dict[str, Any]) -> str:
        member = record.get(column)
        return member if type(member) is str else key_column_text(record, column)

    return key


def _make_value_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], bytes]:
    value, dumps = spec.value, orjson.dumps
    if value.column is not None:
        column, raw = value.column, value.format == "raw"
        return lambda record: _column_bytes(record, column, raw)
    if value.field is not None:
        field = value.field
        return lambda record: dumps(_require_column(record, field))
    if value.columns is not None:
        columns = value.columns
        return lambda record: dumps(
            {name: member for name in columns if (member := get_column(record, name)) is not ABSENT}
        )
    keys = spec.key.columns

    def all_but_key(record: dict[str, Any]) -> bytes:
        for name in keys:
            _remove_column(record, name)
        return dumps(record)

    return all_but_key


def _remove_column(record: dict[str, Any], name: str) -> None:
    if name in record:
        del record[name]
        return
    owner, last = find_owner(record, name)
    if owner is not None:
        owner.pop(last, None)


def _require_column(record: dict[str, Any], name: str) -> Any:
    member = get_column(record, name)
    if member is ABSENT:
        raise RowRejected(f"it has no {name}")
    return member


def key_column_text(record: dict[str, Any], column: str) -> str:
    """The text of a key column: text unchanged, an integer in decimal. Raises RowRejected for any other type."""
    member = record.get(column, ABSENT)
    if member is ABSENT:
        member = get_column(record, column)
    if type(member) is str:
        return member
    if type(member) is int:
        return str(member)
    if isinstance(member, orjson.Fragment):
        text = orjson.dumps(member).decode()
        if text.removeprefix("-").isdecimal():
            return text
        raise RowRejected(f"the key column {column} is {shorten_name(text)}; a key is text or an integer")
    if member is ABSENT:
        raise RowRejected(f"it has no key column {column}")
    if member is None:
        raise RowRejected(f"the key column {column} is null")
    kinds = {
        bool: "a boolean",
        float: "a fraction",
        list: "an array",
        dict: "an object",
        NotFinite: "NaN or an infinity",
        bytes: "binary that is not UTF-8",
    }
    kind = kinds.get(type(member), "of another type")
    raise RowRejected(f"the key column {column} is {kind}; a key is text or an integer")


def _column_bytes(record: dict[str, Any], column: str, raw: bool) -> bytes:
    member = _require_column(record, column)
    if isinstance(member, str):
        try:
            member = member.encode()
        except UnicodeEncodeError:
            raise RowRejected(f"the column {column} is not valid Unicode text (a lone surrogate)") from None
    if not isinstance(member, bytes):
        if raw:
            raise RowRejected(f"the column {column} is not text or binary")
        raise RowRejected(f"the column {column} is not text that holds JSON (value.field: {column} takes it as it is)")
    alternative = f"value.field: {column} makes JSON of it, value.format: raw takes it as it is"
    return member if raw else check_json_text(member, f"the column {column}", alternative)


def unwritable_column_error(where: str, column: str, why: str) -> BadSource:
    """The error for a column whose values have no JSON form, or would lose what they are: ``why`` follows its name."""
    return BadSource(
        f"{where}: the column {shorten_name(column)} {why}",
        hint="write it in another way, or name the columns to store without it: value.columns takes nothing else",
    )
