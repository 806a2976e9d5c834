"""Parse, normalise, sort: the source's files become one stream of records in key order.

A crew of processes reads a large source in slices. The build itself reads a slice again, in the source's order, if a
crew member failed or the slice was cut within a row. So the build always reports the first error in the source's order,
with its row number.
"""

from __future__ import annotations

import enum
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from lookupdb.builder import slices
from lookupdb.builder.csv_rows import QuotesSeen, check_quotes
from lookupdb.builder.fetched_file import LocalFile, tell_changes
from lookupdb.builder.options import BuildBudget
from lookupdb.builder.progress import Progress
from lookupdb.builder.read import SliceJob, SliceOutcome, SliceReader, SliceResult
from lookupdb.builder.rows import ColumnTracker, UniformColumns
from lookupdb.builder.slices import PARALLEL_FROM, Slice
from lookupdb.builder.sort import Batch, Sample, Sorter, decode_place, make_sample
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.manifest import SAMPLES, ExcludedRows, RowSample
from lookupdb.process.memory import peak_resident

# The processes that read slices for a build.
#
# The build starts each with exec (``python -m lookupdb.builder.crew_member``): a process with threads must not fork.
# Members take slice numbers from one pipe, report progress through another, and write results into the job's folder.
# They end when the build does, however it ends.


MAX_CREW_SLICES: Final = 16_000
"""The limit for a crew: all slice numbers must fit into a pipe (64 KiB) before anybody reads it."""
NUMBER: Final = struct.Struct("<I")
MESSAGE: Final = struct.Struct("<IIIQQQ")
"""Slice, its state, the member's pid and peak memory, additional bytes and rows read. Shorter than PIPE_BUF, so that
messages never interleave."""


class CrewState(enum.IntEnum):
    """The outcome of a slice."""

    UNREAD = 0
    DONE = 1
    UNFINISHED = 2
    """It ends within a row, because the cut behind it is wrong; or a row needs more memory than a member has."""
    FAILED = 3


class Crew:
    """Running crew members. A context manager that kills them on exit."""

    def __init__(self, job: SliceJob, members: int) -> None:
        self._job, self._size = job, members
        self._open = ExitStack()
        self._members: list[subprocess.Popen[bytes]] = []
        self._queue = self._messages = -1
        self._peaks: dict[int, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._kill_members)
            self._queue, numbers = os.pipe()
            stack.callback(os.close, self._queue)
            os.write(numbers, b"".join(NUMBER.pack(number) for number in range(len(self._job.pieces))))
            os.close(numbers)
            self._messages, message_pipe = os.pipe()
            stack.callback(os.close, self._messages)
            alive, lifeline = os.pipe()
            stack.callback(os.close, lifeline)
            for _ in range(self._size):
                self._members.append(self._start(alive, message_pipe))
            os.close(alive)
            os.close(message_pipe)
            self._open = stack.pop_all()
        return self

    def _start(self, alive: int, message_pipe: int) -> subprocess.Popen[bytes]:
        job = os.memfd_create("lookupdb-job")
        os.pwrite(job, self._job.to_json(), 0)
        fds = (job, alive, self._queue, message_pipe)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "lookupdb.builder.crew_member", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                process_group=0,  # the build handles Ctrl-C
            )
        finally:
            os.close(job)

    def messages(self) -> Iterator[tuple[int, CrewState, int, int]]:
        """Yield slice, state, additional bytes and rows read, until every member has exited."""
        with open(self._messages, "rb", closefd=False) as pipe:
            while message := pipe.read(MESSAGE.size):
                number, state, pid, peak, more_bytes, more_rows = MESSAGE.unpack(message)
                self._peaks[pid] = peak
                yield number, CrewState(state), more_bytes, more_rows

    @property
    def peak_memory(self) -> int:
        """The sum of the members' peaks of resident memory, in bytes."""
        return sum(self._peaks.values())

    def stop(self) -> None:
        """Empty the queue: members exit after their current slice."""
        while os.read(self._queue, 1 << 16):
            pass

    def check_exits(self) -> None:
        """Raise an error if a member did not exit by itself."""
        for member in self._members:
            code = member.wait()
            if code == -9:
                raise NotEnoughRoom(
                    "a process that read the source was killed, as the kernel does when memory runs out",
                    hint="lower --memory-limit below the container's limit, or give the container more",
                )
            if code:
                raise LookupdbError(f"a process that read the source ended with status {code}; see standard error")

    def _kill_members(self) -> None:
        for member in self._members:
            member.kill()
        for member in self._members:
            member.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


class SortedRecords:
    """The records of ``files`` in the order of their keys' bytes; records of equal keys in the source's order.

    Entering reads, parses and sorts everything, and sets ``rows``, ``rejected`` and ``sample``. Iterating yields the
    records in batches, once, including duplicates.

    Entering raises BadSource for a file that cannot be parsed, and NotEnoughRoom if memory or ``scratch`` do not
    suffice.
    """

    rows: int
    """Number of rows read, including rejected rows."""
    rejected: ExcludedRows
    peak_memory: int
    """Upper bound of the resident memory of all processes while they read, in bytes."""
    sample: list[bytes]
    """The values whose keys have the smallest hashes, uncompressed; empty without compression."""

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
        small = sum(file.bytes for file in files) < parallel_from  # whatever its number of files
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
        """Raise SourceUnreadable if a file has changed since the build began."""
        for file in self._files:
            file.check_unchanged()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._sorter)

    def find_origin(self, place: int) -> tuple[int, int]:
        """Return the number of the file, from 0, and of the row in it, from 1, of the record at ``place``."""
        return self._slices_read.find_origin(place)

    def _run_crew(self, job: SliceJob) -> list[CrewState]:
        """Run a crew, and return the outcome of each slice."""
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
        """Adopt the crew's results, and read the rest here, in the source's order."""
        budget = BuildBudget.for_member(self._memory_limit, self._members, needs_sample=self._needs_sample)
        job = SliceJob(self._spec, self._files, self._pieces, folder, budget)
        states = self._run_crew(job)
        own_job = replace(job, budget=self._budget)  # the crew has exited, its memory is free
        row_start = 0
        for number, piece in enumerate(self._pieces):
            row_start = row_start if piece.start else 0
            if piece.end is not None and row_start >= piece.end:
                continue  # a row that began before this slice covers it
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
        """Slice → number of its file's rows before it."""
        self._file_rows = self._file_lines = 0
        self._quotes: list[QuotesSeen] = []
        self._columns = ColumnTracker(spec)
        self._uniform_columns = UniformColumns(spec)

    @property
    def rejected(self) -> ExcludedRows:
        """The rejected rows."""
        return ExcludedRows(self._rejected, tuple(self._samples))

    def find_origin(self, place: int) -> tuple[int, int]:
        """Return the file and row of a record."""
        number, row = decode_place(place)
        return self._pieces[number].file, self._rows_before[number] + row

    def extend_slice(self, number: int, start: int) -> Slice:
        """Return the slice from ``start``, where its first row begins, with the number of rows and lines before it."""
        rows, lines = self._file_rows, self._file_lines
        return replace(self._pieces[number], start=start, rows_before=rows, lines_before=lines, extends_to_row_end=True)

    def add(self, number: int, outcome: SliceOutcome) -> None:
        """Count slice ``number``. Raises BadSource for its whole file."""
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
    """Do nothing: the crew has reported these bytes already."""
