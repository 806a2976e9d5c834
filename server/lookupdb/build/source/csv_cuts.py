"""Guesses where rows begin in a CSV file, from the bytes near the place of an intended cut.

Quoted fields hold line breaks, so only the whole file before a line end proves that it ends a row. A cut is therefore a
guess, and the reader of the slice before it proves or corrects it. The guess looks at what follows a line end: rows
with as many fields as the header and with quotes in pairs. Lines within quoted text seldom look like that.
"""

from __future__ import annotations

import csv
import enum
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from lookupdb.spec import Csv

_ROWS_JUDGED: Final = 16
_CANDIDATES: Final = 2000
_UNFINISHED: Final = "unexpected end of data"
"""The csv module says so of a file that ends within quotes."""
_LINE_ENDS: Final = ("", "\n", "\r\n", "\r")
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
                if self.options.quote and _drop_escaped(row, self.options).count(self.options.quote) % 2:
                    verdict = _Verdict.ROWS_WITH_ODD_QUOTES
                rows += bool(fields)
                if rows == _ROWS_JUDGED:
                    break
        except csv.Error as error:
            if _UNFINISHED not in str(error):
                return _Verdict.NO_ROWS, lines.characters
        return (verdict if rows else _Verdict.NO_ROWS), lines.characters


def _drop_escaped(row: str, options: Csv) -> str:
    """``row`` without escaped quotes."""
    if not options.escape:
        return row
    return row.replace(options.escape * 2, "").replace(options.escape + options.quote, "")


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


def open_csv_reader(lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> Any:
    """The rows of ``lines`` as lists of fields, None for null. The only place that knows how to parse the spec's
    dialect."""
    if options.escape or options.null_values:
        return DialectReader(lines, options, delimiter, has_header=has_header)
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)


class DialectReader:
    """Reads CSV with escapes and null markers; without them it equals Python's csv module in strict mode.

    That module does not report which fields were quoted, and it applies escapes to unquoted fields, too.
    """

    def __init__(self, lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> None:
        self._lines, self._delimiter, self._quote = iter(lines), delimiter, options.quote
        self._escape = options.escape or ""
        self._nulls = frozenset(options.null_values)
        self._is_header = has_header
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        escaped = rf"|{escape}(?:\r\n|.)" if escape else ""
        outside = "" if quote else escaped
        # What a field consists of within one line.
        plain_stop = rf"\r\n{re.escape(delimiter)}{escape if outside else ''}"
        self._plain = re.compile(rf"(?:[^{plain_stop}]++{outside})*+", re.DOTALL)
        self._quoted = self._plain
        if quote:
            self._quoted = re.compile(rf"(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+", re.DOTALL)
        self._pairs = re.compile((rf"{quote}{quote}" if quote else "(?!)") + escaped, re.DOTALL)
        self._line, self._at = "", 0
        self.line_num = 0
        self.escaped_quote = self.plain_quote = False
        """Whether a quoted field had a quote after a backslash, and an unquoted field a quote."""

    def __iter__(self) -> Iterator[list[str | None]]:
        return self

    def __next__(self) -> list[str | None]:
        self._line, self._at = next(self._lines), 0
        self.line_num += 1
        fields: list[str | None] = []
        if self._line[0] not in "\r\n":
            fields.append(self._read_field())
            while self._line.startswith(self._delimiter, self._at):
                self._at += 1
                fields.append(self._read_field())
            if self._line[self._at :] not in _LINE_ENDS:
                raise csv.Error(f"'{self._delimiter}' expected after '{self._quote}'")
        self._is_header = False
        return fields

    def _read_field(self) -> str | None:
        is_quoted = bool(self._quote) and self._line.startswith(self._quote, self._at)
        raw = self._read_raw(is_quoted)
        if is_quoted:
            self.escaped_quote |= f"\\{self._quote}" in raw or raw.endswith("\\")
        elif raw in self._nulls and not self._is_header:
            return None
        elif self._quote:
            self.plain_quote |= self._quote in raw
            if self._escape and self._escape + self._quote in raw:
                raise csv.Error(f"an unquoted field has {self._escape}{self._quote}")
            return raw
        return self._pairs.sub(self._to_text, raw)

    def _read_raw(self, is_quoted: bool) -> str:
        """The field as it is written, without the quotes around it."""
        pattern, parts = (self._quoted if is_quoted else self._plain), []
        self._at += is_quoted
        while True:
            part = pattern.match(self._line, self._at)[0]  # type: ignore[index]  # it matches nothing, too
            parts.append(part)
            self._at += len(part)
            if self._escape and self._line.startswith(self._escape, self._at):
                raise csv.Error(_UNFINISHED)
            if self._at < len(self._line) or not (is_quoted or part.endswith(("\n", "\r"))):
                break
            self._line, self._at = next(self._lines, ""), 0
            if not self._line:
                raise csv.Error(_UNFINISHED)
            self.line_num += 1
        self._at += is_quoted
        return "".join(parts)

    def _to_text(self, pair: re.Match[str]) -> str:
        """What a doubled quote, or an escape with what follows, stands for."""
        meant = pair[0][1:]
        if meant not in (self._quote, self._escape, self._delimiter, "\n", "\r", "\r\n"):
            raise csv.Error(
                f"{self._escape} precedes {meant!r}, expected a quote, delimiter, line break or {self._escape}"
            )
        return meant
