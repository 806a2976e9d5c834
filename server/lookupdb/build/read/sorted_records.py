"""Parse, normalise, sort: a source's files become one stream of records in key order.

A large source is cut into slices that a crew of processes reads. A slice that one of them could not read, or that was
cut in the middle of a row, is read again here, in its turn, when all rows before it are counted: so the first error in
the source's order is the one that is told, with the number of its row, whoever met it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from lookupdb.build.budget import Budget
from lookupdb.build.parse.dict_rows import Columns
from lookupdb.build.progress import Progress
from lookupdb.build.read.crew import MOST_SLICES, Crew, State
from lookupdb.build.read.slice_job import Job, Left
from lookupdb.build.read.slice_reader import Outcome, SliceReader
from lookupdb.build.sort import runs
from lookupdb.build.sort.runs import Record, piece_and_row
from lookupdb.build.sort.sample import Sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.build.source import slices
from lookupdb.build.source.fetch import LocalFile
from lookupdb.build.source.slices import PARALLEL_FROM, Slice
from lookupdb.manifest import SAMPLES, Rows, RowSample
from lookupdb.runtime.memory import peak_resident
from lookupdb.spec import DatasetSpec

__all__ = ["Record", "SortedRecords"]


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; those of equal keys in the source's order.

    Entering reads, parses and sorts everything; ``rows``, ``rejected`` and ``sample`` are complete from then on.
    Iterating gives the records in batches, once. Duplicates are not removed here.

    Entering raises BadSource for what cannot be parsed, NotEnoughRoom when memory or ``scratch`` do not suffice.
    """

    rows: int
    """How many rows were read, rejected ones included."""
    rejected: Rows
    peak_memory: int
    """The most memory, in bytes, that all processes together can have had resident while they read."""
    sample: list[bytes]
    """Values as they are: those whose keys have the smallest hashes; none when values are not to be compressed."""

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
        """A source of ``parallel_from`` bytes or more is read by several processes, as ``threads`` and memory allow."""
        self._spec, self._files, self._scratch, self._progress = spec, files, scratch, progress
        self._threads = threads
        self._memory_limit = memory_limit
        self._sampled = spec.value.compression == "zstd"
        self._budget = Budget.of(memory_limit, shards=spec.shards, sampled=self._sampled)
        small = sum(file.bytes for file in files) < parallel_from  # however many files it has
        members = 1 if small else min(threads, self._budget.members)
        self._pieces = slices.plan(files, members, parallel_from, spec.source.csv)
        if len(self._pieces) > MOST_SLICES:
            members, self._pieces = 1, slices.whole(files)
        self._members = min(members, len(self._pieces))
        self._members_peak = 0
        self._open = ExitStack()
        self._sorter: Sorter
        self._gathered: _Gathered

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._sorter = stack.enter_context(Sorter(self._scratch, self._budget.sorting))
            source_bytes = sum(file.bytes for file in self._files)
            sample = Sample(self._budget.sample, source_bytes)
            self._gathered = _Gathered(self._spec, self._files, self._pieces, sample)
            self._progress.phase("read", source_bytes, "bytes")
            if self._members > 1:
                with TemporaryDirectory(prefix="slices-", dir=self._scratch) as folder:
                    self._read_together(Path(folder))
            else:
                self._read_alone()
            self._progress.done()
            gathered = self._gathered
            self.rows, self.rejected, self.sample = gathered.rows, gathered.rejected, gathered.sample.values()
            self.peak_memory = peak_resident() + self._members_peak
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[list[Record]]:
        return iter(self._sorter)

    def origin(self, place: int) -> tuple[int, int]:
        """The number of the file, from 0, and the row in it, from 1, of a record with ``place``."""
        return self._gathered.origin(place)

    def _crew_reads(self, job: Job) -> list[State]:
        """Let other processes read; what became of each slice."""
        states = [State.UNREAD] * len(self._pieces)
        first = 0
        with Crew(job, self._members) as crew:
            for number, state, more_bytes, more_rows in crew.messages():
                self._progress.advance(more_bytes, more_rows)
                if state is State.UNREAD:
                    continue
                states[number] = state
                while first < len(states) and states[first] is State.DONE:
                    first += 1
                if first < len(states) and states[first] is State.FAILED:
                    crew.stop()  # nothing behind a row that is surely bad is of use
            self._members_peak = crew.peak_memory
            crew.check()
        return states

    def _read_together(self, folder: Path) -> None:
        """Take what a crew has read, and read here what it could not, in the source's order."""
        budget = Budget.of_member(self._memory_limit, self._members, sampled=self._sampled)
        job = Job(self._spec, self._files, self._pieces, folder, budget)
        states = self._crew_reads(job)
        alone = replace(job, budget=self._budget)  # the crew is gone, its memory is free
        row_start = 0
        for number, piece in enumerate(self._pieces):
            row_start = row_start if piece.start else 0
            if piece.end is not None and row_start >= piece.end:
                continue  # all of it belongs to a row that began before it
            read = Left.load(folder, number) if states[number] is State.DONE else None
            if read is None or piece.start != row_start:
                if read is not None:
                    read.discard(folder)
                read = alone.read(number, self._gathered.begin(number, row_start), _tell_nobody)
            row_start = read.outcome.end or piece.end or 0
            self._take(number, read, folder)

    def _take(self, number: int, read: Left, folder: Path) -> None:
        self._sorter.adopt(number, folder, read.runs, read.spool)
        with FileIO(folder / read.sample) as sample:
            for block in runs.read(sample):
                self._gathered.sample.add(block)
        self._gathered.add(number, read.outcome)

    def _read_alone(self) -> None:
        gathered, budget = self._gathered, self._budget
        reader = SliceReader(self._spec, self._sorter, gathered.sample, budget, self._threads, self._progress.advance)
        for number in range(len(self._pieces)):
            piece = gathered.begin(number, self._pieces[number].start)
            gathered.add(number, reader.read(number, piece, self._files[piece.file]))


class _Gathered:
    """What is known of the slices read so far, in the source's order."""

    def __init__(self, spec: DatasetSpec, files: Sequence[LocalFile], pieces: Sequence[Slice], sample: Sample) -> None:
        self._spec, self._files, self._pieces, self.sample = spec, files, pieces, sample
        self.rows = 0
        self._rejected = 0
        self._samples: list[RowSample] = []
        self._before: dict[int, int] = {}
        """Slice → rows of its file before it."""
        self._file_rows = self._file_lines = 0
        self._columns = Columns(spec)

    @property
    def rejected(self) -> Rows:
        """What was left out."""
        return Rows(self._rejected, tuple(self._samples))

    def origin(self, place: int) -> tuple[int, int]:
        """File and row of a record."""
        number, row = piece_and_row(place)
        return self._pieces[number].file, self._before[number] + row

    def begin(self, number: int, start: int) -> Slice:
        """The slice from ``start`` on, where its first row begins, with what is now known to stand before it."""
        rows, lines = self._file_rows, self._file_lines
        return replace(self._pieces[number], start=start, rows_before=rows, lines_before=lines, runs_on=True)

    def add(self, number: int, outcome: Outcome) -> None:
        """Slice ``number`` was read. Raises BadSource for a file as a whole."""
        file_number = self._pieces[number].file
        file = self._files[file_number]
        self._before[number] = self._file_rows
        for row, why in outcome.samples[: SAMPLES - len(self._samples)]:
            self._samples.append(RowSample(file.name, self._file_rows + row, why))
        self._rejected += outcome.rejected
        self.rows += outcome.rows
        self._file_rows += outcome.rows
        self._file_lines += outcome.lines
        if outcome.columns is not None:
            self._columns.add(outcome.columns)
        if number + 1 == len(self._pieces) or self._pieces[number + 1].file != file_number:
            if outcome.columns is not None:
                self._columns.check(file.name)
            file.check_unchanged()
            self._file_rows = self._file_lines = 0
            self._columns = Columns(self._spec)


def _tell_nobody(_bytes: int, _rows: int) -> None:
    """The crew has told of these bytes already."""
