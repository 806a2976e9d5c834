"""The key and the value of a CSV row: its fields as text, or as the types that the spec gives to columns.

A field is None if it is null, which it can be only if the spec has null markers.
"""

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

Fields = list[str | None]
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
    "perhaps a null marker: an unquoted one that source.csv.nullValues lists is null": re.compile(
        r"\\N|NULL|null|Null|NA|N/A|None"
    ),
    "blanks alone": re.compile(r"\s+"),
    "with blanks around it": re.compile(r"\s.*|.*\s", re.DOTALL),
}
"""What a field may look like that is not of its type: the first that fits."""


def _find_positions(
    where: str, role: str, columns_needed: Sequence[str], names: list[str], delimiter: str
) -> list[int]:
    positions = {name: number for number, name in enumerate(names)}
    for name in columns_needed:
        if name not in positions:
            raise unknown_column_error(where, role, name, names, delimiter=delimiter)
    return [positions[name] for name in columns_needed]


def make_key_function(
    spec: DatasetSpec, names: list[str], where: str, delimiter: str, *, is_nullable: bool = False
) -> Callable[[Any], str]:
    """The function from a row's fields to its key, not yet normalised. Raises BadSource for a missing column."""
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
    """The key of fields that may be null."""
    texts: list[str] = []
    for column, position in parts:
        text = fields[position]
        if text is None:
            raise RowRejected(f"the key column {column} is null")
        texts.append(text)
    return texts[0] if len(texts) == 1 else join_key([column for column, _ in parts], texts, separator)


def make_value_function(spec: DatasetSpec, names: list[str], where: str, delimiter: str) -> Callable[[Any], bytes]:
    """The function from a row's fields to its value. Raises BadSource for a missing column."""
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
    """How to make the text of one CSV column the value."""
    return f"value.column with value.format: raw takes text as it is, value.columns: [{name}] makes an object of it"


def _make_object_function(columns: list[tuple[int, str]], types: dict[str, CsvColumn]) -> Callable[[Fields], bytes]:
    members = [name for _, name in columns]
    converters = [
        (number, name, convert)
        for number, name in columns
        if (convert := _find_converter(types.get(name, CsvColumn(name)))) is not None
    ]
    dumps = orjson.dumps

    def plain(fields: Fields) -> bytes:
        return dumps({name: fields[number] for number, name in columns})

    def typed(fields: Fields) -> bytes:
        members: dict[str, Any] = {name: fields[number] for number, name in columns}
        for number, name, convert in converters:
            field = fields[number]
            if field is None:
                continue
            try:
                members[name] = convert(field)
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
