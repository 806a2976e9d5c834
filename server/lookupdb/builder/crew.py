"""The crew: processes that map the slices of a large source.

``python -m lookupdb.builder.crew JOB ALIVE QUEUE MESSAGES``, all file descriptors, is a crew member. It does not report
why a slice failed: the build maps the slice again, and knows the number of its first row.
"""

from __future__ import annotations

import enum
import gc
import json
import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Self

from lookupdb import native
from lookupdb.builder.core import SliceOutcome, map_slice
from lookupdb.builder.files import LocalFile, Slice
from lookupdb.builder.options import BuildBudget, peak_resident, scratch_errors
from lookupdb.builder.rows import ColumnTracker, ReportProgress, UnfinishedSlice
from lookupdb.builder.write import Sorter, make_sample
from lookupdb.dataset.schema import from_members
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.process.worker import die_with_supervisor

# The processes that read slices for a build.
#
# The build starts each with exec (``python -m lookupdb.builder.crew``): a process with threads must not fork.
# Members take slice numbers from one pipe, report progress through another, and write results into the job's folder.
# They end when the build does, however it ends.


MAX_CREW_SLICES: Final = 16_000
"""Maximum number of slices for a crew: their numbers must fit into a pipe (64 KiB) before anybody reads it."""
NUMBER: Final = struct.Struct("<I")
MESSAGE: Final = struct.Struct("<IIIQQQ")
"""A message names the slice, its state, the member's pid and peak memory, and additional bytes and rows read. It is
shorter than PIPE_BUF, so that messages never interleave."""


class CrewState(enum.IntEnum):
    """The outcome of a slice."""

    UNREAD = 0
    """Not read yet; or it ends within a row, because the cut after it is wrong; or a row needs more memory than a
    member has."""
    DONE = 1
    FAILED = 2


class Crew:
    """Running crew members. A context manager that kills them on exit."""

    def __init__(self, job: SliceJob, members: int) -> None:
        self._job, self._size = job, members
        self._open = ExitStack()
        self._members: list[subprocess.Popen[bytes]] = []
        self._queue = self._messages = -1

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
        # Use the build's kernels: native ones and Python write different files of sorted records.
        kernels = {native.VARIABLE: "0" if native.kernels() is None else "1"}
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "lookupdb.builder.crew", *map(str, fds)],
                env={**os.environ, **kernels},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                process_group=0,  # the build handles Ctrl-C
            )
        finally:
            os.close(job)

    def run(self, report: ReportProgress) -> tuple[list[CrewState], int]:
        """Return the outcome of each slice, and the sum of the members' peaks of resident memory."""
        states, first = [CrewState.UNREAD] * len(self._job.pieces), 0
        peaks: dict[int, int] = {}
        with open(self._messages, "rb", closefd=False) as pipe:
            while message := pipe.read(MESSAGE.size):
                number, state, pid, peak, more_bytes, more_rows = MESSAGE.unpack(message)
                peaks[pid] = peak
                report(more_bytes, more_rows)
                if state == CrewState.UNREAD:
                    continue
                states[number] = CrewState(state)
                while first < len(states) and states[first] is CrewState.DONE:
                    first += 1
                if first < len(states) and states[first] is CrewState.FAILED:
                    # A bad row makes everything after it useless. Members exit after their current slice.
                    while os.read(self._queue, 1 << 16):
                        pass
        self._check_exits()
        return states, sum(peaks.values())

    def _check_exits(self) -> None:
        """Raise an error if a crew member failed or was killed."""
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

    def __exit__(self, *_: object) -> None:
        self._open.close()


# The data that a build and its crew exchange, as JSON and files.


@dataclass(frozen=True, slots=True)
class SliceResult:
    """A crew member's result for a slice; its files are in the job's folder."""

    outcome: SliceOutcome
    runs: list[str]
    spool: str | None
    sample: str

    def save(self, folder: Path, number: int) -> None:
        """Write the result for ``load``. Raises NotEnoughRoom."""
        columns = self.outcome.columns
        members = asdict(replace(self, outcome=replace(self.outcome, columns=None)))
        seen = None if columns is None else columns.to_members()
        with scratch_errors(folder):
            (folder / f"slice-{number:05d}.json").write_text(json.dumps({**members, "columns": seen}))

    @classmethod
    def load(cls, folder: Path, number: int, spec: DatasetSpec) -> Self:
        """Load the result that was saved for slice ``number``."""
        members = json.loads((folder / f"slice-{number:05d}.json").read_text())
        outcome, columns = members.pop("outcome"), members.pop("columns")
        tracker = None if columns is None else ColumnTracker.from_members(spec, columns)
        changed = {"samples": [*map(tuple, outcome["samples"])], "quotes": tuple(outcome["quotes"]), "columns": tracker}
        return cls(outcome=SliceOutcome(**outcome | changed), **members)


@dataclass(frozen=True, slots=True)
class SliceJob:
    """The data that every crew member needs."""

    spec: DatasetSpec
    files: Sequence[LocalFile]
    pieces: Sequence[Slice]
    folder: Path
    """A folder in scratch for the results."""
    budget: BuildBudget

    def to_json(self) -> bytes:
        """Return the JSON for a memory file."""
        return json.dumps(asdict(self), default=str).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return the job that ``to_json`` wrote."""
        return from_members(cls, json.loads(text))

    def map(self, number: int, report: ReportProgress) -> SliceResult:
        """Map slice ``number`` into files. Raises BadSource, which may have no message, and NotEnoughRoom."""
        piece = self.pieces[number]
        name = f"slice-{number:05d}-{uuid.uuid4().hex[:8]}"
        sample = make_sample(self.budget.sample, sum(file.bytes for file in self.files))
        with Sorter(self.folder, self.budget.sorting, name) as sorter:
            file = self.files[piece.file]
            outcome = map_slice(self.spec, file, number, piece, sorter, sample, self.budget, report, explains=False)
            with scratch_errors(self.folder):
                sample.write_run(self.folder / f"{name}-sample")
            names, spool = sorter.detach()
        return SliceResult(outcome, names, spool, f"{name}-sample")


_REPORT_SECONDS: Final = 0.2


class CrewMember:
    """Read slice after slice until the queue is empty."""

    def __init__(self, job: SliceJob, queue: int, messages: int) -> None:
        self._job, self._queue, self._messages = job, queue, messages
        self._bytes = self._rows = self._number = 0
        self._next_report_at = time.monotonic()

    def run(self) -> None:
        """Read slices until the queue is empty."""
        while number := os.read(self._queue, NUMBER.size):
            (self._number,) = NUMBER.unpack(number)
            state = CrewState.DONE
            try:
                self._job.map(self._number, self._report).save(self._job.folder, self._number)
            except (UnfinishedSlice, NotEnoughRoom):
                state = CrewState.UNREAD
            except LookupdbError:
                state = CrewState.FAILED
            self._send(state)

    def _report(self, more_bytes: int, more_rows: int) -> None:
        self._bytes += more_bytes
        self._rows += more_rows
        now = time.monotonic()
        if now >= self._next_report_at:
            self._next_report_at = now + _REPORT_SECONDS
            self._send(CrewState.UNREAD)

    def _send(self, state: CrewState) -> None:
        os.write(
            self._messages, MESSAGE.pack(self._number, state, os.getpid(), peak_resident(), self._bytes, self._rows)
        )
        self._bytes = self._rows = 0


def main(job_fd: int, alive: int, queue: int, messages: int) -> None:
    """Run the job, until the queue is empty or the build is gone."""
    die_with_supervisor(alive)
    with open(job_fd, "rb") as file:
        job = SliceJob.from_json(file.read())
    gc.disable()  # records make no reference cycles
    with suppress(BrokenPipeError):
        CrewMember(job, queue, messages).run()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
