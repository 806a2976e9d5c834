"""`lookupdb up --watch` in this process, and what goes wrong while its builder runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lookupdb.up import builds, client
from lookupdb.up.up import Up, UpOptions
from support.up_stack import MANIFEST, write_dataset
from support.waiting import soon


class Watch:
    """A running `lookupdb up --watch` on the people in ``directory``, in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[str] = []
        options = UpOptions(directory / "people.yaml", directory / "data", 0, 0, True, 0.05, None, None)
        self.up = Up(options, self.lines.append)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    async def says(self, text: str) -> None:
        await soon(lambda: text in self.output, repr(text))

    async def cuts_over_to(self, generation: str, **titles: str) -> None:
        """It does, and then people have these ``titles``, by their first names."""
        await self.says(f"cut over to {generation}")
        found = await asyncio.to_thread(self.titles)
        assert {name: found.get(name) for name in titles} == titles

    def title(self) -> str:
        """Ada's."""
        return self.titles()["ada"]

    def titles(self) -> dict[str, str]:
        """Ada's and Alan's, of those who are there."""
        keys = {"ada@example.com": "ada", "alan@example.com": "alan"}
        found = client.find_values(self.up._serving.url, [*keys]).found
        return {keys[key]: value["title"] for key, value in found.items()}

    def generations(self) -> list[str]:
        """The generations in the store."""
        return sorted(path.parent.name for path in (self.directory / "data").rglob("manifest.json"))


@asynccontextmanager
async def watching(directory: Path, manifest: str = MANIFEST) -> AsyncIterator[Watch]:
    """Watches two people by ``manifest``."""
    write_dataset(directory)
    (directory / "people.yaml").write_text(manifest)
    async with running_watch(directory) as watch:
        yield watch


@asynccontextmanager
async def running_watch(directory: Path) -> AsyncIterator[Watch]:
    """Watches what is in ``directory``, as an earlier `up` may have left it."""
    watch = Watch(directory)
    running = asyncio.create_task(watch.up.run())
    try:
        await watch.says("Ctrl-C stops it all")
        yield watch
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def during_the_next_build(monkeypatch: pytest.MonkeyPatch, change: Callable[[], Callable[[], object]]) -> None:
    """While the next builder runs, what ``change`` does is so; then what it returns undoes it."""
    build = builds.Builder.run

    async def run(self: builds.Builder, *options: object, **named: object) -> str | None:
        monkeypatch.setattr(builds.Builder, "run", build)
        undo = change()
        try:
            return await build(self, *options, **named)  # type: ignore[arg-type]
        finally:
            undo()

    monkeypatch.setattr(builds.Builder, "run", run)


def replace_text(path: Path, text: str) -> Callable[[], Callable[[], object]]:
    """Puts ``text`` in the place of what ``path`` holds."""

    def change() -> Callable[[], object]:
        before = path.read_text()
        path.write_text(text)
        return lambda: path.write_text(before)

    return change


def damage(directory: Path, generation: str) -> None:
    """Put another file in the place of its shard; who has mapped that keeps it."""
    (shard,) = (directory / "data").rglob(f"{generation}/shard-*.lmdb")
    damaged = shard.with_name("damaged")
    damaged.write_bytes(bytes(shard.stat().st_size))
    damaged.replace(shard)


def server_pid(watch: Watch) -> int | None:
    """The process of the one shard server of what is active; None while it is started again."""
    (server,) = watch.up._serving._active.servers()  # type: ignore[union-attr]
    pid: int | None = server["pid"]
    return pid


def kill_server(watch: Watch) -> None:
    """Kill it."""
    pid = server_pid(watch)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
