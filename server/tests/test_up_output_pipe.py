"""A child's output is kept in part, and its pipe is always closed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from lookupdb.up.child import open_output_pipe


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_end_of_what_is_written_is_kept_and_a_byte_more() -> None:
    async def write() -> bytes:
        async with open_output_pipe(4) as pipe:
            os.write(pipe.write_end, b"0123456789")
            pipe.close_write_end()
            return await pipe.read(10)

    assert asyncio.run(write()) == b"56789"


def test_who_still_holds_the_other_end_is_not_waited_for() -> None:
    async def write() -> bytes:
        async with open_output_pipe(9) as pipe:
            os.write(pipe.write_end, b"ready")
            while not (read := await pipe.read(0.01)):
                pass
            return read

    assert asyncio.run(write()) == b"ready"


def test_a_task_that_is_cancelled_while_it_opens_leaves_nothing() -> None:
    async def use() -> None:
        async with open_output_pipe(9):
            await asyncio.sleep(60)

    async def cancel(turns: int) -> None:
        task = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run() -> tuple[int, int]:
        await cancel(9)
        before = count_descriptors()
        for turns in range(9):
            await cancel(turns)
        for _ in range(9):
            await asyncio.sleep(0)
        return before, count_descriptors()

    before, after = asyncio.run(run())
    assert after == before
