"""Reads slices of JSON lines and CSV with the native row kernels.

A kernel makes records of the rows that are as usual, and stops at any other. Such a line of JSON goes through Python's
parser; of CSV, Python takes a row whose fields do not become a record, and all the rest of a slice that is not CSV. So
whatever is rejected or refused, is so for Python's reasons and in its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

import orjson

from lookupdb import native
from lookupdb.build.parse.csv_parser import CsvParser, QuotesSeen
from lookupdb.build.parse.json_lines_parser import JsonLinesParser
from lookupdb.build.parse.parser import RowParser
from lookupdb.build.read.native_rules import make_csv_rules, make_json_rules
from lookupdb.build.read.slice_records import SliceRecords
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.spec import DatasetSpec

_WINDOW: Final = 1 << 20
_ROW_END_WINDOW: Final = 32 << 10
"""How much is read at first behind a slice: most rows end soon."""
_BOM: Final = b"\xef\xbb\xbf"

ReportProgress = Callable[[int, int], None]
"""Called now and then with the number of bytes and rows read since the last call."""


class NativeRows(Protocol):
    """Reads a slice into its records."""

    lines: int
    """How many lines were read."""
    end: int | None
    """Where in the file the last row ends, as ``RowParser.end``."""
    position: int
    """How many bytes of the slice were read."""

    @property
    def quotes_seen(self) -> QuotesSeen:
        """What was found of quotes, if the slice is CSV."""

    def read(self, report: ReportProgress) -> bool:
        """Read the slice to its end. False if Python's parser must go on behind the rows taken so far. Raises
        BadSource, NotEnoughRoom."""


def open_native_rows(
    spec: DatasetSpec, file: LocalFile, piece: Slice, max_row: int, parser: RowParser, records: SliceRecords
) -> NativeRows | None:
    """The reader of a slice; None where there are no kernels for it. ``parser`` is the slice's, not yet read from."""
    kernels = native.kernels()
    if kernels is None or getattr(parser, "partitions", None):
        return None  # Python adds the columns that come from the file's path
    if isinstance(parser, JsonLinesParser):
        rules = make_json_rules(kernels, spec, max_row, records.encode)
        return None if rules is None else _NativeJsonLines(rules, file, piece, max_row, parser, records)
    if isinstance(parser, CsvParser):
        rules = make_csv_rules(kernels, spec, file.delimiter, parser.names, max_row, records.encode)
        return None if rules is None else _NativeCsv(rules, spec, file, piece, max_row, parser, records)
    return None


class _NativeJsonLines:
    def __init__(
        self, rules: Any, file: LocalFile, piece: Slice, max_row: int, parser: JsonLinesParser, records: SliceRecords
    ) -> None:
        self._rules, self._file, self._piece, self._max_row = rules, file, piece, max_row
        self._parser, self._records = parser, records
        self._watched: tuple[int, int | None] | None = None
        self.end: int | None = None
        self.lines = self.position = 0
        self.quotes_seen: QuotesSeen = (False, False)

    def read(self, report: ReportProgress) -> bool:
        records, sorter = self._records, self._records.sorter
        self._watch()
        reported = (0, 0)
        for block in self._blocks():
            at = 0
            while at < len(block):
                at, rows, lines = self._rules.read(
                    block, at, records.place, sorter.records, sorter.memory, records.sample
                )
                records.row += rows
                self.lines += lines
                if self._parser.columns.missing:
                    self._parser.columns.count_more(rows)
                if at < len(block) and not sorter.spill_if_full():
                    end = block.find(b"\n", at) + 1 or len(block)
                    if self._parser.is_cut(block[at:end]) and block[at:end].strip():
                        return False  # Python's parser finds rows in parts of a line
                    self._read_unusual_line(block[at:end])
                    at = end
            report(self.position - reported[0], records.row - reported[1])
            reported = (self.position, records.row)
        sorter.spill_if_full()
        self._parser.lines = self.lines
        return True

    def _blocks(self) -> Iterator[bytes]:
        """The slice in blocks of whole lines. One that is too long comes in pieces, as Python's parser reads it."""
        rest: list[bytes] = []
        rest_bytes = 0
        with SliceFile(self._file.path, self._piece) as raw:
            while chunk := raw.read(_WINDOW):
                self.position += len(chunk)
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield b"".join([*rest, chunk[:end]])
                    rest, rest_bytes = [], 0
                rest.append(chunk[end:])
                rest_bytes += len(chunk) - end
                if rest_bytes > self._max_row:
                    line = b"".join(rest)
                    yield line[: self._max_row]
                    rest = [line[self._max_row :]]
                    rest_bytes -= self._max_row
            yield b"".join(rest)

    def _read_unusual_line(self, line: bytes) -> None:
        piece, parser, records = self._piece, self._parser, self._records
        self.lines += not parser.is_cut(line)
        row, number = piece.rows_before + records.row + 1, piece.lines_before + self.lines
        for record in parser.parse_line(line, row, number)[0]:
            records.take(parser.key, parser.value, record)
            self._watch()

    def _watch(self) -> None:
        """Tell the kernel which columns are news, if that has changed."""
        columns = self._parser.columns
        names = columns.names
        watched = (len(columns.missing), None if names is None else len(names))
        if watched != self._watched:
            known = None if names is None or not columns.missing else _in_quotes(names)
            self._rules.watch(_in_quotes(columns.missing), known)
            self._watched = watched


def _in_quotes(names: Iterable[str]) -> set[bytes]:
    """``names`` as JSON writes them; those with a lone surrogate, which the kernel knows in no row, are left out."""
    quoted: set[bytes] = set()
    for name in names:
        with suppress(orjson.JSONEncodeError):
            quoted.add(orjson.dumps(name))
    return quoted


class _NativeCsv:
    def __init__(
        self,
        rules: Any,
        spec: DatasetSpec,
        file: LocalFile,
        piece: Slice,
        max_row: int,
        parser: CsvParser,
        records: SliceRecords,
    ) -> None:
        self._rules, self._file, self._piece, self._max_row = rules, file, piece, max_row
        self._parser, self._records = parser, records
        self._has_header = spec.source.csv.header and not piece.start
        self._extends = piece.extends_to_row_end and piece.end is not None
        self.end = piece.end if self._extends else None
        self.lines = self.position = 0
        self._block, self._at, self._is_last = b"", 0, False
        self._window = _WINDOW

    def read(self, report: ReportProgress) -> bool:
        records, sorter = self._records, self._records.sorter
        with SliceFile(self._file.path, self._piece) as raw:
            while len(self._block) < len(_BOM) and not self._is_last:
                self._read_more(raw)
            if not self._piece.start and self._block.startswith(_BOM):
                self._at = len(_BOM)
            if self._has_header and self._next_fields(raw, is_header=True) != self._parser.names:
                return False
            reported = (0, 0)
            while True:
                stop, self._at, rows, lines = self._rules.read(
                    self._block,
                    self._at,
                    self._is_last,
                    records.place,
                    sorter.records,
                    sorter.memory,
                    records.sample,
                )
                records.row += rows
                self.lines += lines
                if stop == "full":
                    sorter.spill_if_full()
                elif stop == "odd":
                    self._take_next(raw)
                elif stop == "end":
                    report(self.position - reported[0], records.row - reported[1])
                    reported = (self.position, records.row)
                    if self._is_last:
                        sorter.spill_if_full()
                        return True
                    if len(self._block) - self._at > self._max_row:
                        return False
                    if self._at:
                        self._window = _WINDOW
                    self._read_more(raw)
                else:
                    return stop == "open quote" and self._finish_row()

    @property
    def quotes_seen(self) -> QuotesSeen:
        """What was found of quotes."""
        seen: tuple[bool, bool] = self._rules.quotes_seen()
        return seen

    def _read_more(self, raw: SliceFile) -> None:
        """Read on behind what is left of the block. A row that is longer than windows is read in ever larger ones."""
        rest = self._block[self._at :]
        chunk = raw.read(min(self._window, self._max_row + _WINDOW - len(rest)))
        self._window *= 2
        self.position += len(chunk)
        self._block, self._at, self._is_last = rest + chunk, 0, not chunk

    def _next_fields(self, raw: SliceFile, *, is_header: bool = False) -> list[str | None] | None:
        """The fields of the next row; None if it is none that Python would read so."""
        while True:
            try:
                found = self._rules.read_fields(self._block, self._at, self._is_last, is_header)
            except UnicodeDecodeError:
                return None
            if found is not None or self._is_last or len(self._block) - self._at > self._max_row:
                break
            self._read_more(raw)
        if found is None:
            return None
        end, fields = found
        self.lines += len(self._block[self._at : end].splitlines())
        self._at = end
        return list(fields)

    def _take_next(self, raw: SliceFile) -> None:
        fields = self._next_fields(raw)
        assert fields is not None, "the kernel found this row"
        self._records.take(self._parser.key, self._parser.value, fields)

    def _finish_row(self) -> bool:
        """The slice ends within quotes: read the row to its end, behind the slice, if this is wanted."""
        if not self._extends:
            rest = self._block[self._at :]
            raise self._parser.unfinished_error(self._records.row + 1, self.lines + len(rest.splitlines()), rest)
        assert self._piece.end is not None
        inside = len(self._block) - self._at
        with SliceFile(self._file.path, Slice(self._piece.file, self._piece.end)) as behind:
            self._is_last, self._window = False, _ROW_END_WINDOW
            fields = self._next_fields_behind(behind)
            if fields is None or len(fields) != len(self._parser.names):
                return False
            self.end = self._piece.end + self._row_bytes - inside
        self._records.take(self._parser.key, self._parser.value, fields)
        return True

    def _next_fields_behind(self, file: SliceFile) -> list[str | None] | None:
        position = self.position
        self._read_more(file)
        fields = self._next_fields(file)
        self._row_bytes, self.position = self._at, position
        return fields
