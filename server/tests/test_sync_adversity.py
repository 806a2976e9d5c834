"""`lookupdb sync` with lost responses, stores that hang, and foreign files in its folder."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.routing import entry
from support.syncing import (
    OTHER_UID,
    UID,
    announce,
    keeping,
    names,
    only_keeper,
    publish,
    read_current,
    reads,
    write_table,
)
from support.waiting import soon, until

from lookupdb import disk
from lookupdb.errors import GenerationMissing
from lookupdb.store.directory import DirectoryDataset
from lookupdb.sync import keeper
from lookupdb.sync import keeper as keepers
from lookupdb.sync.feeds import StoreFeed
from lookupdb.sync.folder import DatasetFolder
from lookupdb.sync.service import SyncService

pytest_plugins = ["support.sync_fixtures"]
pytestmark = pytest.mark.usefixtures("hastened")

A = "10.0.0.1:7000"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "routing-table.json"


def is_obtaining(service: SyncService, generation: str) -> bool:
    running = only_keeper(service).running
    return running is not None and running.target.generation == generation


async def test_a_swap_whose_answer_is_lost_does_not_outlive_a_rollback(
    root: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = publish(url, "g1")
    publish(url, "g2")
    announce(people, "g1", 1)
    sync_folder = disk.sync_folder

    def fail_behind_the_swap(path: Path) -> None:
        sync_folder(path)
        if (path / "current").is_symlink() and os.readlink(path / "current") == "g2":  # noqa: PTH115
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with keeping(root, url) as service:
        await reads(root, f"{UID} g1")
        monkeypatch.setattr(disk, "sync_folder", fail_behind_the_swap)
        announce(people, "g2", 2)
        await soon(lambda: only_keeper(service).fetch_problem is not None, "the answer is lost")
        assert read_current(root) == f"{UID} g2"
        announce(people, "g1", 3)
        await soon(lambda: only_keeper(service).is_settled, "the rollback is followed")
        assert read_current(root) == f"{UID} g1"


class TestHangingStore:
    """It takes requests and does not answer: nothing fails, for a minute or two."""

    async def test_a_rollback_to_what_is_kept_does_not_wait_for_a_look(
        self, root: Path, url: str, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for generation in ("g1", "g2", "g3"):
            publish(url, generation)
        monkeypatch.setattr(keepers, "STORE_SECONDS", 0.05)
        monkeypatch.setattr(keeper, "WAIT_SECONDS", 0.05)
        hangs, answers, earlier_threads = False, threading.Event(), threading.active_count()
        find, look = DirectoryDataset.find_manifest, StoreFeed.look_for_announcement

        def find_late(self: DirectoryDataset, generation: str) -> Any:
            if hangs:
                answers.wait(60)
            return find(self, generation)

        def look_late(self: StoreFeed, uid: str) -> Any:
            if hangs:
                answers.wait(60)
            return look(self, uid)

        monkeypatch.setattr(DirectoryDataset, "find_manifest", find_late)
        monkeypatch.setattr(StoreFeed, "look_for_announcement", look_late)
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, tables=(table,)) as service:
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g2"), version=2)
            await reads(root, f"{UID} g2")
            hangs = True
            write_table(table, entry([[A]], "g1"), version=3)
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g3"), version=4)
            await soon(lambda: is_obtaining(service, "g3"), "it is asked for g3")
            write_table(table, entry([[A]], "g2"), version=5)
            await soon(lambda: only_keeper(service).target.generation == "g2", "it is asked for g2")
            assert is_obtaining(service, "g3"), "the fetch hangs still"
            assert threading.active_count() < earlier_threads + 18, "looks do not pile up"
            answers.set()
            hangs = False
            await reads(root, f"{UID} g2")
            write_table(table, entry([[A]], "g3"), version=6)
            await reads(root, f"{UID} g3")
            await soon(lambda: names(root / "team/people") == ["current", "g2", "g3"], "nothing else is left")

    async def test_an_announcement_that_cannot_be_read_again_still_holds(
        self, root: Path, url: str, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The table comes a minute later: it is not told as one that goes back."""
        people = publish(url, "g1")
        publish(url, "g2")
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, tables=(table,)) as service:
            await reads(root, f"{UID} g1")
            announce(people, "g2", 2)
            await reads(root, f"{UID} g2")
            looks = 0

            def fail(self: StoreFeed, uid: str) -> Any:
                nonlocal looks
                looks += 1
                raise GenerationMissing("the store is away")

            monkeypatch.setattr(StoreFeed, "look_for_announcement", fail)
            await soon(lambda: looks > 3, "it was looked at again")
            assert only_keeper(service).problem is None
            assert only_keeper(service).is_settled


async def test_what_is_announced_stays_beside_a_dataset_of_the_name_that_was_only_built(root: Path, url: str) -> None:
    announce(publish(url, "g1"), "g1", 1)
    again = publish(url, "g1", uid=OTHER_UID, built_at="2027-01-01T00:00:00Z")
    async with keeping(root, url) as service:
        await soon(lambda: only_keeper(service).is_settled, "it is known to be current")
        assert read_current(root) == f"{UID} g1"
        announce(again, "g1", 1, "2027-01-02T00:00:00Z")
        await reads(root, f"{OTHER_UID} g1")


async def test_a_table_of_another_uid_than_is_asked_for_is_not_followed(root: Path, url: str, table: Path) -> None:
    publish(url, "g1")
    publish(url, "g2", uid=OTHER_UID)
    write_table(table, entry([[A]], "g1"), version=1)
    async with keeping(root, url, f"team/people@{UID}", tables=(table,)) as service:
        await reads(root, f"{UID} g1")
        write_table(table, entry([[A]], "g2"), version=1, uid=OTHER_UID)
        await soon(lambda: only_keeper(service).look_problem is not None, "it is reported")
        problem = only_keeper(service).look_problem
        assert problem is not None
        assert f"belongs to the dataset with uid {OTHER_UID}, expected {UID}" in problem.error.message
        assert read_current(root) == f"{UID} g1"


async def test_a_table_of_another_uid_that_arrives_during_a_look_is_not_followed(
    root: Path, url: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(url, "g1")
    publish(url, "g2", uid=OTHER_UID)
    write_table(table, entry([[A]], "g1"), version=1)
    async with keeping(root, url, f"team/people@{UID}", tables=(table,)) as service:
        await reads(root, f"{UID} g1")

        def look(_feed: StoreFeed, _uid: str) -> None:
            write_table(table, entry([[A]], "g2"), version=1, uid=OTHER_UID)
            until(lambda: OTHER_UID in repr(service.state.tables[0].dataset), "the table is read")

        monkeypatch.setattr(StoreFeed, "look_for_announcement", look)
        await soon(lambda: only_keeper(service).look_problem is not None, "it is reported")
        assert only_keeper(service).target.uid == UID


class TestFolder:
    @pytest.mark.parametrize("what", ["file", "link", "dangling link"])
    @pytest.mark.parametrize("name", ["g1", ".g1.partial", ".g9.partial", ".g1.removed", ".g9.removed", ".current.new"])
    async def test_what_somebody_else_has_put_there_is_in_nobodys_way(
        self, root: Path, url: str, tmp_path: Path, name: str, what: str
    ) -> None:
        elsewhere, folder = tmp_path / "elsewhere", root / "team/people"
        elsewhere.mkdir()
        (elsewhere / "precious").write_text("x")
        folder.mkdir(parents=True)
        match what:
            case "file":
                (folder / name).write_text("x")
            case "link":
                (folder / name).symlink_to(elsewhere)
            case _:
                (folder / name).symlink_to("nowhere")
        announce(publish(url, "g1"), "g1", 1)
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
            await soon(lambda: names(folder) == ["current", "g1"], "all else is gone")
        assert [path.name for path in elsewhere.iterdir()] == ["precious"]

    def test_a_folder_whose_maker_was_killed_is_for_others_all_the_same(self, root: Path) -> None:
        folder = DatasetFolder(root, "team", "people")
        folder.lock()
        (folder.path / ".g1.partial").mkdir(mode=0o700)
        assert folder.open_partial("g1").stat().st_mode & 0o777 == 0o755
        folder.unlock()

    async def test_what_has_become_current_is_not_removed_by_who_has_listed_it_before(
        self, root: Path, url: str
    ) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
        folder = DatasetFolder(root, "team", "people")
        assert folder.remove("g1") is False
        assert read_current(root) == f"{UID} g1"
        with pytest.raises(GenerationMissing, match="is gone"):
            folder.point("g2")
