"""`lookupdb up` with damaged files of the generation it serves, and a server that dies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.shards import write_generation
from support.up_stack import MANIFEST, Stack, build_people, people, write_people
from support.up_watch import damage, kill_server, watching
from support.waiting import soon

from lookupdb.manifest import Manifest
from lookupdb.up import rebuilds
from lookupdb.up.child import SERVER_VARIABLES, child_environment
from lookupdb.up.serving import FAILED_STARTS, DamageWatch

pytestmark = pytest.mark.long

__all__ = ["people"]


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    return write_generation(tmp_path, {"k": b"v"})


def watch_of(generation: Path) -> DamageWatch:
    path = generation / "manifest.json"
    return DamageWatch(generation, Manifest.from_json(path.read_bytes(), str(path)))


def spoil(path: Path) -> None:
    """Put as many other bytes in its place."""
    content = bytes(path.stat().st_size)
    path.unlink()
    path.write_bytes(content)


def test_servers_that_do_not_start_are_no_sign_of_damage_while_the_files_are_whole(generation: Path) -> None:
    watch = watch_of(generation)
    watch.look([1000])
    assert watch.damage is None


def test_what_is_damaged_is_looked_at_once_a_server_has_not_started_several_times(generation: Path) -> None:
    watch = watch_of(generation)
    (shard,) = generation.glob("shard-*.lmdb")
    spoil(shard)
    watch.look([FAILED_STARTS - 1])
    assert watch.damage is None
    watch.look([FAILED_STARTS])
    assert watch.damage is not None
    assert f"{shard} has checksum" in watch.damage


def test_a_file_that_was_whole_is_looked_at_again_after_twice_as_many(generation: Path) -> None:
    watch = watch_of(generation)
    watch.look([FAILED_STARTS])
    (shard,) = generation.glob("shard-*.lmdb")
    spoil(shard)
    watch.look([2 * FAILED_STARTS - 1])
    assert watch.damage is None
    watch.look([2 * FAILED_STARTS])
    assert watch.damage is not None


@pytest.mark.parametrize("lost", ["", "manifest.json", "shard-*.lmdb"], ids=["all", "the manifest", "the shard"])
def test_what_is_lost_is_damaged(generation: Path, lost: str) -> None:
    watch = watch_of(generation)
    if lost:
        next(generation.glob(lost)).unlink()
    else:
        shutil.rmtree(generation)
    watch.look([FAILED_STARTS])
    assert watch.damage is not None
    assert "is missing" in watch.damage


def test_a_file_in_the_place_of_the_folder_is_damage(generation: Path) -> None:
    watch = watch_of(generation)
    shutil.rmtree(generation)
    generation.write_bytes(b"")
    watch.look([FAILED_STARTS])
    assert watch.damage == f"{generation}/manifest.json is missing"


def test_what_starts_again_is_not_damaged(generation: Path) -> None:
    watch = watch_of(generation)
    aside = generation.with_name("aside")
    generation.rename(aside)
    watch.look([FAILED_STARTS])
    assert watch.damage is not None
    aside.rename(generation)
    watch.look([0])
    assert watch.damage is None


def lose_store(directory: Path) -> None:
    shutil.rmtree(directory / "data" / "store")


def damage_first(directory: Path) -> None:
    damage(directory, "g1")


@pytest.mark.parametrize("harm", [damage_first, lose_store])
async def test_what_is_damaged_and_dies_is_built_again(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    async with watching(tmp_path) as watch:
        harm(tmp_path)
        kill_server(watch)
        await watch.says("people: g1 cannot be served any more: ")
        await watch.says("people: building again; g1 is damaged")
        await watch.cuts_over_to("g2", ada="Countess")


async def test_what_is_damaged_while_the_source_is_bad_is_built_once_it_is_mended(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        damage(tmp_path, "g1")
        (tmp_path / "people.csv").write_text("email,")
        await watch.says("a gate refused it; g1 keeps serving")
        kill_server(watch)
        await watch.says("people: g1 cannot be served any more: ")
        write_people(tmp_path, ada="Duchess")
        await watch.cuts_over_to("g2", ada="Duchess")


async def test_what_is_damaged_while_the_source_is_bad_gives_way_to_what_was_before(tmp_path: Path) -> None:
    async with watching(tmp_path, MANIFEST.replace("keepGenerations: 2", "keepGenerations: 3")) as watch:
        for generation, title in (("g2", "Duchess"), ("g3", "Princess")):
            write_people(tmp_path, ada=title)
            await watch.says(f"cut over to {generation}")
        damage(tmp_path, "g2")
        damage(tmp_path, "g3")
        (tmp_path / "people.csv").write_text("email,")
        await watch.says("a gate refused it; g3 keeps serving")
        kill_server(watch)
        await watch.says("people: g3 cannot be served any more: ")
        await watch.says("people: g3 is damaged; serving g2, the last good generation\npeople: g2 cannot be served\n")
        await watch.says("people: g3 is damaged; serving g1, the last good generation")
        await watch.cuts_over_to("g1", ada="Countess")
        write_people(tmp_path, ada="Empress")
        await watch.cuts_over_to("g4", ada="Empress")


async def test_what_is_damaged_gives_way_though_the_router_dies_with_its_servers(tmp_path: Path) -> None:
    """A router that is started again is ready, and tells its new admin port, only once there are servers to ask."""
    async with watching(tmp_path) as watch:
        write_people(tmp_path, ada="Duchess")
        await watch.says("cut over to g2")
        damage(tmp_path, "g2")
        (tmp_path / "people.csv").write_text("email,")
        await watch.says("a gate refused it; g2 keeps serving")
        kill_server(watch)
        router = watch.up._serving._router.pid
        assert router is not None
        os.kill(router, signal.SIGKILL)
        await watch.says("people: g2 is damaged; serving g1, the last good generation")
        await watch.cuts_over_to("g1", ada="Countess")
        assert "the router" not in watch.output


async def test_what_was_before_and_does_not_start_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilds, "FIRST_PERSISTENT_SECONDS", 0.2)
    async with watching(tmp_path) as watch:
        write_people(tmp_path, ada="Duchess")
        await watch.says("cut over to g2")
        (tmp_path / "people.csv").write_text("email,")
        await watch.says("a gate refused it; g2 keeps serving")
        broken = {**child_environment(SERVER_VARIABLES), "PYTHONHOME": "/nowhere"}
        with monkeypatch.context() as patch:
            patch.setattr("lookupdb.up.child.child_environment", lambda _: broken)
            damage(tmp_path, "g2")
            kill_server(watch)
            await watch.says(
                "people: g2 is damaged; serving g1, the last good generation\npeople: g1 cannot be served\n"
            )
        await watch.cuts_over_to("g1", ada="Countess")


async def test_servers_that_cannot_start_for_another_reason_have_nothing_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as watch:
        active = watch.up._serving._active
        assert active is not None
        broken = {**child_environment(SERVER_VARIABLES), "PYTHONHOME": "/nowhere"}
        monkeypatch.setattr("lookupdb.up.child.child_environment", lambda _: broken)
        kill_server(watch)
        await soon(lambda: active.failed_starts() > [FAILED_STARTS], "starts that fail")
        looked_at = active.damage_watch._due
        await soon(lambda: looked_at, "a look at the files")
        monkeypatch.undo()
        await soon(lambda: active.failed_starts() == [0], "the server to be back")
        assert "building" not in watch.output
        assert "any more" not in watch.output


def test_without_a_watch_the_remedy_is_another_start(people: Callable[..., Stack], tmp_path: Path) -> None:
    stack = people()
    (server,) = stack.state["shards"]
    lose_store(tmp_path)
    os.kill(server["pid"], signal.SIGKILL)
    stack.says("people: g1 cannot be served any more: ")
    stack.says("restart `lookupdb up` to build it again")


def test_where_the_newest_is_damaged_and_the_source_is_bad_an_earlier_one_serves(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    write_people(tmp_path, ada="Duchess")
    build_people(tmp_path)
    damage(tmp_path, "g2")
    (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    stack = people()
    stack.says("people: g2 cannot be served\n")
    stack.says("the build failed; serving g1, the last good generation")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}


def test_where_all_are_damaged_and_the_source_is_bad_it_ends_as_the_builder_did(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    build_people(tmp_path)
    damage(tmp_path, "g1")
    (tmp_path / "people.csv").write_text('email,title\nada@example.com,"never closed\n')
    assert people().process.wait(120) == 3


def test_where_the_newest_is_damaged_it_is_built_again(people: Callable[..., Stack], tmp_path: Path) -> None:
    build_people(tmp_path)
    damage(tmp_path, "g1")
    stack = people()
    stack.says("people: building again")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    assert stack.generations() == ["g1", "g2"]
