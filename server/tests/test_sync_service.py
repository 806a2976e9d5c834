"""`lookupdb sync` in this process: what is active becomes current, and whatever goes wrong, what is there stays."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path

import orjson
import pytest
from docs_tools import reference
from support.buckets import new_bucket
from support.gateways import CLUSTER as GATEWAY_CLUSTER
from support.gateways import fake_gateway, use_token
from support.routing import entry, mixed
from support.syncing import (
    CLUSTER,
    OTHER_UID,
    UID,
    announce,
    has_problem,
    keeping,
    names,
    only_keeper,
    publish,
    read_current,
    reads,
    write_table,
)
from support.waiting import soon

import lookupdb
from lookupdb.errors import StoreError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, FILE_NAME
from lookupdb.store import open_store
from lookupdb.store.bucket_dataset import BucketStore
from lookupdb.sync.folder import DatasetFolder
from lookupdb.sync.service import collect_sync, describe_state, explain_unready

pytest_plugins = ["support.s3_fixtures", "support.sync_fixtures"]
pytestmark = pytest.mark.usefixtures("hastened")

A = "10.0.0.1:7000"


class TestActive:
    async def test_what_is_announced_becomes_current_and_a_rollback_is_followed(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g1")
            publish(url, "g2")
            announce(people, "g2", 2)
            await reads(root, f"{UID} g2")
            announce(people, "g1", 3)
            await reads(root, f"{UID} g1")
            await soon(lambda: only_keeper(service).is_settled, "it is known to be")
            assert only_keeper(service).problem is None

    async def test_what_is_newer_and_not_announced_is_not_taken(self, root: Path, url: str) -> None:
        announce(publish(url, "g1"), "g1", 1)
        publish(url, "g2")
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
        assert names(root / "team/people") == ["current", "g1"]

    async def test_a_store_without_announcements_gives_its_newest(self, root: Path, url: str) -> None:
        publish(url, "g1")
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
            publish(url, "g2")
            await reads(root, f"{UID} g2")

    async def test_a_number_that_was_built_again_is_fetched_again(self, root: Path, url: str) -> None:
        people = publish(url, "g1", content="g1 old")
        async with keeping(root, url):
            await reads(root, "g1 old")
            people.remove("g1")
            publish(url, "g1", content="g1 new", built_at="2026-11-22T00:00:00Z")
            await reads(root, "g1 new")

    @pytest.mark.parametrize("version", [1, 2], ids=["version", "later version"])
    async def test_a_store_that_was_removed_and_filled_again_is_followed(
        self, root: Path, url: str, version: int
    ) -> None:
        """As .lookupdb of `lookupdb up`, where uid, generation and version are the same again: none of it tells."""
        people = publish(url, f"g{version}", content=f"g{version} old")
        announce(people, f"g{version}", version)
        async with keeping(root, url) as service:
            await reads(root, f"g{version} old")
            with lookupdb.open(root / "team/people", refresh_seconds=0) as opened:
                assert opened["key-1"] == f"g{version} old"
                built_at, announced_at = "2026-11-22T00:00:00Z", "2026-11-22T00:00:01Z"
                new = publish(f"{url}-new", "g1", content="g1 new", built_at=built_at)
                announce(new, "g1", 1, announced_at)
                Path(url).rename(f"{url}-old")
                Path(f"{url}-new").rename(url)
                await reads(root, "g1 new")
                await soon(lambda: opened["key-1"] == "g1 new", "a program that has it open sees that")
            await soon(lambda: only_keeper(service).problem is None, "nothing is wrong")

    async def test_the_same_generation_that_is_announced_again_is_not_fetched_again(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await soon(lambda: service.state.figures.fetches == 1, "it is fetched")
            announce(people, "g1", 2, "2026-11-22T00:00:00Z")
            await soon(lambda: only_keeper(service).target.version == 2, "it is seen")
            await soon(lambda: only_keeper(service).is_settled, "it is known to be current")
            assert service.state.figures.fetches == 1

    async def test_an_older_version_is_told_and_not_followed(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        publish(url, "g2")
        announce(people, "g2", 2)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g2")
            people.write_note(ANNOUNCEMENT_NOTE, None)
            announce(people, "g1", 1)
            await has_problem(service, "version 1 is older than version 2")
            assert read_current(root) == f"{UID} g2"

    async def test_two_datasets_are_kept_each_by_itself(self, root: Path, url: str) -> None:
        announce(publish(url, "g1"), "g1", 1)
        publish(url, "g7", name="team/places")
        async with keeping(root, url, "team/people", "team/places"):
            await reads(root, f"{UID} g1")
            await reads(root, f"{UID} g7", "team/places")

    async def test_what_is_there_when_it_starts_again_is_not_fetched_again(self, root: Path, url: str) -> None:
        announce(publish(url, "g1"), "g1", 1)
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
        about = (root / "team/people/current").lstat()
        async with keeping(root, url) as service:
            await soon(lambda: only_keeper(service).is_settled, "it is known to be current")
            assert service.state.figures.fetches == 0
        assert (root / "team/people/current").lstat().st_ino == about.st_ino, "readers have nothing to look at"


class TestFiles:
    async def test_of_a_directory_on_the_same_disk_are_linked(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        async with keeping(root, url) as service:
            await soon(lambda: service.state.figures.fetches == 1, "it is linked")
            assert read_current(root) == f"{UID} g1"
            assert service.state.figures.fetched_bytes == 0
            assert service.state.figures.linked_bytes == people.manifest("g1").totals.file_bytes
        for shard in people.manifest("g1").shards:
            assert (root / "team/people/g1" / shard.file).samefile(Path(people.url) / "g1" / shard.file)
        assert not (root / "team/people/g1" / FILE_NAME).samefile(Path(people.url) / "g1" / FILE_NAME)
        people.remove("g1")
        assert read_current(root) == f"{UID} g1", "the store's removal takes nothing away"

    async def test_are_copied_where_they_cannot_be_linked(
        self, root: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path, _target: Path) -> None:
            raise OSError(errno.EXDEV, "another device", str(path))

        people = publish(url, "g1")
        monkeypatch.setattr(Path, "hardlink_to", refuse)
        async with keeping(root, url) as service:
            await soon(lambda: service.state.figures.fetches == 1, "it is fetched")
            assert read_current(root) == f"{UID} g1"
            assert service.state.figures.fetched_bytes == people.manifest("g1").totals.file_bytes

    async def test_that_somebody_may_write_to_are_copied(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        shard = people.manifest("g1").shards[0]
        (Path(people.url) / "g1" / shard.file).chmod(0o644)
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
        assert not (root / "team/people/g1" / shard.file).samefile(Path(people.url) / "g1" / shard.file)

    async def test_are_read_only_and_readable_by_all(
        self, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        publish(BucketStore(bucket.url, CLUSTER, bucket), "g1")
        before = os.umask(0o077)
        try:
            async with keeping(root, bucket.url):
                await reads(root, f"{UID} g1")
        finally:
            os.umask(before)
        folder = root / "team/people/g1"
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}
        assert {path.stat().st_mode & 0o777 for path in (root, root / "team", folder.parent, folder)} == {0o755}
        assert names(folder) == sorted([FILE_NAME, *(path.name for path in folder.glob("shard-*-of-00003-*.lmdb"))])


class TestUid:
    async def test_a_dataset_that_was_made_again_takes_the_place_of_the_old_one(self, root: Path, url: str) -> None:
        publish(url, "g2", built_at="2026-11-20T00:00:00Z")
        async with keeping(root, url):
            await reads(root, f"{UID} g2")
            publish(url, "g2", uid=OTHER_UID, built_at="2026-11-21T00:00:00Z")
            await reads(root, f"{OTHER_UID} g2")
        assert names(root / "team/people") == ["current", "g2"]

    async def test_but_not_where_its_uid_was_asked_for(self, root: Path, url: str) -> None:
        publish(url, "g2", built_at="2026-11-20T00:00:00Z")
        publish(url, "g3", uid=OTHER_UID, built_at="2026-11-21T00:00:00Z")
        async with keeping(root, url, f"team/people@{UID}"):
            await reads(root, f"{UID} g2")
        assert names(root / "team/people") == ["current", "g2"]

    async def test_a_reader_sees_one_or_the_other(self, root: Path, url: str) -> None:
        """Both have the same number and are exchanged at once: a program never opens files of both."""
        publish(url, "g2", built_at="2026-11-20T00:00:00Z")
        ended = threading.Event()
        seen: list[str | None] = []
        failures: list[BaseException] = []

        def read() -> None:
            while not ended.wait(0.003):
                try:
                    text = read_current(root)
                except FileNotFoundError:
                    continue  # it went while it was opened: look again
                except BaseException as error:
                    failures.append(error)
                    return
                if text is not None and (not seen or seen[-1] != text):
                    seen.append(text)

        async with keeping(root, url):
            await reads(root, f"{UID} g2")
            reader = threading.Thread(target=read)
            reader.start()
            publish(url, "g2", uid=OTHER_UID, built_at="2026-11-21T00:00:00Z")
            await soon(lambda: failures or (seen and seen[-1] == f"{OTHER_UID} g2"), "the reader has seen it")
            ended.set()
            await asyncio.to_thread(reader.join)
        assert failures == []
        assert seen == [f"{UID} g2", f"{OTHER_UID} g2"]

    async def test_a_manifest_of_another_uid_is_refused(self, root: Path, url: str) -> None:
        publish(url, "g1", uid=OTHER_UID)
        publish(url, "g1", name="team/places")
        shutil.copytree(
            Path(url) / CLUSTER / "team" / f"people-{OTHER_UID}", Path(url) / CLUSTER / f"team/people-{UID}"
        )
        async with keeping(root, url, f"team/people@{UID}") as service:
            await has_problem(service, "belongs to team/people (77aa0b1c), expected team/people (3f2b9c1e)")
            assert read_current(root) is None


class TestTable:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        return tmp_path / "routing-table.json"

    async def test_says_what_is_active_whatever_the_store_says(self, root: Path, url: str, table: Path) -> None:
        people = publish(url, "g1")
        publish(url, "g2")
        announce(people, "g2", 9)
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, tables=(table,), subscriptions=()):
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g2"), entry([[A]], "g1"), version=2)
            await reads(root, f"{UID} g2")
            write_table(table, entry([[A]], "g1"), version=3)
            await reads(root, f"{UID} g1")

    async def test_is_waited_for(self, root: Path, url: str, table: Path) -> None:
        publish(url, "g1")
        async with keeping(root, url, tables=(table,), subscriptions=()) as service:
            assert "there is no routing table yet" in (explain_unready(service.state) or "")
            assert names(root) == []
            write_table(table, entry([[A]], "g1"), version=1)
            await reads(root, f"{UID} g1")
            await soon(lambda: explain_unready(service.state) is None, "it is ready")

    async def test_that_is_mixed_leaves_what_is_there(self, root: Path, url: str, table: Path) -> None:
        publish(url, "g1")
        publish(url, "g2")
        old, new = entry([[A], [A]], "g1"), entry([[A], [A]], "g2")
        write_table(table, old, version=1)
        async with keeping(root, url, tables=(table,), subscriptions=()) as service:
            await reads(root, f"{UID} g1")
            write_table(table, mixed(new, old, [1]), version=2)
            await soon(lambda: service.state.tables[0].is_mixed, "it is seen")
            await soon(lambda: only_keeper(service).running is None, "nothing is fetched")
            assert read_current(root) == f"{UID} g1"
            write_table(table, new, version=3)
            await reads(root, f"{UID} g2")

    async def test_that_is_none_or_older_leaves_what_is_there_and_is_told(
        self, root: Path, url: str, table: Path
    ) -> None:
        publish(url, "g1")
        publish(url, "g2")
        write_table(table, entry([[A]], "g1"), version=5)
        async with keeping(root, url, tables=(table,), subscriptions=()) as service:
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g2"), version=4)
            await has_problem(service, "version 4 is older than version 5")
            table.write_bytes(b"{")
            await has_problem(service, "a routing table is JSON")
            write_table(table, entry([[A]], "g2"), version=6, name="places")
            await has_problem(service, "it is the table of team/places, but this file was the table of team/people")
            assert read_current(root) == f"{UID} g1"
            write_table(table, entry([[A]], "g2"), version=6)
            await reads(root, f"{UID} g2")
            await soon(lambda: only_keeper(service).problem is None, "all is well again")

    async def test_of_the_dataset_that_was_made_again_is_followed(self, root: Path, url: str, table: Path) -> None:
        publish(url, "g5")
        publish(url, "g1", uid=OTHER_UID)
        write_table(table, entry([[A]], "g5"), version=50)
        async with keeping(root, url, tables=(table,), subscriptions=()):
            await reads(root, f"{UID} g5")
            write_table(table, entry([[A]], "g1"), version=1, uid=OTHER_UID)
            await reads(root, f"{OTHER_UID} g1")
            await soon(lambda: names(root / "team/people") == ["current", "g1"], "nothing of the old one is left")


class TestRemoval:
    async def test_the_newest_stay_and_what_is_mapped(self, root: Path, url: str) -> None:
        folder = root / "team/people"
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
            mapped = os.open(folder / "g1" / FILE_NAME, os.O_RDONLY)
            fcntl.flock(mapped, fcntl.LOCK_SH)
            for number in (2, 3, 4):
                publish(url, f"g{number}")
                announce(people, f"g{number}", number)
                await reads(root, f"{UID} g{number}")
            await soon(lambda: names(folder) == ["current", "g1", "g3", "g4"], "g2 is gone, and g1 is mapped")
            os.close(mapped)
            await soon(lambda: names(folder) == ["current", "g3", "g4"], "g1 is gone when it is let go")

    async def test_what_cannot_be_read_for_a_moment_stays(
        self, root: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        announce(publish(url, "g1"), "g1", 1)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g1")
            announce(publish(url, "g2"), "g2", 2)
            await reads(root, f"{UID} g2")
            keeper = only_keeper(service)
            read = Path.read_bytes

            def fail(path: Path) -> bytes:
                if path.parent.name == "g1":
                    raise OSError(errno.EMFILE, "Too many open files")
                return read(path)

            monkeypatch.setattr(Path, "read_bytes", fail)
            with pytest.raises(StoreError, match=r"cannot read .*/g1/manifest\.json: Too many open files"):
                keeper.folder.find_superseded(2)
            monkeypatch.undo()
            assert keeper.folder.find_superseded(2) == ()


class TestGateway:
    async def test_is_asked_like_any_store(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        use_token(tmp_path, monkeypatch)
        with fake_gateway() as gateway:
            gateway.tokens = dict.fromkeys(gateway.tokens, "team")
            place = open_store(gateway.url, GATEWAY_CLUSTER)
            monkeypatch.setattr("support.syncing.CLUSTER", GATEWAY_CLUSTER)
            people = publish(place, "g1")
            announce(people, "g1", 1)
            async with keeping(root, gateway.url, cluster=GATEWAY_CLUSTER):
                await reads(root, f"{UID} g1")
                publish(place, "g2")
                announce(people, "g2", 2)
                await reads(root, f"{UID} g2")


async def test_metrics_tell_of_each_dataset(root: Path, url: str) -> None:
    announce(publish(url, "g3"), "g3", 1)
    async with keeping(root, url) as service:
        await reads(root, f"{UID} g3")
        await soon(lambda: only_keeper(service).is_settled, "it is known to be current")
        families = {family.name: family for family in collect_sync(service.state)}
        of_people = {"namespace": "team", "dataset": "people"}
        assert families["lookupdb_sync_generation"].samples == [(of_people, 3.0)]
        assert families["lookupdb_sync_behind"].samples == [(of_people, 0.0)]
        assert families["lookupdb_sync_ready"].samples == [({}, 1)]
        assert families["lookupdb_sync_swaps_total"].samples == [({}, 1)]
        text = reference.pages()["reference/metrics.md"]
        assert [name for name in families if f"| `{name}` |" not in text] == []
        orjson.dumps(describe_state(service.state))


async def test_a_table_whose_dataset_another_one_keeps_is_waited_for(root: Path, url: str, tmp_path: Path) -> None:
    """Happens while a pod of a DaemonSet is replaced by its successor."""
    publish(url, "g1")
    table = tmp_path / "table.json"
    write_table(table, entry([[A]], "g1"), version=1)
    holder = DatasetFolder(root, "team", "people")
    holder.lock()
    async with keeping(root, url, tables=(table,), subscriptions=()) as service:
        await has_problem(service, "another `lookupdb sync` keeps")
        holder.unlock()
        await reads(root, f"{UID} g1")


class TestTableAndAnnouncement:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        return tmp_path / "routing-table.json"

    async def test_whichever_is_newer_counts(self, root: Path, url: str, table: Path) -> None:
        """The ConfigMap of a cluster comes late, and a store may be away."""
        people = publish(url, "g1")
        for generation in ("g2", "g3"):
            publish(url, generation)
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, "team/people", tables=(table,)) as service:
            await reads(root, f"{UID} g1")
            announce(people, "g2", 5)
            await reads(root, f"{UID} g2")
            write_table(table, entry([[A]], "g2"), version=5)
            await soon(lambda: only_keeper(service).target.origin == "table", "the table has it, too")
            write_table(table, entry([[A]], "g3"), version=7)
            await reads(root, f"{UID} g3")
            announce(people, "g1", 6)
            await soon(lambda: only_keeper(service).is_settled, "it looked again")
            assert read_current(root) == f"{UID} g3", "an older announcement is none"
            assert only_keeper(service).problem is None

    async def test_while_a_table_is_not_there_the_newest_is_not_taken_for_what_it_says(
        self, root: Path, url: str, table: Path
    ) -> None:
        people = publish(url, "g1")
        publish(url, "g2")
        async with keeping(root, url, "team/people", tables=(table,)) as service:
            await has_problem(service, "has no generation of team/people that could serve")
            assert read_current(root) is None
            announce(people, "g1", 1)
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g2"), version=2)
            await reads(root, f"{UID} g2")

    async def test_an_announcement_of_another_uid_than_the_tables_is_none(
        self, root: Path, url: str, table: Path
    ) -> None:
        publish(url, "g1")
        announce(publish(url, "g9", uid=OTHER_UID), "g9", 90, "2026-12-01T00:00:00Z")
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, "team/people", tables=(table,)):
            await reads(root, f"{UID} g1")
