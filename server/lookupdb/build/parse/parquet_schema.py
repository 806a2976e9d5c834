"""What a Parquet file's schema says that DuckDB would change: pure.

DuckDB does not tell names apart that differ in case alone, and calls the second one of "name" and "NAME" "NAME_1"; a
column without a name it calls "C1"; and of decimals with more digits than its own it makes doubles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lookupdb.build.parse.rows import shorten_name

_MAX_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class SchemaElement:
    """A column, or what is nested within one: ``parquet_schema`` of DuckDB lists each before what it holds."""

    name: str
    children: int
    precision: int
    """The digits of a decimal; 0 of other types."""
    is_int96: bool = False


@dataclass(slots=True)
class _Group:
    """What holds other elements."""

    column: int | None
    """The number of the column that it is, or is nested in; None of the file's own group."""
    left: int
    """How many of its children are still to come."""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The columns of a file."""

    names: list[str]
    """As the file has them, in its order."""
    obstacles: dict[int, str]
    """Column → why it would be read as something else."""
    int96: frozenset[int]
    """The columns that are, or hold, timestamps of the type INT96."""


def read_schema(elements: Iterable[SchemaElement]) -> ParquetSchema:
    """The schema of a file with ``elements``, its own group the first."""
    names: list[str] = []
    obstacles: dict[int, str] = {}
    int96: set[int] = set()
    pairs: set[int] = set()
    groups: list[_Group] = []
    for element in elements:
        column = None
        if groups:
            parent = groups[-1]
            column = len(names) if parent.column is None else parent.column
            (names if parent.column is None else parent.names).append(element.name)
            parent.left -= 1
            if element.precision > _MAX_DIGITS:
                obstacles[column] = f"has decimals of {element.precision} digits, and {_MAX_DIGITS} are read exactly"
            if element.is_int96:
                int96.add(column)
        groups.append(_Group(column, element.children))
        while groups and not groups[-1].left:
            group = groups.pop()
            if group.names == ["date", "time"] and group.column is not None:
                pairs.add(group.column)
            for first, other in _find_look_alikes(group.names):
                obstacles[group.column or 0] = f"has members called {first!r} and {other!r}, which are read as one name"
    for column in int96 & pairs:
        obstacles[column] = "has INT96 timestamps and a struct of a date and a time, which cannot be told apart"
    return ParquetSchema(names, obstacles, frozenset(int96))


def _find_look_alikes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of names that differ in case at most, of which DuckDB knows that of ASCII."""
    seen: dict[bytes, str] = {}
    for name in names:
        folded = name.encode().lower()
        if folded in seen:
            yield shorten_name(seen[folded]), shorten_name(name)
        seen[folded] = name
