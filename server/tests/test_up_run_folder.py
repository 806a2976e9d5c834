"""`lookupdb up` goes on if it cannot write a file of its run folder, as on a full disk, or if one was removed. On
shutdown it leaves no process, whatever becomes of the files."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.process_table import children, is_running
from support.up_stack import DEADLINE_SECONDS, Stack, eventually, people, write_dataset, write_people
from support.waiting import soon

from lookupdb.errors import Unavailable, UsageError
from lookupdb.process import launch
from lookupdb.up import serving
from lookupdb.up.run_state import RunFolder, is_locked, run_directory
from lookupdb.up.serving import CutoverFailed, LocalRouter
from lookupdb.up.up import Up, UpOptions

pytestmark = pytest.mark.long

__all__ = ["people"]


class Obstacle:
    """While it stands, ``stack`` cannot write the file ``name``: a folder has the place of what it would become."""

    def __init__(self, stack: Stack, name: str) -> None:
        directory = run_directory(stack.data, "default", "people")
        self._path = directory / f".{name}.{stack.process.pid}"
        self._path.mkdir()

    def remove(self) -> None:
        self._path.rmdir()


def test_a_routing_table_that_cannot_be_written_leaves_the_last_good_generation_serving(
    people: Callable[..., Stack],
) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    before = stack.pids
    obstacle = Obstacle(stack, "routing-table.json")
    write_people(stack.directory, ada="Duchess")
    stack.says("routing-table.json cannot be written: Is a directory; g1 keeps serving, retrying in 1 s")
    stack.says("\n  make room on its disk")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    assert stack.pids == before
    eventually(lambda: len(children(stack.process.pid)) == len(before), "the servers of g2 to be gone")
    obstacle.remove()
    write_people(stack.directory, ada="Princess")
    stack.says("cut over to g3")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Princess"}}


def test_what_failed_for_want_of_room_is_tried_again_with_what_was_built(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.state["generation"] == "g1"
    obstacle = Obstacle(stack, "routing-table.json")
    write_people(stack.directory, ada="Duchess")
    stack.says("; g1 keeps serving, retrying in 2 s")
    obstacle.remove()
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    assert stack.generations() == ["g1", "g2"], "no attempt has built another"


def test_a_state_that_cannot_be_written_does_not_undo_a_cutover_and_is_written_later(
    people: Callable[..., Stack],
) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.state["generation"] == "g1"
    obstacle = Obstacle(stack, "up.json")
    write_people(stack.directory, ada="Duchess")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    obstacle.remove()
    stack.says("up.json is written again")
    assert stack.state["generation"] == "g2"
    assert stack.output.count("up.json cannot be written") == 1


def test_a_server_that_is_back_is_the_only_one_and_routed_to_once_the_table_can_be_written(
    people: Callable[..., Stack],
) -> None:
    stack = people()
    router, server = stack.pids
    obstacle = Obstacle(stack, "routing-table.json")
    os.kill(server, signal.SIGKILL)
    eventually(lambda: stack.pids[1] != server, "another server")
    stack.says("routing-table.json cannot be written: Is a directory, retrying every 1 s")
    back = stack.pids[1]
    obstacle.remove()
    stack.says("the routing table is written again")
    eventually(lambda: answers(stack), "its answer")
    assert sorted(children(stack.process.pid)) == sorted([router, back])
    assert stack.output.count("routing-table.json cannot be written") == 1


def answers(stack: Stack) -> bool:
    try:
        return bool(stack.ask("ada@example.com"))
    except Unavailable:  # a shard's server, or the router itself, is being started
        return False


async def test_a_candidate_serves_until_the_table_without_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router has not confirmed the new table, and may answer from it all the same."""
    write_dataset(tmp_path)
    lines: list[str] = []
    up = Up(UpOptions(tmp_path / "people.yaml", tmp_path / "data", 0, 0, True, 0.1, None, None), lines.append)
    is_disk_full = False
    write = launch.write

    def write_if_there_is_room(path: Path, members: dict[str, Any]) -> None:
        if is_disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, members)

    async def fill_the_disk(_router: LocalRouter, _version: int) -> None:
        nonlocal is_disk_full
        is_disk_full = True
        raise CutoverFailed("not confirmed")

    monkeypatch.setattr(launch, "write", write_if_there_is_room)
    monkeypatch.setattr(LocalRouter, "wait_until_confirmed", fill_the_disk)
    running = asyncio.create_task(up.run())
    try:
        await soon(lambda: any("Ctrl-C" in line for line in lines), "the first generation")
        write_people(tmp_path, ada="Duchess")
        await soon(lambda: any("No space left on device, retrying" in line for line in lines), "the rollback")
        run_folder = run_directory(tmp_path / "data", "default", "people")
        candidate = orjson.loads((run_folder / "r2-shard-0-0.ready").read_bytes())["pid"]
        assert is_running(candidate)
        is_disk_full = False
        await soon(lambda: any("not confirmed; g1 keeps serving" in line for line in lines), "the end of the rollback")
        assert not is_running(candidate)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_what_was_removed_from_the_run_folder_comes_back_and_a_router_that_died_serves_again(
    people: Callable[..., Stack],
) -> None:
    stack = people()
    before = stack.state
    run_folder = run_directory(stack.data, "default", "people")
    shutil.rmtree(run_folder.parent)
    os.kill(before["router"], signal.SIGKILL)
    eventually(lambda: stack.state["router"] != before["router"], "another router")
    eventually(lambda: answers(stack), "its answer")
    assert stack.state["url"] == before["url"], "--port 0 took one for as long as it runs"
    with pytest.raises(UsageError, match=f"^another `lookupdb up` serves default/people .* process {before['pid']}, "):
        RunFolder(stack.data, "default", "people").lock().__enter__()


def test_a_look_at_the_lock_keeps_no_up_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lookupdb get` in a loop, while `up` starts."""
    folder = RunFolder(tmp_path, "default", "people")
    folder.path.mkdir(parents=True)
    look = (folder.path / "lock").open("a")
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr("lookupdb.up.run_state.time.sleep", lambda _: look.close())
    with folder.lock():
        assert is_locked(folder.path)


def test_an_up_whose_run_folder_was_removed_and_made_again_by_another_ends_and_leaves_it(
    people: Callable[..., Stack],
) -> None:
    stack = people()
    pids = stack.pids
    folder = RunFolder(stack.data, "default", "people")
    shutil.rmtree(folder.path)
    with folder.lock():
        folder.write_state({"url": "http://127.0.0.1:1"})
        assert stack.process.wait(DEADLINE_SECONDS) == 1
        assert "was removed, and another `lookupdb up` has created it again: process " in stack.output
        assert orjson.loads(folder.state_file.read_bytes())["url"] == "http://127.0.0.1:1"
    assert not any(is_running(pid) for pid in pids)


def test_a_state_file_that_cannot_be_removed_keeps_no_process_running(people: Callable[..., Stack]) -> None:
    stack = people()
    pids = stack.pids
    path = run_directory(stack.data, "default", "people") / "up.json"
    path.unlink()
    path.mkdir()
    # Its standard input ends with `up`, which it does not see: only who stops it ends it.
    os.kill(pids[1], signal.SIGSTOP)
    stack.process.send_signal(signal.SIGTERM)
    eventually(lambda: not is_running(pids[0]), "the router to be stopped")
    os.kill(pids[1], signal.SIGCONT)
    assert stack.process.wait(DEADLINE_SECONDS) == 0
    assert "up.json is not removed: Is a directory" in stack.output
    assert not any(is_running(pid) for pid in pids)


async def test_a_run_folder_that_cannot_be_looked_at_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    is_denied = True
    looked = 0

    def deny(path: Path) -> bool:
        nonlocal looked
        if is_denied and path.name in ("up.json", "routing-table.json"):
            looked += 1
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return exists(path)

    async with watching(tmp_path, monkeypatch) as (running, run_folder):
        monkeypatch.setattr(Path, "exists", deny)
        monkeypatch.setattr(serving, "RESTORE_SECONDS", 0.05)
        await soon(lambda: looked >= 4, "looks at the files")
        is_denied = False
        (run_folder / "up.json").unlink()
        await soon((run_folder / "up.json").exists, "it to be written again")
        assert not running.done()


@asynccontextmanager
async def watching(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[asyncio.Task[None], Path]]:
    """An `up` in this process, which is not patient with servers that hang, as a task with its run folder."""
    monkeypatch.setattr(serving, "STOP_SECONDS", 0.5)
    write_dataset(directory)
    lines: list[str] = []
    up = Up(UpOptions(directory / "people.yaml", directory / "data", 0, 0, True, 0.1, None, None), lines.append)
    running = asyncio.create_task(up.run())
    try:
        await soon(lambda: any("Ctrl-C" in line for line in lines), "the first generation")
        yield running, run_directory(directory / "data", "default", "people")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def started(run_folder: Path, name: str) -> int:
    """The process that has become ready last under ``name``."""
    return int(orjson.loads((run_folder / f"{name}.ready").read_bytes())["pid"])


async def test_the_end_during_a_drain_stops_the_old_servers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that hangs, and does not see that `up` has ended."""
    monkeypatch.setattr(serving, "DRAIN_MARGIN_SECONDS", 600.0)
    async with watching(tmp_path, monkeypatch) as (running, run_folder):
        old = started(run_folder, "r1-shard-0-0")
        os.kill(old, signal.SIGSTOP)
        write_people(tmp_path, ada="Duchess")
        await soon(lambda: orjson.loads((run_folder / "up.json").read_bytes())["generation"] == "g2", "the drain")
        new = started(run_folder, "r2-shard-0-0")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not is_running(old)
        assert not is_running(new)


async def test_the_state_does_not_come_back_while_all_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server dies, and is started again while the router has not ended yet."""
    may_end = asyncio.Event()
    stop = LocalRouter.stop

    async def stop_late(router: LocalRouter) -> None:
        await may_end.wait()
        await stop(router)

    monkeypatch.setattr(LocalRouter, "stop", stop_late)
    async with watching(tmp_path, monkeypatch) as (running, run_folder):
        before = started(run_folder, "r1-shard-0-0")
        running.cancel()
        await soon(lambda: not (run_folder / "up.json").exists(), "the state to be removed")
        os.kill(before, signal.SIGKILL)
        ready = run_folder / "r1-shard-0-0.ready"
        await soon(lambda: ready.exists() and started(run_folder, "r1-shard-0-0") != before, "another server")
        may_end.set()
        await asyncio.gather(running, return_exceptions=True)
        assert not (run_folder / "up.json").exists()
