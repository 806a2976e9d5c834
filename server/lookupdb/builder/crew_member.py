"""Read slices for a build: ``python -m lookupdb.builder.crew_member JOB ALIVE QUEUE MESSAGES``, all file descriptors.

A member does not report why a slice failed: the build reads the slice again, and knows the number of its first row.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from typing import Final

from lookupdb.builder.crew import MESSAGE, NUMBER, CrewState
from lookupdb.builder.read import SliceJob
from lookupdb.builder.rows import UnfinishedSlice
from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.process.memory import peak_resident
from lookupdb.process.worker import die_with_supervisor

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
                result = self._job.read(self._number, self._job.pieces[self._number], self._report, explains=False)
                result.save(self._job.folder, self._number)
            except (UnfinishedSlice, NotEnoughRoom):
                state = CrewState.UNFINISHED
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
