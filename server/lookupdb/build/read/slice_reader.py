"""Reads one slice: its rows become records in a sorter. Runs in the main process or in a crew member."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from lookupdb.build.budget import BuildBudget
from lookupdb.build.parse.columns import SeenColumns
from lookupdb.build.parse.csv_parser import CsvParser, QuotesSeen
from lookupdb.build.parse.json_document_parser import make_json_parser
from lookupdb.build.parse.json_lines_parser import JsonLinesParser
from lookupdb.build.parse.parser import RowParser
from lookupdb.build.parse.rows import Row
from lookupdb.build.read.native_rows import ReportProgress, open_native_rows
from lookupdb.build.read.slice_records import SliceRecords
from lookupdb.build.sort.sample import Sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source.fetched_file import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource, SourceUnreadable
from lookupdb.spec import DatasetSpec

_REPORT_EVERY_ROWS: Final = 2000


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """What a slice held, beside its records."""

    rows: int = 0
    """Rejected rows included."""
    lines: int = 0
    rejected: int = 0
    samples: list[tuple[int, str]] = field(default_factory=list)
    """The first rejected rows, numbered within the slice from 1, and why."""
    names: list[str] | None = None
    """The columns that its file declares; None if it declares none, or the slice is not its first."""
    columns: SeenColumns | None = None
    end: int | None = None
    """Where in the file its last row ends, if the reader read behind the slice."""
    quotes: QuotesSeen = (False, False)
    """Of CSV, for ``check_quotes``."""


class SliceReader:
    """Reads slices into one sorter and one sample."""

    def __init__(
        self,
        spec: DatasetSpec,
        sorter: Sorter,
        sample: Sample,
        budget: BuildBudget,
        threads: int,
        report: ReportProgress,
        *,
        explains: bool = True,
    ) -> None:
        """``explains`` says whether to tell what is wrong with a slice; if not, its error may have no message."""
        self._explains = explains
        self._spec, self._sorter, self._sample, self._budget = spec, sorter, sample, budget
        self._threads, self._report = threads, report

    def read(self, number: int, piece: Slice, file: LocalFile) -> SliceOutcome:
        """Read all of slice ``number`` of the source. Raises BadSource, NotEnoughRoom."""
        with ExitStack() as stack:
            records = SliceRecords(self._spec, self._sorter, self._sample, number)
            parser = self._open_parser(file, piece, stack)
            native_rows = open_native_rows(self._spec, file, piece, self._budget.row, parser, records)
            if native_rows is None:
                self._read_rows(parser, parser, records, (0, 0))
            elif not native_rows.read(self._report):
                if not self._explains:
                    raise BadSource("")
                parser = self._open_parser(file, piece, stack)
                rest, reported = islice(parser, records.row, None), (native_rows.position, records.row)
                native_rows = None
                self._read_rows(rest, parser, records, reported)
            lines, end = (parser.lines, parser.end) if native_rows is None else (native_rows.lines, native_rows.end)
            quotes: QuotesSeen = (False, False)
            if native_rows is not None:
                quotes = native_rows.quotes_seen
            elif isinstance(parser, CsvParser):
                quotes = parser.quotes_seen
            columns = None if parser.columns is None else parser.columns.snapshot()
            names = None if parser.names is None or piece.start else list(parser.names)
            return SliceOutcome(records.row, lines, records.rejected, records.samples, names, columns, end, quotes)

    def _open_parser(self, file: LocalFile, piece: Slice, stack: ExitStack) -> RowParser:
        try:
            raw = stack.enter_context(SliceFile(file.path, piece))
        except OSError as error:
            raise SourceUnreadable(f"{file.name} cannot be read: {error.strerror}") from error
        if file.format == "parquet":
            # Imported here, because DuckDB takes 20 MB that other formats do not need.
            from lookupdb.build.parse.parquet_parser import ParquetParser

            return stack.enter_context(ParquetParser(self._spec, file, self._budget.duckdb, self._threads))
        return _PARSERS[file.format](self._spec, file, piece, raw, self._budget.row)

    def _read_rows(
        self, rows: Iterable[Row], parser: RowParser, records: SliceRecords, reported: tuple[int, int]
    ) -> None:
        """Take ``rows`` of ``parser``; so many bytes and rows were ``reported`` before."""
        take, extract_key, extract_value = records.take, parser.key, parser.value
        for fields in rows:
            take(extract_key, extract_value, fields)
            if records.row % _REPORT_EVERY_ROWS == 0:
                reported = self._report_progress(parser.position(), records.row, reported)
        self._report_progress(parser.position(), records.row, reported)

    def _report_progress(self, position: int, row: int, reported: tuple[int, int]) -> tuple[int, int]:
        position = max(position, reported[0])
        self._report(position - reported[0], row - reported[1])
        return position, row


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector: millions of records make no reference cycles."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_PARSERS: Final[dict[str, Callable[[DatasetSpec, LocalFile, Slice, SliceFile, int], RowParser]]] = {
    "csv": CsvParser,
    "json": make_json_parser,
    "jsonl": JsonLinesParser,
}
