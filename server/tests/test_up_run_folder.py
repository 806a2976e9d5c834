"""What `lookupdb up` does when a file of its run folder cannot be written, as on a full disk: it goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.up_stack import Stack, alive, eventually, people, write_dataset, write_people
from support.waiting import soon

from lookupdb.local import client
from lookupdb.local.router import CutoverFailed, LocalRouter
from lookupdb.local.run_state import run_directory
from lookupdb.local.up import Up, UpOptions
from lookupdb.runtime import ready_file

__all__ = ["people"]


class Obstacle:
    """While it stands, ``stack`` cannot write the file ``name``: a folder has the place of what it would become."""

    def __init__(self, stack: Stack, name: str) -> None:
        directory = run_directory(stack.data, "default", "people")
        self._path = directory / f".{name}.{stack.process.pid}"
        self._path.mkdir()

    def remove(self) -> None:
        self._path.rmdir()


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if alive(int(child))]


def test_a_routing_table_that_cannot_be_written_leaves_the_last_good_generation_serving(
    people: Callable[..., Stack],
) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    before = stack.pids
    obstacle = Obstacle(stack, "routing-table.json")
    write_people(stack.directory, ada="Duchess")
    stack.says("routing-table.json cannot be written: Is a directory\n  make room on its disk")
    stack.says("; g1 keeps serving")
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
    stack.says("; g1 keeps serving, tried again in 2 s")
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
    stack.says("routing-table.json cannot be written: Is a directory, it is tried again every 1 s")
    back = stack.pids[1]
    obstacle.remove()
    stack.says("the routing table is written again")
    eventually(lambda: answers(stack), "its answer")
    assert sorted(children(stack.process.pid)) == sorted([router, back])
    assert stack.output.count("routing-table.json cannot be written") == 1


def answers(stack: Stack) -> bool:
    try:
        return bool(stack.ask("ada@example.com"))
    except client.ShardUnavailable:
        return False


async def test_a_candidate_serves_until_the_table_without_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router has not confirmed the new table, and may answer from it all the same."""
    write_dataset(tmp_path)
    lines: list[str] = []
    up = Up(UpOptions(tmp_path / "people.yaml", tmp_path / "data", 0, True, 0.1, None, None), lines.append)
    is_disk_full = False
    write = ready_file.write

    def write_if_there_is_room(path: Path, members: dict[str, Any]) -> None:
        if is_disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, members)

    async def fill_the_disk(_router: LocalRouter, _version: int) -> None:
        nonlocal is_disk_full
        is_disk_full = True
        raise CutoverFailed("not confirmed")

    monkeypatch.setattr(ready_file, "write", write_if_there_is_room)
    monkeypatch.setattr(LocalRouter, "wait_until_confirmed", fill_the_disk)
    running = asyncio.create_task(up.run())
    try:
        await soon(lambda: any("Ctrl-C" in line for line in lines), "the first generation")
        write_people(tmp_path, ada="Duchess")
        await soon(lambda: any("No space left on device, it is tried again" in line for line in lines), "the rollback")
        run_folder = run_directory(tmp_path / "data", "default", "people")
        candidate = orjson.loads((run_folder / "r2-shard-0-0.ready").read_bytes())["pid"]
        assert alive(candidate)
        is_disk_full = False
        await soon(lambda: any("not confirmed; g1 keeps serving" in line for line in lines), "the end of the rollback")
        assert not alive(candidate)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
