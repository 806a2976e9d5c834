"""The watcher notices a changed routing table file."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.routing import entry, table_file
from support.waiting import soon

from lookupdb.router import routing_table
from lookupdb.router.routing_table import RoutingTable, TableWatcher

A, B = "10.0.0.1:7000", "10.0.0.2:7000"


class Seen:
    """A watcher of ``path``, and what it has reported."""

    def __init__(self, path: Path) -> None:
        self.versions: list[int] = []
        self.invalid: list[str] = []
        self.watcher = TableWatcher(path, lambda table: self.versions.append(table.version), self.invalid.append)
        self.watcher.start()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_bytes(table_file(entry([[A]])))
    return path


@pytest.fixture
async def seen(path: Path) -> Any:
    seen = Seen(path)
    yield seen
    seen.watcher.stop()


def test_a_change_is_noticed_within_a_second() -> None:
    assert routing_table.POLL_SECONDS <= 0.5


async def test_a_rename_over_the_file_is_noticed(path: Path, seen: Seen) -> None:
    other = path.with_name("other")
    other.write_bytes(table_file(entry([[A]]), version=2))
    other.rename(path)
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen")


async def test_a_change_in_place_is_noticed_even_of_same_size_and_time(
    path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds if it comes soon after the previous change. Here a minute is soon, because a busy machine is late."""
    monkeypatch.setattr(routing_table, "_SETTLED_SECONDS", 60.0)
    about = path.stat()
    path.write_bytes(table_file(entry([[A]]), version=2))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen")


async def test_a_swapped_symbolic_link_is_noticed_as_a_kubelet_does_it(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "table.json").write_bytes(table_file(entry([[A]]), version=number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "table.json").symlink_to("..data/table.json")
    seen = Seen(tmp_path / "table.json")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..1")
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen")
    seen.watcher.stop()


async def test_a_half_written_file_is_told_once_and_the_whole_one_is_seen(path: Path, seen: Seen) -> None:
    content = table_file(entry([[A]]), version=2)
    path.write_bytes(content[:50])
    await soon(lambda: seen.invalid, "the half is refused")
    path.write_bytes(content)
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen")
    assert len(seen.invalid) == 1
    assert str(path) in seen.invalid[0]


async def test_a_file_that_is_not_there_yet_is_waited_for_and_told_when_it_goes_away(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    seen = Seen(path)
    seen.watcher.look()
    assert seen.invalid == []
    path.write_bytes(content)
    await soon(lambda: seen.versions == [1], "version 1 is seen")
    path.unlink()
    await soon(lambda: seen.invalid == [f"{path} cannot be read: No such file or directory"], "it is reported")
    seen.watcher.stop()


async def test_what_is_wrong_is_told_once_until_it_is_something_else(path: Path, seen: Seen) -> None:
    content = path.read_bytes()

    def look_thrice() -> list[str]:
        for _ in range(3):
            seen.watcher.look()
        told, seen.invalid[:] = list(seen.invalid), []
        return told

    gone, folder = (f"{path} cannot be read: {why}" for why in ("No such file or directory", "Is a directory"))
    path.unlink()
    assert look_thrice() == [gone]
    path.mkdir()
    assert look_thrice() == [folder]
    path.rmdir()
    path.write_bytes(content[:50])
    assert len(look_thrice()) == 1
    path.write_bytes(content[:49])
    assert len(look_thrice()) == 1
    path.unlink()
    assert look_thrice() == [gone], "after another content it is reported again"
    path.write_bytes(content)
    assert look_thrice() == []
    assert seen.versions == [1, 1], "and what has come back is used again"


async def test_a_table_that_makes_its_user_fail_is_not_the_last_one(path: Path) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    versions: list[int] = []

    def take(table: RoutingTable) -> None:
        versions.append(table.version)
        if len(versions) == 2:
            raise ZeroDivisionError

    watched = TableWatcher(path, take, lambda why: None)
    watched.start()
    for version in (2, 3):
        path.write_bytes(table_file(entry([[A]]), version=version))
        await soon(lambda: version in versions, f"version {version} is seen")  # noqa: B023
    watched.stop()
