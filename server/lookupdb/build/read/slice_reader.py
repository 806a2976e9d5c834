"""Reading one slice: its rows become records in a sorter, and what is told of them. In this process or in another."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson

from lookupdb.build.budget import Budget
from lookupdb.build.parse.csv_parser import CsvParser
from lookupdb.build.parse.dict_rows import Told
from lookupdb.build.parse.json_document_parser import json_parser
from lookupdb.build.parse.json_lines_parser import JsonLinesParser
from lookupdb.build.parse.rows import Parser, RowRejected, not_json
from lookupdb.build.sort.runs import place_of
from lookupdb.build.sort.sample import Sample, rank_of
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source.fetch import LocalFile
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource
from lookupdb.keys import InvalidKey, key_encoder
from lookupdb.manifest import SAMPLES
from lookupdb.spec import DatasetSpec

Tell = Callable[[int, int], None]
"""Called now and then with how many more bytes and rows were read."""

_TELL_EVERY: Final = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a slice held, beside its records."""

    rows: int = 0
    """Rejected ones included."""
    lines: int = 0
    rejected: int = 0
    samples: list[tuple[int, str]] = field(default_factory=list)
    """The first rejected rows, counted within the slice from 1, and why."""
    columns: Told | None = None
    end: int | None = None
    """Where in the file its last row ends, if it ran on."""


class SliceReader:
    """Reads slices into one sorter and one sample."""

    def __init__(
        self, spec: DatasetSpec, sorter: Sorter, sample: Sample, budget: Budget, threads: int, tell: Tell
    ) -> None:
        self._spec, self._sorter, self._sample, self._budget = spec, sorter, sample, budget
        self._threads, self._tell = threads, tell
        self._encode = key_encoder(spec.key.normalize)

    def read(self, number: int, piece: Slice, file: LocalFile) -> Outcome:
        """Everything of the source's slice ``number``. Raises BadSource, NotEnoughRoom."""
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(SliceFile(file.path, piece))
            except OSError as error:
                raise BadSource(f"{file.name} cannot be read: {error.strerror}") from error
            if file.format == "parquet":
                # Here, because DuckDB takes 20 MB that those who read other formats have no use for.
                from lookupdb.build.parse.parquet_parser import ParquetParser

                parser: Parser = stack.enter_context(
                    ParquetParser(self._spec, file, self._budget.duckdb, self._threads)
                )
            else:
                parser = _PARSERS[file.format](self._spec, file, piece, raw, self._budget.row)
            return self._read(number, parser)

    def _read(self, number: int, parser: Parser) -> Outcome:
        key_of, value_of, encode = parser.key, parser.value, self._encode
        put, sample, max_bytes = self._sorter.put, self._sample, self._spec.value.max_bytes
        row, told, rejected = 0, (0, 0), _Rejected()
        start = place_of(number, 0)
        for row, fields in enumerate(parser, 1):
            try:
                key = encode(key_of(fields))
                value = value_of(fields)
                if len(value) > max_bytes:
                    raise RowRejected(f"its value is {len(value)} bytes long, value.maxBytes is {max_bytes}")
            except (RowRejected, InvalidKey) as error:
                rejected.add(row, str(error))
            except orjson.JSONEncodeError as error:
                rejected.add(row, not_json(error))
            else:
                value = bytes(memoryview(value))  # of its own size: what orjson returns sits in a far larger block
                put(key, start + row, value)
                rank = rank_of(key)
                if rank < sample.bound:
                    sample.keep(rank, start + row, value)
            if row % _TELL_EVERY == 0:
                told = self._progress(parser.position(), row, told)
        self._progress(parser.position(), row, told)
        columns = None if parser.columns is None else parser.columns.told()
        return Outcome(row, parser.lines, rejected.count, rejected.samples, columns, parser.end)

    def _progress(self, position: int, row: int, told: tuple[int, int]) -> tuple[int, int]:
        self._tell(position - told[0], row - told[1])
        return position, row


class _Rejected:
    """Rows that were left out: all are counted, the first are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.samples: list[tuple[int, str]] = []

    def add(self, row: int, reason: str) -> None:
        """One more."""
        self.count += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((row, reason))


@contextmanager
def no_collection() -> Iterator[None]:
    """Records make no reference cycles, and there are millions of them: do not look for any."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_PARSERS: Final[dict[str, Callable[[DatasetSpec, LocalFile, Slice, SliceFile, int], Parser]]] = {
    "csv": CsvParser,
    "json": json_parser,
    "jsonl": JsonLinesParser,
}
