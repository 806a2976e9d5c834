"""``python -m lookupdb.build.read.crew_member JOB ALIVE QUEUE TOLD``, all file descriptors: reads slices for a build.

What is wrong with a slice is not told from here: the build reads it again, knowing the number of its first row.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from typing import Final

from lookupdb.build.parse.rows import Unfinished
from lookupdb.build.read.crew import MESSAGE, NUMBER, State
from lookupdb.build.read.slice_job import Job
from lookupdb.errors import LookupdbError, NotEnoughRoom
from lookupdb.runtime.memory import peak_resident
from lookupdb.runtime.worker import die_with

_TELL_SECONDS: Final = 0.2


class Member:
    """Reads slice after slice until the queue is empty."""

    def __init__(self, job: Job, queue: int, told: int) -> None:
        self._job, self._queue, self._told = job, queue, told
        self._bytes = self._rows = self._number = 0
        self._next_tell = time.monotonic()

    def run(self) -> None:
        """Until there are no more slices."""
        while number := os.read(self._queue, NUMBER.size):
            (self._number,) = NUMBER.unpack(number)
            state = State.DONE
            try:
                left = self._job.read(self._number, self._job.pieces[self._number], self._tell)
                left.save(self._job.folder, self._number)
            except (Unfinished, NotEnoughRoom):
                state = State.UNFINISHED
            except LookupdbError:
                state = State.FAILED
            self._send(state)

    def _tell(self, more_bytes: int, more_rows: int) -> None:
        self._bytes += more_bytes
        self._rows += more_rows
        now = time.monotonic()
        if now >= self._next_tell:
            self._next_tell = now + _TELL_SECONDS
            self._send(State.UNREAD)

    def _send(self, state: State) -> None:
        os.write(self._told, MESSAGE.pack(self._number, state, os.getpid(), peak_resident(), self._bytes, self._rows))
        self._bytes = self._rows = 0


def main(job_fd: int, alive: int, queue: int, told: int) -> None:
    """Do what the job says."""
    die_with(alive)
    with open(job_fd, "rb") as file:
        job = Job.from_json(file.read())
    gc.disable()  # records make no reference cycles
    with suppress(BrokenPipeError):
        Member(job, queue, told).run()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
