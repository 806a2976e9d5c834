"""The processes that read slices for a build, as the build sees them.

The build starts each with exec (``python -m lookupdb.build.read.crew_member``): a process with threads must not fork.
Members take slice numbers from one pipe, report their progress through another, and write what a slice gave into the
job's folder. They end when this process does, however it ends.
"""

from __future__ import annotations

import enum
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from lookupdb.build.read.slice_job import SliceJob
from lookupdb.errors import LookupdbError, NotEnoughRoom

MAX_CREW_SLICES: Final = 16_000
"""The limit for a crew: all slice numbers must fit into a pipe (64 KiB) before anybody reads it."""
NUMBER: Final = struct.Struct("<I")
MESSAGE: Final = struct.Struct("<IIIQQQ")
"""Slice, its state, the member's pid and peak memory, more bytes and more rows read. Shorter than PIPE_BUF, so that
messages never interleave."""


class CrewState(enum.IntEnum):
    """What became of a slice."""

    UNREAD = 0
    DONE = 1
    UNFINISHED = 2
    """It ends within a row, because the cut behind it is wrong; or a row needs more memory than a member has."""
    FAILED = 3


class Crew:
    """Running crew members. A context manager, which kills them on exit."""

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
                [sys.executable, "-P", "-m", "lookupdb.build.read.crew_member", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=fds,
                process_group=0,  # the build handles Ctrl-C
            )
        finally:
            os.close(job)

    def messages(self) -> Iterator[tuple[int, CrewState, int, int]]:
        """Slice, state, more bytes read, more rows read; until every member has exited."""
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
        """Raises an error if a member did not exit by itself."""
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
