"""Reads one slice: its rows become records in a sorter. Runs in the main process or in a crew member."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson

from lookupdb.build.budget import BuildBudget
from lookupdb.build.parse.columns import SeenColumns
from lookupdb.build.parse.csv_parser import CsvParser
from lookupdb.build.parse.json_document_parser import make_json_parser
from lookupdb.build.parse.json_lines_parser import JsonLinesParser
from lookupdb.build.parse.parser import RowParser
from lookupdb.build.parse.rows import RowRejected, describe_encode_error
from lookupdb.build.sort.runs import encode_place
from lookupdb.build.sort.sample import Sample, rank_key
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source.fetch import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource
from lookupdb.keys import InvalidKey, make_key_encoder
from lookupdb.manifest import SAMPLES
from lookupdb.spec import DatasetSpec

ReportProgress = Callable[[int, int], None]
"""Called now and then with the number of bytes and rows read since the last call."""

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
    columns: SeenColumns | None = None
    end: int | None = None
    """Where in the file its last row ends, if the reader read behind the slice."""


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
    ) -> None:
        self._spec, self._sorter, self._sample, self._budget = spec, sorter, sample, budget
        self._threads, self._report = threads, report
        self._encode = make_key_encoder(spec.key.normalize)

    def read(self, number: int, piece: Slice, file: LocalFile) -> SliceOutcome:
        """Read all of slice ``number`` of the source. Raises BadSource, NotEnoughRoom."""
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(SliceFile(file.path, piece))
            except OSError as error:
                raise BadSource(f"{file.name} cannot be read: {error.strerror}") from error
            if file.format == "parquet":
                # Imported here, because DuckDB takes 20 MB that other formats do not need.
                from lookupdb.build.parse.parquet_parser import ParquetParser

                parser: RowParser = stack.enter_context(
                    ParquetParser(self._spec, file, self._budget.duckdb, self._threads)
                )
            else:
                parser = _PARSERS[file.format](self._spec, file, piece, raw, self._budget.row)
            return self._read_rows(number, parser)

    def _read_rows(self, number: int, parser: RowParser) -> SliceOutcome:
        extract_key, extract_value, encode = parser.key, parser.value, self._encode
        put, sample, max_bytes = self._sorter.put, self._sample, self._spec.value.max_bytes
        row, reported, rejected = 0, (0, 0), _RejectedRows()
        start = encode_place(number, 0)
        for row, fields in enumerate(parser, 1):
            try:
                key = encode(extract_key(fields))
                value = extract_value(fields)
                if len(value) > max_bytes:
                    raise RowRejected(f"its value is {len(value)} bytes long, value.maxBytes is {max_bytes}")
            except (RowRejected, InvalidKey) as error:
                rejected.add(row, str(error))
            except orjson.JSONEncodeError as error:
                rejected.add(row, describe_encode_error(error))
            else:
                value = bytes(
                    memoryview(value)
                )  # a copy of its own size: what orjson returns sits in a far larger block
                put(key, start + row, value)
                rank = rank_key(key)
                if rank < sample.bound:
                    sample.keep(rank, start + row, value)
            if row % _REPORT_EVERY_ROWS == 0:
                reported = self._report_progress(parser.position(), row, reported)
        self._report_progress(parser.position(), row, reported)
        columns = None if parser.columns is None else parser.columns.snapshot()
        return SliceOutcome(row, parser.lines, rejected.count, rejected.samples, columns, parser.end)

    def _report_progress(self, position: int, row: int, reported: tuple[int, int]) -> tuple[int, int]:
        self._report(position - reported[0], row - reported[1])
        return position, row


class _RejectedRows:
    """Counts the rejected rows, and keeps the first."""

    def __init__(self) -> None:
        self.count = 0
        self.samples: list[tuple[int, str]] = []

    def add(self, row: int, reason: str) -> None:
        """Count a row, and keep it if it is among the first."""
        self.count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((row, reason))


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
