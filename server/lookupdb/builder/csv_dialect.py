"""Read a dialect of CSV: Python's csv module, or ``DialectReader`` for escapes and null markers."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from lookupdb.dataset.spec import Csv

UNFINISHED: Final = "unexpected end of data"
"""The csv module's error for a file that ends within quotes."""
_LINE_ENDS: Final = ("", "\n", "\r\n", "\r")


def open_csv_reader(lines: Iterable[str], options: Csv, delimiter: str, *, has_header: bool = False) -> Any:
    """Return the rows of ``lines`` as lists of fields, None for null. Only this function parses the spec's dialect."""
    if options.escape or options.null_values:
        return DialectReader(lines, options, delimiter, has_header=has_header)
    if not options.quote:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, quotechar=None, strict=True)
    return csv.reader(lines, delimiter=delimiter, quotechar=options.quote, strict=True)


class DialectReader:
    """Read CSV with escapes and null markers; without them it equals Python's csv module in strict mode.

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
        # A field's content within one line.
        plain_stop = rf"\r\n{re.escape(delimiter)}{escape if outside else ''}"
        self._plain = re.compile(rf"(?:[^{plain_stop}]++{outside})*+", re.DOTALL)
        self._quoted = self._plain
        if quote:
            self._quoted = re.compile(rf"(?:[^{quote}{escape}]++|{quote}{quote}{escaped})*+", re.DOTALL)
        self._pairs = re.compile((rf"{quote}{quote}" if quote else "(?!)") + escaped, re.DOTALL)
        self._line, self._at = "", 0
        self.line_num = 0
        self.escaped_quote = self.plain_quote = False
        """True if a quoted field had a quote after a backslash, and an unquoted field a quote."""

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
        """Return the raw field, without the quotes around it."""
        pattern, parts = (self._quoted if is_quoted else self._plain), []
        self._at += is_quoted
        while True:
            part = pattern.match(self._line, self._at)[0]  # type: ignore[index]  # it matches nothing, too
            parts.append(part)
            self._at += len(part)
            if self._escape and self._line.startswith(self._escape, self._at):
                raise csv.Error(UNFINISHED)
            if self._at < len(self._line) or not (is_quoted or part.endswith(("\n", "\r"))):
                break
            self._line, self._at = next(self._lines, ""), 0
            if not self._line:
                raise csv.Error(UNFINISHED)
            self.line_num += 1
        self._at += is_quoted
        return "".join(parts)

    def _to_text(self, pair: re.Match[str]) -> str:
        """Return the text that a doubled quote, or an escape, means."""
        meant = pair[0][1:]
        if meant not in (self._quote, self._escape, self._delimiter, "\n", "\r", "\r\n"):
            raise csv.Error(
                f"{self._escape} precedes {meant!r}, expected a quote, delimiter, line break or {self._escape}"
            )
        return meant
