"""Parse, normalise, sort: a source's files become one stream of records in key order.

A large source is cut into slices that a crew of processes reads. A slice that one of them could not read is read again
here, in its turn, when all rows before it are counted: so the first error in the source's order is the one that is
told, with the number of its row, whoever met it first.
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

from lookupdb.build import runs, slices
from lookupdb.build.budget import Budget
from lookupdb.build.crew import MOST_SLICES, Crew, State
from lookupdb.build.fetch import LocalFile
from lookupdb.build.job import Job, Left
from lookupdb.build.objects import Columns
from lookupdb.build.progress import Progress
from lookupdb.build.reading import Outcome, SliceReader
from lookupdb.build.rows import Unfinished
from lookupdb.build.runs import Record, piece_and_row
from lookupdb.build.sample import Sample
from lookupdb.build.slices import PARALLEL_FROM, Slice
from lookupdb.build.sorter import Sorter
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
        self._budget = Budget.of(memory_limit, sampled=self._sampled)
        members = min(threads, self._budget.members)
        self._pieces = slices.plan(files, members, parallel_from)
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
        number = 0
        while number < len(self._pieces):
            if states[number] is State.DONE:
                left, behind = Left.load(folder, number), number + 1
            else:
                left, behind = self._read_again(job, number)
            self._sorter.adopt(number, folder, left.runs, left.spool)
            with FileIO(folder / left.sample) as sample:
                for block in runs.read(sample):
                    self._gathered.sample.add(block)
            self._gathered.add(number, left.outcome, behind)
            number = behind

    def _read_again(self, job: Job, number: int) -> tuple[Left, int]:
        """Read a slice, and those behind it into which its last row reaches; the number of the slice that follows."""
        behind = number + 1
        while True:
            piece = replace(self._gathered.begin(number), end=self._pieces[behind - 1].end)
            try:
                return job.read(number, piece, _tell_nobody), behind
            except Unfinished:
                if piece.end is None:
                    raise
                behind += 1

    def _read_alone(self) -> None:
        gathered, budget = self._gathered, self._budget
        reader = SliceReader(self._spec, self._sorter, gathered.sample, budget, self._threads, self._progress.advance)
        for number in range(len(self._pieces)):
            piece = gathered.begin(number)
            gathered.add(number, reader.read(number, piece, self._files[piece.file]), number + 1)


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

    def begin(self, number: int) -> Slice:
        """The slice with what is now known to stand before it."""
        return replace(self._pieces[number], rows_before=self._file_rows, lines_before=self._file_lines)

    def add(self, number: int, outcome: Outcome, behind: int) -> None:
        """Slice ``number``, and those up to ``behind``, were read. Raises BadSource for a file as a whole."""
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
        if behind == len(self._pieces) or self._pieces[behind].file != file_number:
            if outcome.columns is not None:
                self._columns.check(file.name)
            file.check_unchanged()
            self._file_rows = self._file_lines = 0
            self._columns = Columns(self._spec)


def _tell_nobody(_bytes: int, _rows: int) -> None:
    """The crew has told of these bytes already."""
