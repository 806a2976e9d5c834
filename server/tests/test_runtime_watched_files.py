"""Watched files: every way in which a file is replaced is seen, and what is read is bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lookupdb.runtime.watched_files import MAX_FILE_BYTES, Content, WatchedFiles, list_folder

DEADLINE_SECONDS = 5.0


class Reader:
    """Who is told."""

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
