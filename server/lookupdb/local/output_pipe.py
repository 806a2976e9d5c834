"""What a child process writes, through a pipe of ours: asyncio's own end no sooner than all who hold them, and its
``Process.wait()`` neither, and what a child has started may outlive it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class OutputPipe(asyncio.Protocol):
    """The last bytes that are written into a pipe."""

    def __init__(self, write_end: int, limit: int) -> None:
        """``limit``: so many bytes are kept, and one more where they are not all."""
        self.write_end = write_end
        """The descriptor for a child."""
        self._limit = limit
        self._kept = bytearray()
        self._ended = asyncio.Event()

    def close_write_end(self) -> None:
        """Leave the writing to the child that has the descriptor. May be called twice."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end = -1

    def data_received(self, data: bytes) -> None:
        """Keep the end of what has come."""
        self._kept += data
        del self._kept[: -self._limit - 1]

    def connection_lost(self, _error: Exception | None) -> None:
        """Nobody holds the other end any more."""
        self._ended.set()

    async def read(self, seconds: float) -> bytes:
        """What has been written. Whoever still holds the other end is waited for so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return bytes(self._kept)


@asynccontextmanager
async def open_output_pipe(limit: int) -> AsyncIterator[OutputPipe]:
    """A pipe whose last ``limit`` bytes are kept."""
    reading, writing = os.pipe()
    pipe = OutputPipe(writing, limit)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, os.fdopen(reading, "rb", 0))
        try:
            yield pipe
        finally:
            transport.close()
    finally:  # also of a task that is cancelled while the pipe is opened
        pipe.close_write_end()
