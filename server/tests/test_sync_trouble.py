"""`lookupdb sync` in this process: whatever goes wrong, the folder's content stays, and the fault is reported."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support.buckets import new_bucket, use_server
from support.faults import Proxy, faulty_proxy
from support.routing import entry
from support.syncing import (
    CLUSTER,
    OTHER_UID,
    UID,
    announce,
    damage,
    has_problem,
    hasten,
    keeping,
    names,
    only_keeper,
    publish,
    read_current,
    reads,
    write_table,
)
from support.waiting import soon

from lookupdb.errors import StoreError, UsageError
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketStore
from lookupdb.sync import folder, keeper
from lookupdb.sync.folder import DatasetFolder
from lookupdb.sync.service import SyncService, describe_state, explain_unready

pytest_plugins = ["support.s3_fixtures", "support.sync_fixtures"]
pytestmark = pytest.mark.usefixtures("hastened")

A = "10.0.0.1:7000"


class TestTrouble:
    async def test_a_damaged_generation_leaves_what_is_there_and_is_tried_again(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g1")
            publish(url, "g2")
            whole = damage(url, "g2")
            announce(people, "g2", 2)
            await has_problem(service, "has checksum")
            assert read_current(root) == f"{UID} g1"
            status = describe_state(service.state)["datasets"][0]
            assert (status["problem"]["reason"], status["isCurrent"]) == ("CorruptFile", False)
            assert 0 <= status["problem"]["triedAgainInSeconds"] < 60
            assert status["current"]["generation"] == "g1"
            content = bytearray(whole.read_bytes())
            content[len(content) // 2] ^= 1
            whole.unlink()
            whole.write_bytes(content)
            whole.chmod(0o444)
            await reads(root, f"{UID} g2")
            await soon(lambda: only_keeper(service).problem is None, "all is well again")
            assert service.state.figures.failures["CorruptFile"] >= 1

    async def test_a_generation_that_is_announced_and_missing_is_told(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g1")
            announce(people, "g2", 2)
            await has_problem(service, "has no g2, which is the active generation: active.json there announces it")
            problem = only_keeper(service).problem
            assert problem is not None
            assert "remove active.json" in str(problem.error.hint)
            publish(url, "g2")
            await reads(root, f"{UID} g2")

    async def test_what_another_uid_has_left_makes_nobody_ready(self, root: Path, url: str) -> None:
        publish(url, "g1")
        async with keeping(root, url):
            await reads(root, f"{UID} g1")
        async with keeping(root, url, f"team/people@{OTHER_UID}") as service:
            await has_problem(service, f"has no generation of team/people@{OTHER_UID}")
            assert "team/people has no generation yet: " in str(explain_unready(service.state))
            publish(url, "g2", uid=OTHER_UID)
            await soon(lambda: explain_unready(service.state) is None, "it is there")
            assert read_current(root) == f"{OTHER_UID} g2"

    async def test_it_is_told_once(self, root: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
        announce(publish(url, "g1"), "g2", 2)
        async with keeping(root, url) as service:
            await soon(lambda: service.state.figures.failures["GenerationMissing"] > 3, "it was tried again")
        assert sum("has no g2" in record.getMessage() for record in caplog.records) == 1

    async def test_what_is_no_more_active_when_it_is_fetched_does_not_become_current(
        self, root: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reached, go_on = threading.Event(), threading.Event()
        fetch = folder.fetch_generation

        def slow(dataset: Any, manifest: Any, *rest: Any) -> None:
            fetch(dataset, manifest, *rest)
            if manifest.generation == "g2":
                reached.set()
                go_on.wait(30)

        monkeypatch.setattr(keeper, "fetch_generation", slow)
        people = publish(url, "g1")
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await reads(root, f"{UID} g1")
            publish(url, "g2")
            announce(people, "g2", 2)
            await soon(reached.is_set, "g2 is being fetched")
            announce(people, "g1", 3)
            await soon(lambda: only_keeper(service).target.version == 3, "the rollback is seen")
            go_on.set()
            await soon(lambda: only_keeper(service).is_settled, "g1 is known to be current")
        assert read_current(root) == f"{UID} g1"
        assert service.state.figures.swaps == 1

    async def test_a_full_disk_is_told_before_anything_is_fetched(
        self, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        place = BucketStore(bucket.url, CLUSTER, bucket)
        people = publish(place, "g1")
        announce(people, "g1", 1)
        async with keeping(root, bucket.url) as service:
            await reads(root, f"{UID} g1")
            usage = shutil.disk_usage(root)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
            publish(place, "g2")
            announce(people, "g2", 2)
            await has_problem(service, "1 bytes free, g2 needs")
            assert only_keeper(service).problem.error.reason == "NotEnoughRoom"
            assert read_current(root) == f"{UID} g1"
            monkeypatch.undo()
            hasten(monkeypatch)
            use_server(server, monkeypatch)
            await reads(root, f"{UID} g2")

    async def test_what_is_kept_to_go_back_to_makes_room(
        self, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        place = BucketStore(bucket.url, CLUSTER, bucket)
        people = publish(place, "g1")
        publish(place, "g2")
        announce(people, "g1", 1)
        folder = root / "team/people"
        async with keeping(root, bucket.url):
            await reads(root, f"{UID} g1")
            announce(people, "g2", 2)
            await reads(root, f"{UID} g2")
            assert names(folder) == ["current", "g1", "g2"]
            usage = shutil.disk_usage(root)
            monkeypatch.setattr(
                shutil, "disk_usage", lambda _: usage._replace(free=1 if (folder / "g1").exists() else 1 << 40)
            )
            publish(place, "g3")
            announce(people, "g3", 3)
            await reads(root, f"{UID} g3")

    async def test_a_write_that_fails_leaves_what_is_there(
        self, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        place = BucketStore(bucket.url, CLUSTER, bucket)
        people = publish(place, "g1")
        announce(people, "g1", 1)
        async with keeping(root, bucket.url) as service:
            await reads(root, f"{UID} g1")
            publish(place, "g2")
            is_full = True
            write = os.write

            def full(descriptor: int, data: Any) -> int:
                if is_full and len(data) > 1000:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(descriptor, data)

            monkeypatch.setattr(os, "write", full)
            announce(people, "g2", 2)
            await has_problem(service, "No space left on device")
            assert read_current(root) == f"{UID} g1"
            is_full = False
            await reads(root, f"{UID} g2")

    async def test_a_store_that_is_away_and_comes_back(
        self, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        people = publish(BucketStore(bucket.url, CLUSTER, bucket), "g1")
        announce(people, "g1", 1)
        with faulty_proxy(server) as (through, proxy):
            use_server(through, monkeypatch)
            monkeypatch.setattr("lookupdb.store.bucket.RETRIES", 0)
            monkeypatch.setattr(Bucket.__init__, "__kwdefaults__", {**_defaults(), "retries": 0})
            async with keeping(root, bucket.url) as service:
                await reads(root, f"{UID} g1")
                await self._be_away(service, proxy)
                assert read_current(root) == f"{UID} g1"
                assert explain_unready(service.state) is None, "what is there serves"
                announce(people, "g1", 2)
                proxy.calm()
                await soon(lambda: only_keeper(service).problem is None, "it looked again")

    async def _be_away(self, service: SyncService, proxy: Proxy) -> None:
        proxy.answer(503)
        await soon(lambda: only_keeper(service).problem is not None, "it is noticed")
        assert isinstance(only_keeper(service).problem.error, StoreError)

    async def test_what_is_kept_serves_a_rollback_while_the_store_is_away(
        self, root: Path, url: str, tmp_path: Path
    ) -> None:
        publish(url, "g1")
        publish(url, "g2")
        table = tmp_path / "table.json"
        write_table(table, entry([[A]], "g1"), version=1)
        async with keeping(root, url, tables=(table,), subscriptions=()):
            await reads(root, f"{UID} g1")
            write_table(table, entry([[A]], "g2"), version=2)
            await reads(root, f"{UID} g2")
            shutil.rmtree(url)
            write_table(table, entry([[A]], "g1"), version=3)
            await reads(root, f"{UID} g1")

    @pytest.mark.parametrize("lost", [".", "../../team", "g1"])
    async def test_a_folder_that_somebody_removes_is_filled_again(self, root: Path, url: str, lost: str) -> None:
        people, folder = publish(url, "g1"), root / "team/people"
        announce(people, "g1", 1)
        async with keeping(root, url) as service:
            await soon(lambda: only_keeper(service).is_settled, "g1 is known to be current")
            away = Path(url).rename(f"{url}-away")
            _remove(folder / lost)
            await soon(lambda: explain_unready(service.state) is not None, "it is noticed, even without the store")
            assert describe_state(service.state)["datasets"][0]["isCurrent"] is False
            away.rename(url)
            await reads(root, f"{UID} g1")
            announce(publish(url, "g2"), "g2", 2)
            await reads(root, f"{UID} g2")
            await soon(lambda: only_keeper(service).problem is None, "nothing is wrong")
            with pytest.raises(UsageError, match="another `lookupdb sync` keeps"):
                DatasetFolder(root, "team", "people").lock()

    async def test_a_folder_that_is_removed_before_its_first_generation_is_made_again(
        self, root: Path, url: str
    ) -> None:
        async with keeping(root, url) as service:
            await has_problem(service, "has no generation of team/people")
            _remove(root)
            announce(publish(url, "g1"), "g1", 1)
            await reads(root, f"{UID} g1")

    async def test_another_one_that_keeps_the_folder_is_told(self, root: Path, url: str) -> None:
        publish(url, "g1")
        async with keeping(root, url):
            with pytest.raises(UsageError, match="another `lookupdb sync` keeps"):
                async with keeping(root, url):
                    pass


def _remove(path: Path) -> None:
    """Remove ``path`` in one step, as seen by others."""
    path = Path(os.path.normpath(path))
    path.rename(path.with_name("removed"))


def _defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = dict(Bucket.__init__.__kwdefaults__ or {})
    return defaults
