"""What the native row kernels have to know of a spec: made here for both, or None if they do not know such a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from lookupdb.build.parse.rows import value_columns
from lookupdb.build.sort.sorter import SPOOL_BYTES
from lookupdb.spec import CsvColumn, DatasetSpec


def find_json_obstacle(spec: DatasetSpec) -> str | None:
    """Why the native kernel cannot read JSON lines for ``spec``; None if it can."""
    nested = [name for name in (*spec.key.columns, *value_columns(spec.value)[1]) if "." in name]
    if nested:
        return f"the column {nested[0]} may be a nested one"
    return None if spec.key.columns else "keys are names of members"


def find_csv_obstacle(spec: DatasetSpec, delimiter: str) -> str | None:
    """Why the native kernel cannot read CSV for ``spec``; None if it can."""
    quote = spec.source.csv.quote
    if not delimiter.isascii() or not quote.isascii() or delimiter in (quote, "\r", "\n") or quote in ("\r", "\n"):
        return f"the delimiter is {delimiter!r} and the quote {quote!r}"
    return None


def make_json_rules(kernels: Any, spec: DatasetSpec, max_row: int, encode: Callable[[str], bytes]) -> Any:
    """The kernel that reads JSON lines; None if the spec reaches into nested objects."""
    if find_json_obstacle(spec) is not None:
        return None
    value = spec.value
    _, columns = value_columns(value)
    rule = "columns"
    if value.column is not None:
        rule = value.format
    elif value.field is not None:
        rule = "field"
    elif value.columns is None:
        rule = "all"
    return kernels.JsonRows(
        list(spec.key.normalize),
        encode,
        [orjson.dumps(name) for name in spec.key.columns],
        spec.key.separator.encode(),
        rule,
        [orjson.dumps(name) for name in columns],
        _max_value(spec),
        max_row,
    )


def make_csv_rules(
    kernels: Any, spec: DatasetSpec, delimiter: str, names: list[str], max_row: int, encode: Callable[[str], bytes]
) -> Any:
    """The kernel that reads CSV; None if the file is written in a way that it does not know."""
    if find_csv_obstacle(spec, delimiter) is not None:
        return None
    quote, escape = spec.source.csv.quote, spec.source.csv.escape
    nulls = [text.encode() for text in spec.source.csv.null_values]
    positions = {name: number for number, name in enumerate(names)}
    return kernels.CsvRows(
        list(spec.key.normalize),
        encode,
        (ord(delimiter), ord(quote) if quote else None, ord(escape) if escape else None, nulls),
        len(names),
        [positions[name] for name in spec.key.columns],
        spec.key.separator.encode(),
        "object" if spec.value.column is None else spec.value.format,
        _csv_columns(spec, positions),
        _max_value(spec),
        max_row,
    )


def _csv_columns(spec: DatasetSpec, positions: dict[str, int]) -> list[tuple[int, bytes, str, bool]]:
    """Field, what stands before the member, type, whether empty means null."""
    _, chosen = value_columns(spec.value)
    columns = chosen or [name for name in positions if name not in spec.key.columns]
    types = {column.name: column for column in spec.source.csv.columns}
    found: list[tuple[int, bytes, str, bool]] = []
    for number, name in enumerate(columns):
        column = types.get(name, CsvColumn(name))
        head = (b"," if number else b"{") + orjson.dumps(name) + b":"
        found.append((positions[name], head, column.type, column.empty == "null"))
    return found


def _max_value(spec: DatasetSpec) -> int:
    """Larger values are rejected, or wait in a spool: Python sees to both."""
    return min(spec.value.max_bytes, SPOOL_BYTES)
