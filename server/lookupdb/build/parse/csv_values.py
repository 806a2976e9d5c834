"""The key and the value of a CSV row: its fields as text, or as the types that the spec gives to columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import orjson

from lookupdb.build.parse.rows import RowRejected, check_json_text, join_key, unknown_column_error, value_columns
from lookupdb.errors import BadSource
from lookupdb.spec import CsvColumn, DatasetSpec
from lookupdb.wording import format_count

Convert = Callable[[str], Any]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS: Final = {"true": True, "false": False}
_SHAPES: Final = {
    "an integer": _INTEGER,
    "a number": _NUMBER,
    "digits behind a zero or a plus sign": re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?"),
    "digits with separators": re.compile(r"[-+]?[0-9]+(?:[ '_.,][0-9]+)+"),
    "true or false in capitals": re.compile(r"true|false", re.IGNORECASE),
    "blanks alone": re.compile(r"\s+"),
    "with blanks around it": re.compile(r"\s.*|.*\s", re.DOTALL),
}
"""What a field may look like that is not of its type: the first that fits."""


def _find_positions(where: str, role: str, columns_needed: Sequence[str], names: list[str]) -> list[int]:
    positions = {name: number for number, name in enumerate(names)}
    for name in columns_needed:
        if name not in positions:
            raise unknown_column_error(where, role, name, names)
    return [positions[name] for name in columns_needed]


def make_key_function(spec: DatasetSpec, names: list[str], where: str) -> Callable[[list[str]], str]:
    """The function from a row's fields to its key, not yet normalised. Raises BadSource for a missing column."""
    columns = spec.key.columns
    positions = _find_positions(where, "key.columns", columns, names)
    if len(positions) == 1:
        return itemgetter(positions[0])
    separator, pick = spec.key.separator, itemgetter(*positions)
    return lambda fields: join_key(columns, pick(fields), separator)


def make_value_function(spec: DatasetSpec, names: list[str], where: str) -> Callable[[list[str]], bytes]:
    """The function from a row's fields to its value. Raises BadSource for a missing column."""
    types = {column.name: column for column in spec.source.csv.columns}
    _find_positions(where, "source.csv.columns", list(types), names)
    role, columns_needed = value_columns(spec.value)
    positions = _find_positions(where, role, columns_needed, names)
    if spec.value.field is not None:
        raise BadSource(f"{where}: value.field is for JSON and Parquet", hint=_single_column_hint(spec.value.field))
    if spec.value.column is not None:
        position, name = positions[0], spec.value.column
        if spec.value.format == "raw":
            return lambda fields: fields[position].encode()
        alternative = _single_column_hint(name)
        return lambda fields: check_json_text(fields[position].encode(), f"the column {name}", alternative)
    if not columns_needed:
        positions = [number for number, name in enumerate(names) if name not in spec.key.columns]
    return _make_object_function([(number, names[number]) for number in positions], types)


def _single_column_hint(name: str) -> str:
    """How to make the text of one CSV column the value."""
    return f"value.column with value.format: raw takes text as it is, value.columns: [{name}] makes an object of it"


def _make_object_function(columns: list[tuple[int, str]], types: dict[str, CsvColumn]) -> Callable[[list[str]], bytes]:
    members = [name for _, name in columns]
    converters = [
        (number, name, convert)
        for number, name in columns
        if (convert := _find_converter(types.get(name, CsvColumn(name)))) is not None
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


def _find_converter(column: CsvColumn) -> Convert | None:
    """The function from a field to a JSON value; None for text that stays unchanged."""
    convert = _TYPES[column.type]
    if column.empty == "null":
        return lambda field: None if field == "" else (convert(field) if convert else field)
    return convert


def _parse_integer(field: str) -> orjson.Fragment:
    if not _INTEGER.fullmatch(field):
        raise RowRejected(f"expected an integer, found {describe_field(field)}")
    return orjson.Fragment(field)


def _parse_number(field: str) -> orjson.Fragment:
    if not _NUMBER.fullmatch(field):
        raise RowRejected(f"expected a number, found {describe_field(field)}")
    return orjson.Fragment(field)


def _parse_boolean(field: str) -> bool:
    if field not in _BOOLEANS:
        raise RowRejected(f"expected true or false, found {describe_field(field)}")
    return _BOOLEANS[field]


def _parse_json(field: str) -> orjson.Fragment:
    return orjson.Fragment(check_json_text(field.encode(), describe_field(field)))


def describe_field(field: str) -> str:
    """What ``field`` looks like, and nothing of what it says: its row's number leads to that."""
    if not field:
        return 'nothing (`empty: "null"` would make it null)'
    shape = next((f" ({shape})" for shape, pattern in _SHAPES.items() if pattern.fullmatch(field)), "")
    return f"text of {format_count(len(field), 'character')}{shape}"


_TYPES: Final[dict[str, Convert | None]] = {
    "text": None,
    "integer": _parse_integer,
    "number": _parse_number,
    "boolean": _parse_boolean,
    "json": _parse_json,
}
