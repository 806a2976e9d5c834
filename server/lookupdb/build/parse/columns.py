"""Which columns the rows of a file have, if rows are dicts; and how a dotted column name reaches into nested dicts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lookupdb.build.parse.rows import unknown_column_error, value_columns
from lookupdb.spec import DatasetSpec

ABSENT: Any = object()
"""What ``get_column`` returns for a column that a row does not have: null would be a value."""
_MAX_NAMES: Final = 1000
_NESTED_ROWS: Final = 100
"""So many rows that lack a column are looked through for the nested names beside it."""
_SIBLINGS: Final = 20


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns that some rows of a file had, for another process."""

    missing: list[str]
    names: list[str]
    rows: int
    nested: list[str]


class ColumnTracker:
    """Tracks which of the spec's columns occur in the rows of one file."""

    def __init__(self, spec: DatasetSpec) -> None:
        role, columns = value_columns(spec.value)
        self.roles = {**dict.fromkeys(columns, role), **dict.fromkeys(spec.key.columns, "key.columns")}
        """Column → the field of the spec that names it."""
        self.missing = set(self.roles)
        """The columns that no record had so far. While there are any, records are passed to ``observe``."""
        self._names: dict[str, None] = {}
        self._nested: dict[str, None] = {}
        """Names with dots, of members that may have been meant: for messages."""
        self._rows = 0

    def observe(self, record: dict[str, Any]) -> None:
        """Note which columns ``record`` has."""
        self._rows += 1
        self.missing.difference_update([name for name in self.missing if _has_column(record, name)])
        if len(self._names) < _MAX_NAMES:
            self._names.update(dict.fromkeys(record))
        if self._rows <= _NESTED_ROWS and len(self._nested) < _MAX_NAMES:
            for name in self.missing:
                self._nested.update(dict.fromkeys(_list_siblings(record, name) if "." in name else _list_inner(record)))

    def count_more(self, rows: int) -> None:
        """Note so many rows that have no missing column, and none whose name was not noted."""
        self._rows += rows

    @property
    def names(self) -> Collection[str] | None:
        """The names noted so far; None if no more are noted."""
        return self._names if len(self._names) < _MAX_NAMES else None

    def snapshot(self) -> SeenColumns:
        """What was observed so far, for another tracker to ``merge``."""
        names, nested = (
            [name.encode(errors="backslashreplace").decode() for name in found]  # with no lone surrogates
            for found in (self._names, self._nested)
        )
        return SeenColumns(sorted(self.missing), names, self._rows, nested)

    def merge(self, snapshot: SeenColumns) -> None:
        """Add what another tracker observed in other rows of the same file."""
        self.missing.intersection_update(snapshot.missing)
        self._names.update(dict.fromkeys(snapshot.names[: max(0, _MAX_NAMES - len(self._names))]))
        self._nested.update(dict.fromkeys(snapshot.nested[: max(0, _MAX_NAMES - len(self._nested))]))
        self._rows += snapshot.rows

    def check(self, where: str) -> None:
        """Raises BadSource if a column of the spec occurs in no row of the file ``where``."""
        for name, role in self.roles.items():
            if self._rows and name in self.missing:
                lack = "which its only row lacks" if self._rows == 1 else f"which none of its {self._rows:,} rows has"
                raise unknown_column_error(where, role, name, self._names, nested=self._nested, lack=lack)


def _list_siblings(record: dict[str, Any], name: str) -> list[str]:
    """The names of what stands in the nested dicts that the dots of ``name`` lead through, a few of each."""
    owner: Any = record
    path = ""
    found: list[str] = []
    for part in name.split(".")[:-1]:
        owner = owner.get(part) if isinstance(owner, dict) else None
        path += f"{part}."
        if isinstance(owner, dict):
            found += [path + member for member in islice(owner, _SIBLINGS)]
    return found


def _list_inner(record: dict[str, Any]) -> list[str]:
    """The names of what stands in nested dicts, a few of each: the dots of one may have been forgotten."""
    return [
        f"{outer}.{member}"
        for outer, inner in islice(record.items(), _SIBLINGS)
        if isinstance(inner, dict)
        for member in islice(inner, _SIBLINGS)
    ]


def get_column(record: dict[str, Any], name: str) -> Any:
    """Return the member ``name``, or the nested one that its dots lead to; ``ABSENT`` if there is neither.

    What is within null is null, as in SQL.
    """
    if name in record:
        return record[name]
    owner: Any = record
    for part in name.split("."):
        if owner is None:
            return None
        owner = owner.get(part, ABSENT) if isinstance(owner, dict) else ABSENT
    return owner


def _has_column(record: dict[str, Any], name: str) -> bool:
    """Whether ``record`` shows that there is such a column: one within null may be a mistake in its name."""
    if name in record:
        return True
    owner, last = find_owner(record, name)
    return owner is not None and last in owner


def find_owner(record: dict[str, Any], name: str) -> tuple[dict[str, Any] | None, str]:
    """The nested dict that would hold the last part of ``name``, and that part."""
    *path, last = name.split(".")
    owner: Any = record
    for part in path:
        owner = owner.get(part) if isinstance(owner, dict) else None
    return (owner if path and isinstance(owner, dict) else None), last
