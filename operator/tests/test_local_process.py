"""A server of `lookupdb up` is started again however it ends, and what it ended with is reported."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.waiting import soon

from lookupdb_operator.local.kubelet import LocalServer

Ends = list[tuple[int, str]]


@asynccontextmanager
async def server(folder: Path, *arguments: str) -> AsyncIterator[tuple[LocalServer, Ends]]:
    ends: Ends = []
    running = LocalServer(
        list(arguments), folder / "one", lambda _: None, lambda *end: ends.append(end), asyncio.Semaphore(1)
    )
    try:
        yield running, ends
    finally:
        await running.stop(1)


async def test_one_that_ends_by_itself(tmp_path: Path) -> None:
    async with server(tmp_path, "serve", str(tmp_path / "absent"), "--shard", "0") as (_, ends):
        await soon(lambda: len(ends) > 1, "it was started again")
    code, why = ends[0]
    assert 0 < code < 128
    assert "absent" in why


async def test_one_that_is_killed(tmp_path: Path) -> None:
    async with server(tmp_path, "serve", str(tmp_path / "absent"), "--shard", "0") as (running, ends):
        await soon(lambda: running.pid, "it runs", seconds=10)
        assert running.pid
        os.kill(running.pid, signal.SIGKILL)
        await soon(lambda: ends, "its end is noted")
    assert ends[0] == (137, "killed by signal 9 (Killed)")
