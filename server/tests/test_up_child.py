"""A process that `up` keeps running: its start, end, restart and report."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.process_table import is_running
from support.up_stack import build_people, write_dataset

from lookupdb.up.child import Child, ChildFailed

pytestmark = pytest.mark.long

DEADLINE_SECONDS = 60.0


def test_a_process_that_is_back_with_other_kernels_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`make native` beside an `up` that runs, or an installation that went: it answers the same at another cost."""
    reports: list[str] = []
    child = Child("airports-0", [], tmp_path, lambda report: reports.append(report["kernels"]))
    for kernels in ("native", "native", "python", "python"):
        child.note_ready({"kernels": kernels})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "airports-0 is back with python kernels: before, it had native ones"
    assert reports == ["native", "native", "python", "python"]


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    """A generation for a shard server."""
    write_dataset(tmp_path)
    build_people(tmp_path)
    (manifest,) = tmp_path.rglob("manifest.json")
    return manifest.parent


def shard_server(generation: Path, directory: Path, on_ready: Callable[[dict[str, Any]], None]) -> Child:
    arguments = ["serve", str(generation), "--shard", "0", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    return Child("people-0", [*arguments, "--drain-seconds", "0"], directory, on_ready)


@asynccontextmanager
async def stopped(child: Child) -> AsyncIterator[None]:
    """``child`` is stopped at the end, within the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield
    finally:
        await child.stop(5.0)


async def test_it_is_started_again_when_its_folder_was_removed(generation: Path, tmp_path: Path) -> None:
    """`rm -rf .lookupdb/run` while an `up` runs."""
    directory = tmp_path / "run" / "people"
    directory.mkdir(parents=True)
    reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    child = shard_server(generation, directory, reports.put_nowait)
    async with stopped(child):
        await child.start()
        first = (await reports.get())["pid"]
        shutil.rmtree(directory.parent)
        os.kill(first, signal.SIGKILL)
        assert (await reports.get())["pid"] == child.pid != first
        assert child.log_path.exists()


async def test_a_process_whose_report_cannot_be_acted_on_is_ended_before_the_next_is_started(
    generation: Path, tmp_path: Path
) -> None:
    """As on a full disk, when `up` cannot write where the process is: each would run on beside the next."""
    pids: list[int] = []
    were_alive: list[list[bool]] = []
    came = asyncio.Event()

    def act(report: dict[str, Any]) -> None:
        were_alive.append([is_running(pid) for pid in pids])
        pids.append(report["pid"])
        if len(pids) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(pids) == 3:
            came.set()

    child = shard_server(generation, tmp_path / "run", act)
    async with stopped(child):
        await child.start()
        os.kill(pids[0], signal.SIGKILL)
        await came.wait()
        assert were_alive == [[], [False], [False, False]]
        assert child.pid == pids[2]


async def test_a_first_process_whose_report_cannot_be_acted_on_fails(generation: Path, tmp_path: Path) -> None:
    pids: list[int] = []

    def act(report: dict[str, Any]) -> None:
        pids.append(report["pid"])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    child = shard_server(generation, tmp_path / "run", act)
    async with stopped(child):
        with pytest.raises(ChildFailed, match=r"^people-0 ended before it was ready"):
            await child.start()
        assert not is_running(pids[0])


async def test_what_kept_it_from_being_started_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("where its folder should be")
    child = shard_server(tmp_path, tmp_path / "run", lambda _: None)
    async with stopped(child):
        with pytest.raises(ChildFailed, match=r"^people-0 cannot be started: .*File exists.*\n  it must .*/run$"):
            await child.start()


@pytest.mark.parametrize("turn", ["while its keeper ends", "as the process ends"])
async def test_a_cancellation_while_it_is_stopped_is_not_lost(
    generation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: str
) -> None:
    """Ctrl-C while the servers of an old rollout are stopped: a watch that went on would never end."""
    child = shard_server(generation, tmp_path / "run", lambda _: None)
    async with stopped(child):
        await child.start()
        stopping = asyncio.create_task(child.stop(DEADLINE_SECONDS))
        if turn == "while its keeper ends":
            await asyncio.sleep(0)
            stopping.cancel()
        else:
            process = child._process
            assert process is not None
            wait = process.wait

            async def wait_and_cancel() -> int:
                status = await wait()
                stopping.cancel()
                return status

            monkeypatch.setattr(process, "wait", wait_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await stopping
        monkeypatch.undo()
