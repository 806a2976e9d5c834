"""Parse, normalise, sort: a source's files become one stream of records in key order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson

from lookupdb.build.budget import Budget
from lookupdb.build.fetch import LocalFile
from lookupdb.build.parse_csv import CsvParser
from lookupdb.build.parse_json import JsonArrayParser, JsonLinesParser
from lookupdb.build.parse_parquet import ParquetParser
from lookupdb.build.progress import Progress
from lookupdb.build.rows import Parser, RowRejected, not_json
from lookupdb.build.sample import Sample, rank_of
from lookupdb.build.sorter import Sorter
from lookupdb.errors import BadSource
from lookupdb.keys import InvalidKey, key_encoder
from lookupdb.manifest import SAMPLES, Rows, RowSample
from lookupdb.spec import DatasetSpec

Record = tuple[bytes, bytes, int, int]
"""Encoded key, value, number of the file from 0, row from 1."""

_ROW_BITS: Final = 40
_ROW_MASK: Final = (1 << _ROW_BITS) - 1
"""A record's place is its file's number and its row, in one integer."""
_SAMPLE_VALUES: Final = 200_000
_TELL_EVERY: Final = 2000
_COLLECT_EVERY: Final = 200_000


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; those of equal keys in the source's order.

    Entering reads, parses and sorts everything; ``rows``, ``rejected`` and ``sample`` are complete from then on.
    Iterating gives the records in batches, once. Duplicates are not removed here.

    Entering raises BadSource for what cannot be parsed, NotEnoughRoom when memory or ``scratch`` do not suffice.
    """

    rows: int
    """How many rows were read, rejected ones included."""
    rejected: Rows
    sample: list[bytes]
    """Values as they are, at most 32 MiB of them: those whose keys have the smallest hashes."""

    def __init__(
        self,
        spec: DatasetSpec,
        files: Sequence[LocalFile],
        scratch: Path,
        memory_limit: int,
        threads: int,
        progress: Progress,
    ) -> None:
        self._spec, self._files, self._scratch, self._progress = spec, files, scratch, progress
        self._threads = threads
        self._budget = Budget.of(memory_limit)
        self._open = ExitStack()
        self._sorter: Sorter

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._sorter = stack.enter_context(Sorter(self._scratch, self._budget.sorting))
            reading = _Reading(self._spec, self._sorter, self._budget, self._threads, self._progress)
            self._progress.phase("read", sum(file.bytes for file in self._files), "bytes")
            with _rare_collection():
                for number, file in enumerate(self._files):
                    reading.read(number, file)
            self._progress.done()
            self.rows, self.rejected, self.sample = reading.rows, reading.rejected(), reading.sample.values()
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[list[Record]]:
        for batch in self._sorter:
            yield [(key, value, place >> _ROW_BITS, place & _ROW_MASK) for key, place, value in batch]


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Rows make no reference cycles: looking for them every 700 objects costs a fifth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Reading:
    """One pass over the files, into the sorter."""

    def __init__(self, spec: DatasetSpec, sorter: Sorter, budget: Budget, threads: int, progress: Progress) -> None:
        self._spec, self._sorter, self._budget, self._progress = spec, sorter, budget, progress
        self._threads = threads
        self._encode = key_encoder(spec.key.normalize)
        self.sample = Sample(budget.sample, _SAMPLE_VALUES)
        self.rows = 0
        self._rejected = 0
        self._samples: list[RowSample] = []

    def rejected(self) -> Rows:
        """What was left out so far."""
        return Rows(self._rejected, tuple(self._samples))

    def read(self, number: int, file: LocalFile) -> None:
        """Everything of ``file``, the source's file ``number``."""
        try:
            raw = FileIO(file.path)
        except OSError as error:
            raise BadSource(f"{file.name} cannot be read: {error.strerror}") from error
        with ExitStack() as open_files:
            open_files.enter_context(raw)
            parser: Parser
            if file.format == "parquet":
                parser = open_files.enter_context(ParquetParser(self._spec, file, self._budget.duckdb, self._threads))
            else:
                parser = _PARSERS[file.format](self._spec, file, raw, self._budget.row)
            self._read(number, file, parser)
        file.check_unchanged()

    def _read(self, number: int, file: LocalFile, parser: Parser) -> None:
        key_of, value_of, encode = parser.key, parser.value, self._encode
        put, sample, max_bytes = self._sorter.put, self.sample, self._spec.value.max_bytes
        place, row, told = number << _ROW_BITS, 0, (0, 0)
        for row, fields in enumerate(parser, 1):
            try:
                key = encode(key_of(fields))
                value = value_of(fields)
                if len(value) > max_bytes:
                    raise RowRejected(f"its value is {len(value)} bytes long, value.maxBytes is {max_bytes}")
            except (RowRejected, InvalidKey) as error:
                self._reject(file, row, str(error))
            except orjson.JSONEncodeError as error:
                self._reject(file, row, not_json(error))
            else:
                value = bytes(memoryview(value))  # of its own size: what orjson returns sits in a far larger block
                put(key, place | row, value)
                rank = rank_of(key)
                if rank < sample.bound:
                    sample.keep(rank, place | row, value)
            if row % _TELL_EVERY == 0:
                told = self._tell(parser.position(), row, told)
        self._tell(file.bytes, row, told)
        parser.finish()
        self.rows += row

    def _reject(self, file: LocalFile, row: int, reason: str) -> None:
        self._rejected += 1
        if len(self._samples) < SAMPLES:
            self._samples.append(RowSample(file.name, row, reason))

    def _tell(self, position: int, row: int, told: tuple[int, int]) -> tuple[int, int]:
        self._progress.advance(position - told[0], row - told[1])
        return position, row


_PARSERS: Final[dict[str, Callable[[DatasetSpec, LocalFile, FileIO, int], Parser]]] = {
    "csv": CsvParser,
    "json": JsonArrayParser,
    "jsonl": JsonLinesParser,
}
