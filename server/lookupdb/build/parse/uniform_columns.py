"""All files of a source that declare their columns, CSV and Parquet, declare the same ones, in any order.

Else a column that one file calls by another name would go live under both names. A value that names its columns takes
nothing else, so such files may have what others lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lookupdb.build.parse.rows import shorten_name, value_columns
from lookupdb.errors import BadSource
from lookupdb.spec import DatasetSpec

_SHOWN_NAMES: Final = 10


class UniformColumns:
    """Compares the columns of each file with those of the first."""

    def __init__(self, spec: DatasetSpec) -> None:
        self._takes_all = not value_columns(spec.value)[1]
        self._first: tuple[str, frozenset[str]] | None = None

    def check(self, where: str, names: Sequence[str] | None) -> None:
        """Raises BadSource if the file ``where`` has other columns than the first. None: it declares none."""
        if names is None or not self._takes_all:
            return
        if self._first is None:
            self._first = where, frozenset(names)
            return
        first, expected = self._first
        if expected.symmetric_difference(names):
            raise _difference_error(where, names, first, expected)


def _difference_error(where: str, names: Sequence[str], first: str, expected: frozenset[str]) -> BadSource:
    found = frozenset(names)
    changes = (("lacks", expected - found), ("adds", found - expected))
    difference = " and ".join(f"{word} {_list_names(columns)}" for word, columns in changes if columns)
    return BadSource(
        f"{where} has other columns than {first}: it {difference}",
        hint="give all files of a source the same columns, or name those to store: value.columns takes nothing else",
    )


def _list_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(repr(shorten_name(name)) for name in ordered[:_SHOWN_NAMES])
    return shown + (f" and {len(ordered) - _SHOWN_NAMES:,} more" if len(ordered) > _SHOWN_NAMES else "")
