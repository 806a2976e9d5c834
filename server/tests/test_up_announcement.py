"""`lookupdb up` says in its store what its router has confirmed; `lookupdb sync` follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import run_here
from support.up_stack import Stack, eventually, people, write_people

from lookupdb.store import StoreAddress, open_store
from lookupdb.store.dataset import ANNOUNCEMENT_NOTE, Announcement, read_announcement

pytestmark = pytest.mark.long

__all__ = ["people"]


def announced(stack: Stack) -> Announcement | None:
    place = open_store(str(stack.data / "store"))
    return read_announcement(place.dataset_at(StoreAddress("local", "default", "people", "local")))


def wait_announced(stack: Stack, generation: str) -> Announcement:
    def look() -> Announcement | None:
        assert stack.process.poll() is None, stack.output
        found = announced(stack)
        return found if found is not None and found.generation == generation else None

    found: Announcement = eventually(look, f"{generation} is announced")
    return found


def test_each_cutover_is_announced_and_versions_grow_over_a_restart(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    first = wait_announced(stack, "g1")
    assert (first.namespace, first.name, first.uid) == ("default", "people", "local")
    write_people(stack.directory, ada="Duchess")
    second = wait_announced(stack, "g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    assert second.version > first.version
    stack.says("cut over to g2")
    assert stack.generations() == ["g1", "g2"]
    assert stack.stop() == 0
    assert announced(stack) == second, "what is announced stays"
    again = people("--watch", "--watch-seconds", "0.1")
    eventually(lambda: (found := announced(again)) and found.version > second.version, "it is announced again")
    write_people(again.directory, ada="Princess")
    third = wait_announced(again, "g3")
    assert third.version > second.version + 1

    kept = tmp_path / "kept"
    words = ["sync", str(kept), "--store", str(again.data / "store"), "--dataset", "people", "--once"]
    assert run_here(*words).returncode == 0
    assert (kept / "default/people/current").readlink() == Path("g3")


def test_one_that_cannot_be_written_holds_nothing_up_and_is_written_later(people: Callable[..., Stack]) -> None:
    stack = people("--watch", "--watch-seconds", "0.1")
    wait_announced(stack, "g1")
    folder = stack.data / "store" / "local" / "default" / "people-local"
    obstacle = folder / f".{ANNOUNCEMENT_NOTE}.new"
    obstacle.mkdir()
    write_people(stack.directory, ada="Duchess")
    stack.says("active.json cannot be written")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
    obstacle.rmdir()
    wait_announced(stack, "g2")
    stack.says("active.json is written again")
