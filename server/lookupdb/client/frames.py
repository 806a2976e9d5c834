"""Add the values of a dataset to a DataFrame of pandas or polars. No I/O.

Neither library is a dependency; each is imported only after one of its frames was passed.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from lookupdb.errors import KeyMissing, UsageError
from lookupdb.records import Key

VALUE: Final = "value"
"""The new column that holds whole values."""
_INT64: Final = range(-(1 << 63), 1 << 63)
_SHOWN: Final = 3


class FrameLookup:
    """One call of ``lookup_frame``: gives the keys of its rows in batches, and takes their values."""

    def __init__(
        self,
        frame: Any,
        on: str | Sequence[str],
        columns: str | Sequence[str] | None,
        *,
        prefix: str,
        suffix: str,
        missing: str,
    ) -> None:
        if missing not in ("null", "error"):
            raise UsageError(f"missing is {missing!r}, expected 'null' or 'error'")
        self._frame = frame
        self._library = _recognise(frame)
        self.on = (on,) if isinstance(on, str) else tuple(on)
        self._members = (columns,) if isinstance(columns, str) else None if columns is None else tuple(columns)
        self._names = [f"{prefix}{name}{suffix}" for name in ((VALUE,) if self._members is None else self._members)]
        self._is_strict = missing == "error"
        names = list(frame.columns)
        if not self.on or any(names.count(name) != 1 for name in self.on):
            raise UsageError(f"on={self.on!r} must name columns that the frame has once; it has {names!r:.200}")
        twice = [name for name in self._names if (names + self._names).count(name) > 1]
        if twice or not self._names:
            raise UsageError(
                f"the frame would have these columns twice: {twice!r:.200}"
                if twice
                else "columns= names no member of the values",
                hint="give a prefix= or a suffix=" if twice else "leave it out for a column with whole values",
            )
        self._starts = 0
        self.begin_again(1)

    def begin_again(self, most: int) -> bool:
        """Drop all values, because one generation must answer for all rows. Return False after ``most`` starts."""
        self._starts += 1
        self._begin = 0
        self._keys: list[Key | None] = []  # of the rows of a batch, None for a null
        self._columns: list[list[Any]] = [[] for _ in self._names]
        self._seen: dict[str, None] = {}  # names of members of the values so far, in their order
        return self._starts <= most

    @property
    def is_done(self) -> bool:
        """True if every row has its values."""
        return self._begin >= len(self._frame)

    def next_keys(self, rows: int) -> list[Key]:
        """Return the distinct keys of the next ``rows``, whose values ``take`` expects."""
        parts = [_list_texts(self._library, self._frame[name], name, self._begin, rows) for name in self.on]
        self._keys = [None if None in key else key if len(key) > 1 else key[0] for key in zip(*parts, strict=True)]
        return [*dict.fromkeys(key for key in self._keys if key is not None)]

    def take(self, found: Mapping[Any, Any]) -> None:
        """Take the values of the last batch."""
        if self._is_strict and (lost := [key for key in dict.fromkeys(self._keys) if key not in found]):
            shown = ", ".join(f"{key!r:.60}" for key in lost[:_SHOWN]) + (" …" if len(lost) > _SHOWN else "")
            raise KeyMissing(
                f"no record for {shown} (column {', '.join(self.on)}, in row {self._begin} or later)",
                hint="missing='null' gives such rows nulls",
            )
        nulls = (None,) * len(self._names)
        rows: dict[Any, tuple[Any, ...]] = {}
        for key, value in found.items():
            if self._members is None:
                rows[key] = (value,)
                continue
            if not isinstance(value, dict):
                raise UsageError(
                    f"columns= names members of values that are objects; the value of {key!r:.60} is {value!r:.60}",
                    hint=f"leave columns= out: whole values become the column {VALUE}",
                )
            self._seen |= dict.fromkeys(value)
            rows[key] = tuple(map(value.get, self._members))
        for key in self._keys:
            for column, item in zip(self._columns, rows.get(key, nulls), strict=True):
                column.append(item)
        self._begin += len(self._keys)

    def finish(self) -> Any:
        """Return the frame with the new columns. Raises UsageError for a member that no value has."""
        unknown = [name for name in self._members or () if self._seen and name not in self._seen]
        if unknown:
            raise UsageError(
                f"columns= names {unknown!r:.200}, which no value found has; they have {[*self._seen]!r:.200}",
                hint="for members that only some values have, leave columns= out and read the whole values",
            )
        columns = {name: _choose_type(items) for name, items in zip(self._names, self._columns, strict=True)}
        library = importlib.import_module(self._library)
        if self._library == "polars":
            return self._frame.with_columns(
                [_polars_column(library, name, *column) for name, column in columns.items()]
            )
        enriched = self._frame.copy(deep=False)
        for name, (kind, items) in columns.items():
            enriched[name] = library.Series(items, index=enriched.index, dtype=_PANDAS_TYPES.get(kind, object))
        return enriched


def _recognise(frame: object) -> str:
    """Return the name of the library that ``frame`` is a DataFrame of."""
    for kind in type(frame).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ == "DataFrame" and library in ("pandas", "polars"):
            return library
    raise UsageError(
        f"expected a DataFrame of pandas or polars, found {type(frame).__module__}.{type(frame).__qualname__}",
        hint="collect() a LazyFrame, and convert others, such as an Arrow table by its to_pandas()",
    )


def _list_texts(library: str, column: Any, name: str, begin: int, rows: int) -> list[str | None]:
    """Return the texts of a key column in the rows from ``begin`` on, None for a null."""
    part = column[begin : begin + rows] if library == "polars" else column.iloc[begin : begin + rows]
    items = part.to_list() if library == "polars" else part.astype(object).where(part.notna(), None).tolist()
    return [item if item is None or type(item) is str else _to_text(item, name) for item in items]


def _to_text(item: Any, name: str) -> str:
    if isinstance(item, str):
        return str(item)
    if not isinstance(item, bool):
        try:
            return str(operator.index(item))
        except TypeError:
            pass
    raise UsageError(
        f"a key column holds text or integers, {name} holds {item!r:.60} ({type(item).__name__})",
        hint="convert the column first; in pandas, integers with nulls are floats: astype('Int64')",
    )


_PANDAS_TYPES: Final = {int: "Int64", bool: "boolean", float: "Float64", str: "string"}


def _choose_type(items: list[Any]) -> tuple[type, list[Any]]:
    """Return the common type of ``items``, and the items converted to it. The type is object if they have none in
    common, or if converting would change a value."""
    kinds = {type(item) for item in items if item is not None}
    kind = kinds.pop() if len(kinds) == 1 else object
    if kinds == {int, float}:
        with suppress(OverflowError):
            floats = [item if item is None else float(item) for item in items]
            return (float, floats) if floats == items else (object, items)
    if kind is int and any(item is not None and item not in _INT64 for item in items):
        return object, items
    return kind, items


def _polars_column(polars: Any, name: str, kind: type, items: list[Any]) -> Any:
    if all(item is None for item in items):
        return polars.Series(name, items, dtype=polars.Null)  # an Object column could be neither saved nor cast
    types = {int: polars.Int64, bool: polars.Boolean, float: polars.Float64, str: polars.String, bytes: polars.Binary}
    if kind in types:
        return polars.Series(name, items, dtype=types[kind])
    if kind is list or kind is dict:
        try:
            column = polars.Series(name, items)
            read = column.to_list()
            if read == items and _have_same_booleans(read, items):
                return column
        except Exception:  # noqa: S110 - whatever its reason, objects hold any value
            pass
    return polars.Series(name, items, dtype=polars.Object)


def _have_same_booleans(column: Any, original: Any) -> bool:
    """Return whether two equal values have booleans at the same places: to Python, 1 equals True."""
    if isinstance(column, list):
        return all(map(_have_same_booleans, column, original))
    if isinstance(column, dict):
        return all(_have_same_booleans(item, original[name]) for name, item in column.items())
    return isinstance(column, bool) == isinstance(original, bool)
