"""Join the columns of a key. Builders and readers share ``join_columns``, so that all find the same record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Key = str | tuple[str | int, ...]
"""A key, as readers give it: text, or the columns of a key of several columns."""
K = TypeVar("K", bound=Key)


class UnusableColumn(ValueError):
    """No record can have the key: a column is empty, or holds the separator."""


def join_columns(columns: Sequence[str], parts: Iterable[str], separator: str) -> str:
    """Join the columns of a key. Only the last one may contain the separator, so that two keys never become one."""
    parts = list(parts)
    for column, part in zip(columns[:-1], parts, strict=False):
        if separator in part:
            raise UnusableColumn(f"the key column {column} holds the separator {separator!r}")
    for column, part in zip(columns, parts, strict=True):
        if not part:
            raise UnusableColumn(f"the key column {column} is empty")
    return separator.join(parts)


def join_key(columns: Sequence[str], key: tuple[object, ...], separator: str) -> str:
    """Return the text of ``key``, which has text or an integer for each of ``columns``. Raises UnusableColumn,
    TypeError."""
    if len(key) != len(columns):
        raise TypeError(f"a key has {len(columns)} columns, {', '.join(columns)}; found {len(key)}: {key!r:.60}")
    return join_columns(columns, map(column_text, key), separator)


def column_text(part: object) -> str:
    """Return the text of a key column: text unchanged, an integer in decimal, as builders do."""
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return int.__repr__(part)
    raise TypeError(f"a key column is a str or an int, found {type(part).__name__}: {part!r:.60}")


def key_members(columns: Sequence[str], separator: str) -> dict[str, Any]:
    """Return the members of a routing table's entry for keys of several columns; none for keys of one."""
    return {"keyColumns": list(columns), "separator": separator} if len(columns) > 1 else {}
