"""The interface of every parser, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lookupdb.build.parse.columns import ColumnTracker
from lookupdb.build.parse.rows import Row


class RowParser(Protocol):
    """Reads a slice. ``key`` and ``value`` take a row from iteration; call ``key`` first, because ``value`` may consume
    the row."""

    @property
    def key(self) -> Callable[[Row], str]:
        """A row's key, not yet normalised. Raises RowRejected."""

    @property
    def value(self) -> Callable[[Row], bytes]:
        """A row's value; JSON contains no raw control characters. Raises RowRejected, orjson.JSONEncodeError."""

    def __iter__(self) -> Iterator[Row]:
        """The rows in the slice's order. Raises BadSource, which names file and row."""

    def position(self) -> int:
        """How many bytes of the slice were read."""

    @property
    def end(self) -> int | None:
        """Where in the file the last row ends, for a slice that extends to its row's end; None if the slice's own end
        is exact."""

    @property
    def lines(self) -> int:
        """How many lines of the file were read; 0 for formats without lines."""

    @property
    def names(self) -> Sequence[str] | None:
        """The names of the columns that the file declares, in a header or a footer; None if its rows name them."""

    @property
    def columns(self) -> ColumnTracker | None:
        """The columns that the rows had; None if the file declares its columns."""
