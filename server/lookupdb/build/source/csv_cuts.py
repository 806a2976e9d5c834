"""Guesses where rows begin within a CSV file, from the bytes near the place where a cut is wanted.

Nothing but the whole file before it proves that a line end is a row's end, because quoted fields hold line breaks. So a
cut is a guess here, and whoever reads the slice before it proves or mends it. A guess looks at what follows a line end:
rows of as many fields as the header has, whose quotes come in pairs. Within a quoted text, lines seldom look like that.
"""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.spec import Csv

_ROWS_JUDGED: Final = 16
_CANDIDATES: Final = 2000
_JUDGED_WINDOWS: Final = 4
"""How many times the window's size may be parsed to judge the line ends in it."""


class _Verdict(enum.IntEnum):
    NO_ROWS = 0
    ROWS_WITH_ODD_QUOTES = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class RowShape:
    """How the rows of one file look."""

    options: Csv
    delimiter: str
    fields: int

    @classmethod
    def of_file(cls, options: Csv, delimiter: str, top: bytes) -> RowShape | None:
        """From the file's first bytes; None when they hold no whole header."""
        if not options.header:
            return cls(options, delimiter, len(options.columns))
        text = io.TextIOWrapper(io.BytesIO(top), encoding="utf-8-sig", errors="replace", newline="")
        try:
            names = next(csv_reader(text, options, delimiter), None)
        except csv.Error:
            return None
        return cls(options, delimiter, len(names)) if names and text.read(1) else None

    def row_start(self, window: bytes) -> int | None:
        """Where in ``window`` a row begins, most likely; None when nothing in it looks like rows."""
        second_best, position, parsed = None, 0, 0
        for _ in range(_CANDIDATES):
            position = window.find(b"\n", position) + 1
            if not position or parsed > _JUDGED_WINDOWS * len(window):
                break
            verdict, characters = self._judge(window, position)
            parsed += characters
            if verdict is _Verdict.ROWS:
                return position
            if verdict is _Verdict.ROWS_WITH_ODD_QUOTES and second_best is None:
                second_best = position
        return second_best

    def _judge(self, window: bytes, position: int) -> tuple[_Verdict, int]:
        """Whether rows stand at ``position``, and how many characters it took to say so."""
        lines = _Lines(window, position)
        rows, verdict = 0, _Verdict.ROWS
        try:
            for fields in csv_reader(iter(lines), self.options, self.delimiter):
                row = lines.take_row()
                if not row.endswith(("\n", "\r")):
                    break  # the window ends within it
                if fields and len(fields) != self.fields:
                    return _Verdict.NO_ROWS, lines.characters
                if self.options.quote and row.count(self.options.quote) % 2:
                    verdict = _Verdict.ROWS_WITH_ODD_QUOTES
                rows += bool(fields)
                if rows == _ROWS_JUDGED:
                    break
        except csv.Error as error:
            if "unexpected end of data" not in str(error):
                return _Verdict.NO_ROWS, lines.characters
        return (verdict if rows else _Verdict.NO_ROWS), lines.characters


class _Lines:
    """The lines of ``window`` from ``position`` on, which remember those of the present row."""

    def __init__(self, window: bytes, position: int) -> None:
        content = io.BytesIO(window)  # shares the bytes
        content.seek(position)
        self._text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", newline="")
        self._row: list[str] = []
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self._row.append(line)
            self.characters += len(line)
            yield line

    def take_row(self) -> str:
        """The text of the row that was just read."""
        row = "".join(self._row)
        self._row.clear()
        return row


def csv_reader(lines: Any, options: Csv, delimiter: str) -> Any:
    """The rows of ``lines``: the one place that knows how the spec's dialect is parsed."""
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)
