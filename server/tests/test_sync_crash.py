"""A `lookupdb sync` that is killed between any two steps: what a program reads is whole, and the next one goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.syncing import OTHER_UID, UID, announce, hasten, make_options, names, publish, read_current

from lookupdb.sync.service import SyncService

pytestmark = pytest.mark.long

STEPS = ("rename", "link", "unlink", "mkdir", "rmdir", "symlink", "fsync", "fdatasync", "chmod", "fchmod", "replace")
"""Calls to the file system; the process may end between any two of them."""


def kill_at(number: int, log: Callable[[str], None]) -> None:
    """Let this process be killed before its step ``number``, from 0 on, as no program can foresee."""
    count = 0

    def hook(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            log(name)
            return step(*arguments, **options)

        return run

    for name in STEPS:
        setattr(os, name, hook(name, getattr(os, name)))


def sync_once(root: Path, url: str, step: int, **changes: Any) -> int:
    """A run to the end, in a process that is killed before ``step``; how many steps it took, or -1 if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            steps: list[str] = []
            kill_at(step, steps.append)
            service = SyncService(make_options(root, url, "team/people", wait_seconds=30.0, keep=1, **changes))
            asyncio.run(service.run_once())
            os.write(writing, b"%d" % len(steps))
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    count = os.read(reading, 16)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return -1
    assert os.WEXITSTATUS(status) == 0, "it ended with an error, which standard error has"
    return int(count)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    hasten(monkeypatch)
    return str(tmp_path / "store")


@pytest.mark.parametrize("way", ["linked", "copied", "made again"])
def test_killed_at_any_step_it_leaves_what_is_whole_and_the_next_one_goes_on(
    tmp_path: Path, url: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "copied":
        monkeypatch.setattr("lookupdb.sync.folder._link", lambda *_: False)
    uid, generation = (OTHER_UID, "g1") if way == "made again" else (UID, "g2")
    old, new = f"{UID} g1", f"{uid} {generation}"
    people = publish(url, "g1", shards=2, keys=10, built_at="2026-11-20T00:00:00Z")
    announce(people, "g1", 1, "2026-11-20T00:00:00Z")
    begun = tmp_path / "begun"
    assert sync_once(begun, url, -1) > 0
    later = publish(url, generation, uid=uid, shards=2, keys=10, built_at="2026-11-21T00:00:00Z")
    announce(later, generation, 2, "2026-11-21T00:00:00Z")
    step, killed = 0, 0
    while True:
        root = tmp_path / f"step-{step}"
        _copy(begun, root)
        count = sync_once(root, url, step)
        if count >= 0:
            break
        killed += 1
        assert read_current(root) in (old, new), f"killed at step {step}"
        assert sync_once(root, url, -1) > 0
        assert read_current(root) == new, f"after one that was killed at step {step}"
        assert names(root / "team/people") == ["current", generation], f"after step {step}"
        step += 1
    assert killed == count, "every step was one at which it was killed"
    assert killed > 15


def _copy(begun: Path, root: Path) -> None:
    """Restore the folder of the first run."""
    source, target = begun / "team" / "people", root / "team" / "people"
    (target / "g1").mkdir(parents=True)
    for path in (source / "g1").iterdir():
        (target / "g1" / path.name).hardlink_to(path)
    (target / "current").symlink_to("g1")
    (target / ".sync.lock").touch()


def test_what_was_fetched_whole_is_not_fetched_again(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    people = publish(url, "g1", shards=3)
    root = tmp_path / "kept"
    partial = root / "team/people/.g1.partial"
    first, second, _third = people.manifest("g1").shards
    step = 0
    while not (partial / first.file).exists():
        assert sync_once(root, url, step) == -1
        step += 1
    about = (partial / first.file).stat()
    (partial / f".{second.file}.partial").write_bytes(b"half")
    service = SyncService(dataclasses.replace(make_options(root, url, "team/people"), wait_seconds=30.0))
    asyncio.run(service.run_once())
    assert (root / "team/people/g1" / first.file).stat().st_ino == about.st_ino
    assert service.state.figures.fetched_bytes == sum(shard.bytes for shard in people.manifest("g1").shards[1:])
    assert read_current(root) == f"{UID} g1"
