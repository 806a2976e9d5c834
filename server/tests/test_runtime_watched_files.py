"""Watched files: every way in which a file is replaced is seen, and what is read is bounded."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import soon

from lookupdb.process import watched_files
from lookupdb.process.watched_files import MAX_FILE_BYTES, Content, WatchedFiles, list_folder

DEADLINE_SECONDS = 5.0


class Reader:
    """Records the callbacks."""

    def __init__(self) -> None:
        self.told: list[dict[str, bytes | None]] = []
        self.is_told_twice = asyncio.Event()

    def __call__(self, content: Content) -> None:
        self.told.append({path.name: held for path, held in content.items()})
        if len(self.told) == 2:
            self.is_told_twice.set()


def _rename_over(path: Path, content: bytes) -> None:
    new = path.with_name(".new")
    new.write_bytes(content)
    new.rename(path)


def _rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize("replace", [_rename_over, _rewrite])
def test_change_is_told_once(tmp_path: Path, replace: Callable[[Path, bytes], None]) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"one")

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [path], reader)
        files.look()
        files.look()
        replace(path, b"two")
        files.look()
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{"token": b"one"}, {"token": b"two"}]


def test_rewrite_of_the_same_size_and_time_is_seen_while_the_file_is_young(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"one")
    before = path.stat()

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [path], reader)
        files.look()
        path.write_bytes(b"two")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        files.look()
        return reader.told

    assert asyncio.run(watch())[-1] == {"token": b"two"}


def test_kubelets_swap_of_a_link_is_seen(tmp_path: Path) -> None:
    for version, content in (("..1", b"one"), ("..2", b"two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tls.crt").write_bytes(content)
        os.utime(tmp_path / version / "tls.crt", (1e9, 1e9))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tls.crt").symlink_to("..data/tls.crt")

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: list_folder(tmp_path), reader)
        files.look()
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{"tls.crt": b"one"}, {"tls.crt": b"two"}]


def test_files_that_come_and_go_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [*list_folder(folder), tmp_path / "keys"], reader)
        files.look()
        folder.mkdir()
        (folder / "app").write_bytes(b"a")
        files.look()
        (folder / "app").unlink()
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{"keys": None}, {"app": b"a", "keys": None}, {"keys": None}]


def test_file_too_large_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        WatchedFiles(lambda: [path], reader).look()
        return reader.told

    assert asyncio.run(watch()) == [{"token": None}]


def test_looks_again_by_itself_until_stopped(tmp_path: Path) -> None:
    path = tmp_path / "token"

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [path], reader, poll_seconds=0.01)
        files.start()
        path.write_bytes(b"one")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reader.is_told_twice.wait()
        files.stop()
        return reader.told

    assert asyncio.run(watch()) == [{"token": None}, {"token": b"one"}]


class Unreadable:
    """Makes reading, or listing, fail as long as ``error`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.opened: list[str] = []
        open_path, listdir = Path.open, os.listdir

        def open_or_fail(path: Path, *arguments: Any, **settings: Any) -> Any:
            self.opened.append(path.name)
            self._fail()
            return open_path(path, *arguments, **settings)

        def list_or_fail(path: Path) -> list[str]:
            self._fail()
            return listdir(path)

        monkeypatch.setattr(Path, "open", open_or_fail)
        monkeypatch.setattr(os, "listdir", list_or_fail)

    def _fail(self) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    return Unreadable(monkeypatch)


def write_settled(path: Path, content: bytes) -> None:
    """Write ``content`` with an old time, like a file that the kubelet wrote a while ago."""
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.ENOMEM, errno.EACCES])
def test_file_that_cannot_be_read_at_one_look_is_read_at_the_next(
    tmp_path: Path, reading: Unreadable, error: int
) -> None:
    path = tmp_path / "token"
    write_settled(path, b"one")

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [path], reader)
        reading.error = error
        files.look()
        reading.error = None
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{"token": None}, {"token": b"one"}]


def test_only_what_has_changed_is_read(tmp_path: Path, reading: Unreadable) -> None:
    for name in ("a", "b", "large"):
        write_settled(tmp_path / name, b"x" * (MAX_FILE_BYTES + 1 if name == "large" else 1))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    async def watch() -> list[str]:
        reader = Reader()
        files = WatchedFiles(lambda: list_folder(tmp_path), reader)
        files.look()
        reading.opened.clear()
        files.look()
        assert not reading.opened
        (tmp_path / "b").write_bytes(b"new")
        reading.opened.clear()
        files.look()
        assert reader.told[-1] == {"a": b"x", "b": b"new", "large": None, "folder": None, "pipe": None}
        return reading.opened

    assert asyncio.run(watch()) == ["b"]


def test_what_files_held_counts_while_their_folder_cannot_be_read(tmp_path: Path, reading: Unreadable) -> None:
    write_settled(tmp_path / "app", b"a")

    async def watch() -> tuple[list[dict[str, bytes | None]], list[tuple[str, ...]]]:
        reader = Reader()
        problems: list[tuple[str, ...]] = []

        def take(content: Content) -> None:
            reader(content)
            problems.append(files.problems)

        files = WatchedFiles(lambda: list_folder(tmp_path), take)
        files.look()
        reading.error = errno.EMFILE
        files.look()
        files.look()
        reading.error = None
        (tmp_path / "app").unlink()
        files.look()
        return reader.told, problems

    told, problems = asyncio.run(watch())
    assert told == [{"app": b"a"}, {"app": b"a"}, {}]
    problem = "the folder of the files cannot be read (Too many open files): their last content stays in use"
    assert problems == [(), (problem,), ()]


def test_folder_that_cannot_be_read_at_first_is_told_of(tmp_path: Path, reading: Unreadable) -> None:
    write_settled(tmp_path / "app", b"a")

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: list_folder(tmp_path), reader)
        reading.error = errno.EACCES
        files.look()
        reading.error = None
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{}, {"app": b"a"}]


def test_files_that_are_too_many_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "MAX_FILES", 2)
    for name in ("b", "c", "..data", "a"):
        (tmp_path / name).write_bytes(b"x")

    async def watch() -> tuple[list[dict[str, bytes | None]], list[tuple[str, ...]]]:
        reader = Reader()
        problems: list[tuple[str, ...]] = []

        def take(content: Content) -> None:
            reader(content)
            problems.append(files.problems)

        files = WatchedFiles(lambda: list_folder(tmp_path), take)
        files.look()
        (tmp_path / "a").unlink()
        files.look()
        return reader.told, problems

    told, problems = asyncio.run(watch())
    assert told == [{"a": b"x", "b": b"x"}, {"b": b"x", "c": b"x"}]
    assert problems == [("there are 3 files: the last 1 by name are not read",), ()]


def test_a_secret_of_hashes_is_read_as_a_whole() -> None:
    assert len("sha256:") + 64 > (1 << 20) / watched_files.MAX_FILES


async def test_who_fails_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"one")
    told: list[bytes | None] = []

    def fail(content: Content) -> None:
        told.append(content[path])
        if len(told) == 2:
            raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    files = WatchedFiles(lambda: [path], fail, poll_seconds=0.01)
    files.start()
    path.write_bytes(b"two")
    await soon(lambda: len(told) == 2, "it is reported")
    path.write_bytes(b"three")
    await soon(lambda: len(told) == 3, "it is reported again")
    files.stop()


def test_what_could_not_be_used_is_told_again_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_settled(path, b"one")

    async def watch() -> list[dict[str, bytes | None]]:
        reader = Reader()
        files = WatchedFiles(lambda: [path], reader)
        files.look()
        files.tell_again()
        files.look()
        files.look()
        return reader.told

    assert asyncio.run(watch()) == [{"token": b"one"}] * 2
