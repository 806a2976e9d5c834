"""Guesses where rows begin in a CSV file, from the bytes near the place of an intended cut.

Quoted fields hold line breaks, so only the whole file before a line end proves that it ends a row. A cut is therefore a
guess, and the reader of the slice before it proves or corrects it. The guess looks at what follows a line end: rows
with as many fields as the header and with quotes in pairs. Lines within quoted text seldom look like that.
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
"""How many windows' worth of bytes may be parsed to judge the line ends of one window."""


class _Verdict(enum.IntEnum):
    NO_ROWS = 0
    ROWS_WITH_ODD_QUOTES = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class RowShape:
    """What the rows of one file look like."""

    options: Csv
    delimiter: str
    fields: int

    @classmethod
    def from_first_bytes(cls, options: Csv, delimiter: str, top: bytes) -> RowShape | None:
        """Made from the file's first bytes; None if they hold no whole header."""
        if not options.header:
            return cls(options, delimiter, len(options.columns))
        text = io.TextIOWrapper(io.BytesIO(top), encoding="utf-8-sig", errors="replace", newline="")
        try:
            names = next(open_csv_reader(text, options, delimiter), None)
        except csv.Error:
            return None
        return cls(options, delimiter, len(names)) if names and text.read(1) else None

    def find_row_start(self, window: bytes) -> int | None:
        """The offset in ``window`` at which a row most likely begins; None if nothing in it looks like rows."""
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
        """Whether rows begin at ``position``, and how many characters were parsed to tell."""
        lines = _Lines(window, position)
        rows, verdict = 0, _Verdict.ROWS
        try:
            for fields in open_csv_reader(iter(lines), self.options, self.delimiter):
                row = lines.take_row()
                if not row.endswith(("\n", "\r")):
                    break  # the window ends within this row
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
    """The lines of ``window`` from ``position`` on; remembers those of the current row."""

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
        """The text of the row that was just parsed."""
        row = "".join(self._row)
        self._row.clear()
        return row


def open_csv_reader(lines: Any, options: Csv, delimiter: str) -> Any:
    """The rows of ``lines``. The only place that knows how to parse the spec's dialect."""
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)
