"""Parse, normalise, sort: the source's files become one stream of records in key order.

A crew of processes reads a large source in slices. The build reads a slice again if a crew member could not, or if the
slice was cut within a row; it does so in the source's order, when it has counted all rows before it. So the build
reports the first error in the source's order, with its row number, no matter who met it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from lookupdb.build.budget import BuildBudget
from lookupdb.build.parse.columns import ColumnTracker
from lookupdb.build.parse.csv_parser import QuotesSeen, check_quotes
from lookupdb.build.parse.uniform_columns import UniformColumns
from lookupdb.build.progress import Progress
from lookupdb.build.read.crew import MAX_CREW_SLICES, Crew, CrewState
from lookupdb.build.read.slice_job import SliceJob, SliceResult
from lookupdb.build.read.slice_reader import SliceOutcome, SliceReader
from lookupdb.build.sort.runs import Batch, decode_place
from lookupdb.build.sort.sample import Sample, make_sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source import slices
from lookupdb.build.source.fetched_file import LocalFile, tell_changes
from lookupdb.build.source.slices import PARALLEL_FROM, Slice
from lookupdb.manifest import SAMPLES, ExcludedRows, RowSample
from lookupdb.runtime.memory import peak_resident
from lookupdb.spec import DatasetSpec


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; records of equal keys in the source's order.

    Entering reads, parses and sorts everything; from then on ``rows``, ``rejected`` and ``sample`` are complete.
    Iterating yields the records in batches, once. Duplicates are still in the stream.

    Entering raises BadSource for what cannot be parsed, and NotEnoughRoom if memory or ``scratch`` do not suffice.
    """

    rows: int
    """The number of rows read, rejected rows included."""
    rejected: ExcludedRows
    peak_memory: int
    """An upper bound of the memory, in bytes, that all processes together had resident while they read."""
    sample: list[bytes]
    """The values whose keys have the smallest hashes, uncompressed; empty if the spec asks for no compression."""

    def __init__(
        self,
        spec: DatasetSpec,
        files: Sequence[LocalFile],
        scratch: Path,
        memory_limit: int,
        threads: int,
        progress: Progress,
        parallel_from: int = PARALLEL_FROM,
    ) -> None:
        """Several processes read a source of ``parallel_from`` bytes or more, as ``threads`` and memory allow."""
        self._spec, self._files, self._scratch, self._progress = spec, files, scratch, progress
        self._threads = threads
        self._memory_limit = memory_limit
        self._needs_sample = spec.value.compression == "zstd"
        self._budget = BuildBudget.for_build(
            memory_limit, shards=spec.shards, threads=threads, needs_sample=self._needs_sample
        )
        small = sum(file.bytes for file in files) < parallel_from  # however many files it has
        members = 1 if small else min(threads, self._budget.members)
        self._pieces = slices.plan_slices(files, members, parallel_from, spec.source.csv)
        if len(self._pieces) > MAX_CREW_SLICES:
            members, self._pieces = 1, slices.whole_files(files)
        self._members = min(members, len(self._pieces))
        self._members_peak = 0
        self._open = ExitStack()
        self._sorter: Sorter
        self._slices_read: _ReadSlices

    def __enter__(self) -> Self:
        with tell_changes(self._check_unchanged), ExitStack() as stack:
            self._sorter = stack.enter_context(Sorter(self._scratch, self._budget.sorting))
            source_bytes = sum(file.bytes for file in self._files)
            sample = make_sample(self._budget.sample, source_bytes)
            self._slices_read = _ReadSlices(self._spec, self._files, self._pieces, sample, self._budget.row)
            self._progress.begin_phase("read", source_bytes, "bytes")
            if self._members > 1:
                with TemporaryDirectory(prefix="slices-", dir=self._scratch) as folder:
                    self._read_with_crew(Path(folder))
            else:
                self._read_in_process()
            self._progress.end_phase()
            slices_read = self._slices_read
            self.rows, self.rejected = slices_read.rows, slices_read.rejected
            self.sample = sample.take_values()
            self.peak_memory = peak_resident() + self._members_peak
            self._open = stack.pop_all()
        return self

    def _check_unchanged(self) -> None:
        """Raises SourceUnreadable if a file has changed since the build began."""
        for file in self._files:
            file.check_unchanged()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._sorter)

    def find_origin(self, place: int) -> tuple[int, int]:
        """The number of the file, from 0, and of the row in it, from 1, of the record at ``place``."""
        return self._slices_read.find_origin(place)

    def _run_crew(self, job: SliceJob) -> list[CrewState]:
        """Let a crew read, and return what became of each slice."""
        states = [CrewState.UNREAD] * len(self._pieces)
        first = 0
        with Crew(job, self._members) as crew:
            for number, state, more_bytes, more_rows in crew.messages():
                self._progress.advance(more_bytes, more_rows)
                if state is CrewState.UNREAD:
                    continue
                states[number] = state
                while first < len(states) and states[first] is CrewState.DONE:
                    first += 1
                if first < len(states) and states[first] is CrewState.FAILED:
                    crew.stop()  # a bad row makes everything behind it useless
            self._members_peak = crew.peak_memory
            crew.check_exits()
        return states

    def _read_with_crew(self, folder: Path) -> None:
        """Adopt what the crew has read, and read the rest here, in the source's order."""
        budget = BuildBudget.for_member(self._memory_limit, self._members, needs_sample=self._needs_sample)
        job = SliceJob(self._spec, self._files, self._pieces, folder, budget)
        states = self._run_crew(job)
        own_job = replace(job, budget=self._budget)  # the crew has exited, its memory is free
        row_start = 0
        for number, piece in enumerate(self._pieces):
            row_start = row_start if piece.start else 0
            if piece.end is not None and row_start >= piece.end:
                continue  # a row that began before this slice covers it all
            read = SliceResult.load(folder, number) if states[number] is CrewState.DONE else None
            if read is None or piece.start != row_start:
                if read is not None:
                    read.discard(folder)
                read = own_job.read(number, self._slices_read.extend_slice(number, row_start), _ignore_progress)
            row_start = read.outcome.end or piece.end or 0
            self._adopt(number, read, folder)

    def _adopt(self, number: int, read: SliceResult, folder: Path) -> None:
        self._sorter.adopt(number, folder, read.runs, read.spool)
        self._slices_read.sample.add_run(folder / read.sample)
        self._slices_read.add(number, read.outcome)

    def _read_in_process(self) -> None:
        slices_read, budget = self._slices_read, self._budget
        reader = SliceReader(
            self._spec, self._sorter, slices_read.sample, budget, self._threads, self._progress.advance
        )
        for number in range(len(self._pieces)):
            piece = slices_read.extend_slice(number, self._pieces[number].start)
            slices_read.add(number, reader.read(number, piece, self._files[piece.file]))


class _ReadSlices:
    """Counts of the slices read so far, in the source's order."""

    def __init__(
        self, spec: DatasetSpec, files: Sequence[LocalFile], pieces: Sequence[Slice], sample: Sample, max_row: int
    ) -> None:
        self._spec, self._files, self._pieces, self.sample, self._max_row = spec, files, pieces, sample, max_row
        self.rows = 0
        self._rejected = 0
        self._samples: list[RowSample] = []
        self._rows_before: dict[int, int] = {}
        """Slice → the number of its file's rows before it."""
        self._file_rows = self._file_lines = 0
        self._quotes: list[QuotesSeen] = []
        self._columns = ColumnTracker(spec)
        self._uniform_columns = UniformColumns(spec)

    @property
    def rejected(self) -> ExcludedRows:
        """The rejected rows."""
        return ExcludedRows(self._rejected, tuple(self._samples))

    def find_origin(self, place: int) -> tuple[int, int]:
        """The file and row of a record."""
        number, row = decode_place(place)
        return self._pieces[number].file, self._rows_before[number] + row

    def extend_slice(self, number: int, start: int) -> Slice:
        """The slice from ``start``, where its first row begins, with the number of rows and lines before it."""
        rows, lines = self._file_rows, self._file_lines
        return replace(self._pieces[number], start=start, rows_before=rows, lines_before=lines, extends_to_row_end=True)

    def add(self, number: int, outcome: SliceOutcome) -> None:
        """Count slice ``number``. Raises BadSource for its file as a whole."""
        file_number = self._pieces[number].file
        file = self._files[file_number]
        self._uniform_columns.check(file.name, outcome.names)
        self._rows_before[number] = self._file_rows
        for row, reason in outcome.samples[: SAMPLES - len(self._samples)]:
            self._samples.append(RowSample(file.name, self._file_rows + row, reason))
        self._rejected += outcome.rejected
        self.rows += outcome.rows
        self._file_rows += outcome.rows
        self._file_lines += outcome.lines
        self._quotes.append(outcome.quotes)
        if outcome.columns is not None:
            self._columns.merge(outcome.columns)
        if number + 1 == len(self._pieces) or self._pieces[number + 1].file != file_number:
            if outcome.columns is not None:
                self._columns.check(file.name)
            check_quotes(file, self._spec.source.csv, self._quotes, self._max_row)
            file.check_unchanged()
            self._file_rows = self._file_lines = 0
            self._quotes.clear()
            self._columns = ColumnTracker(self._spec)


def _ignore_progress(_bytes: int, _rows: int) -> None:
    """The crew has reported these bytes already."""
