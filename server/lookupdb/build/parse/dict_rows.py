"""The key and the value of a record that is a dict: a JSON object, or a Parquet row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lookupdb.build.parse.rows import RowRejected, UnusableRow, joined_key, json_text, unknown_column, value_names
from lookupdb.errors import BadSource
from lookupdb.spec import DatasetSpec

_ABSENT: Any = object()
_MOST_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Told:
    """What rows of a file had, for one who has not seen them."""

    unseen: list[str]
    names: list[str]
    rows: int


class NotFinite:
    """NaN or an infinity: orjson does not write it, so that a row whose value holds it is rejected."""


NOT_FINITE: Final = NotFinite()


class Columns:
    """Which of the columns that the spec names were seen in the rows of one file."""

    def __init__(self, spec: DatasetSpec) -> None:
        role, wanted = value_names(spec.value)
        self.roles = {**dict.fromkeys(wanted, role), **dict.fromkeys(spec.key.columns, "key.columns")}
        """Column → the field of the spec that names it."""
        self.unseen = set(self.roles)
        """The columns that no record had so far. While there are any, ``look`` wants to see the records."""
        self._names: dict[str, None] = {}
        self._rows = 0

    def look(self, record: dict[str, Any]) -> None:
        """See which columns ``record`` has."""
        self._rows += 1
        self.unseen.difference_update([name for name in self.unseen if reach(record, name) is not _ABSENT])
        if len(self._names) < _MOST_NAMES:
            self._names.update(dict.fromkeys(record))

    def told(self) -> Told:
        """What was seen, for ``add`` of another process."""
        return Told(sorted(self.unseen), list(self._names), self._rows)

    def add(self, told: Told) -> None:
        """What was seen in other rows of the same file."""
        self.unseen.intersection_update(told.unseen)
        self._names.update(dict.fromkeys(told.names[: max(0, _MOST_NAMES - len(self._names))]))
        self._rows += told.rows

    def check(self, where: str) -> None:
        """Raises BadSource when a column that the spec names was in no row of the file ``where``."""
        for name, role in self.roles.items():
            if self._rows and name in self.unseen:
                raise unknown_column(f"{where}: none of its {self._rows} rows", role, name, self._names)


class Objects:
    """How the spec makes records of dicts. A dot in a column's name reaches into nested ones, unless a member has the
    whole name.

    A value's column that a row does not have is left out of its value; one that no row has is a BadSource.
    """

    def __init__(self, spec: DatasetSpec, where: str) -> None:
        self._where = where
        self.columns = Columns(spec)
        self.key = _key_function(spec)
        """A record's key, not yet normalised. Raises RowRejected."""
        self.value = _value_function(spec)
        """A record's value; the record is used up. Raises RowRejected, or orjson.JSONEncodeError."""

    def declare(self, names: Iterable[str], nested: Iterable[str] = ()) -> None:
        """The columns are known beforehand. Raises BadSource for one that the spec names and that is not there."""
        names = list(names)
        known = {*names, *nested}
        for name, role in self.columns.roles.items():
            if name not in known:
                raise unknown_column(self._where, role, name, names)
        self.columns.unseen.clear()


class MemberValues:
    """How the spec makes values of what the members of one JSON object hold: all of it, or a part of an object."""

    def __init__(self, spec: DatasetSpec, where: str) -> None:
        objects = Objects(spec, where)
        self.columns, self._of_object = objects.columns, objects.value
        self._role = value_names(spec.value)[0] if self.columns.roles else None
        """The field of the spec that chooses a part."""

    def value(self, row: tuple[str, Any]) -> bytes:
        """Of a pair of name and value. Raises RowRejected, or orjson.JSONEncodeError."""
        found = row[1]
        if type(found) is UnusableRow:
            raise RowRejected(found.reason)
        if self._role is None:
            return orjson.dumps(found)
        if type(found) is not dict:
            raise RowRejected(f"its value is {_kind(found)}, and {self._role} chooses from objects")
        return self._of_object(found)


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _key_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], str]:
    columns, separator = spec.key.columns, spec.key.separator
    if len(columns) != 1:
        return lambda record: joined_key(columns, [key_part(record, name) for name in columns], separator)
    column = columns[0]

    def key(record: dict[str, Any]) -> str:
        found = record.get(column)
        return found if type(found) is str else key_part(record, column)

    return key


def _value_function(spec: DatasetSpec) -> Callable[[dict[str, Any]], bytes]:
    value, dumps = spec.value, orjson.dumps
    if value.column is not None:
        column, raw = value.column, value.format == "raw"
        return lambda record: _column_bytes(record, column, raw)
    if value.field is not None:
        field = value.field
        return lambda record: dumps(_present(record, field))
    if value.columns is not None:
        columns = value.columns
        return lambda record: dumps({name: found for name in columns if (found := reach(record, name)) is not _ABSENT})
    keys = spec.key.columns

    def all_but_key(record: dict[str, Any]) -> bytes:
        for name in keys:
            _remove(record, name)
        return dumps(record)

    return all_but_key


def reach(record: dict[str, Any], name: str) -> Any:
    """The member called ``name``, or the one that its dots lead to; ``_ABSENT`` when there is neither."""
    if name in record:
        return record[name]
    owner, last = _owner(record, name)
    return _ABSENT if owner is None else owner.get(last, _ABSENT)


def _owner(record: dict[str, Any], name: str) -> tuple[dict[str, Any] | None, str]:
    """The nested dict in which the last part of ``name`` would be, and that part."""
    *path, last = name.split(".")
    owner: Any = record
    for part in path:
        owner = owner.get(part) if isinstance(owner, dict) else None
    return (owner if path and isinstance(owner, dict) else None), last


def _remove(record: dict[str, Any], name: str) -> None:
    if name in record:
        del record[name]
        return
    owner, last = _owner(record, name)
    if owner is not None:
        owner.pop(last, None)


def _present(record: dict[str, Any], name: str) -> Any:
    found = reach(record, name)
    if found is _ABSENT:
        raise RowRejected(f"it has no {name}")
    return found


def key_part(record: dict[str, Any], column: str) -> str:
    """A key column's text: text as it is, an integer in decimal. Raises RowRejected for anything else."""
    found = record.get(column, _ABSENT)
    if found is _ABSENT:
        found = reach(record, column)
    if type(found) is str:
        return found
    if type(found) is int:
        return str(found)
    if isinstance(found, orjson.Fragment):
        text = orjson.dumps(found).decode()
        if text.removeprefix("-").isdecimal():
            return text
        raise RowRejected(f"the key column {column} is {text}; a key is text or an integer")
    if found is _ABSENT:
        raise RowRejected(f"it has no key column {column}")
    if found is None:
        raise RowRejected(f"the key column {column} is null")
    kinds = {bool: "a boolean", float: "a fraction", list: "an array", dict: "an object", bytes: "binary"}
    kind = kinds.get(type(found), "of another type")
    raise RowRejected(f"the key column {column} is {kind}; a key is text or an integer")


def _column_bytes(record: dict[str, Any], column: str, raw: bool) -> bytes:
    found = _present(record, column)
    if isinstance(found, str):
        try:
            found = found.encode()
        except UnicodeEncodeError:
            raise RowRejected(f"the column {column} is not valid Unicode text (a lone surrogate)") from None
    if not isinstance(found, bytes):
        if raw:
            raise RowRejected(f"the column {column} is not text or binary")
        raise RowRejected(f"the column {column} is not text that holds JSON (value.field: {column} takes it as it is)")
    otherwise = f"value.field: {column} makes JSON of it, value.format: raw takes it as it is"
    return found if raw else json_text(found, f"the column {column}", otherwise)


def unsupported(where: str, column: str, kind: str) -> BadSource:
    """The error for a column whose type has no JSON form."""
    return BadSource(f"{where}: the column {column} is of type {kind}, which cannot be written as JSON")
