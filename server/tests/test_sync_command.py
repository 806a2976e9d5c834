"""`lookupdb sync` as a process: its options, its admin port, its end, its exit codes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import orjson
import pytest
from support.buckets import new_bucket, variables
from support.command_line import run_here
from support.gateways import fake_gateway, use_token
from support.ports import free_port
from support.routing import entry, table_file
from support.syncing import CLUSTER, OTHER_UID, UID, announce, names, publish, read_current, says, sync_process
from support.waiting import until

from lookupdb.process.memory import private_bytes
from lookupdb.store.bucket_dataset import BucketStore

pytestmark = pytest.mark.long
pytest_plugins = ["support.s3_fixtures", "support.sync_fixtures"]


def once(root: Path, url: str, *words: str, wait: str = "0.2") -> tuple[int, str]:
    """Exit code and standard error of a run to the end."""
    ended = run_here("sync", str(root), "--store", url, "--cluster-id", CLUSTER, "--once", "--store-wait", wait, *words)
    return ended.returncode, ended.stderr.decode()


class TestRunning:
    def test_tells_what_it_keeps(self, tmp_path: Path, root: Path, url: str) -> None:
        people = publish(url, "g1")
        announce(people, "g1", 1)
        words = (str(root), "--store", url, "--dataset", "team/people")
        with sync_process(tmp_path, *words) as running:
            running.wait_ready()
            assert running.ask("/healthz") == (200, b"ok\n")
            assert running.ask("/readyz") == (200, b"ready\n")
            assert running.ask("/elsewhere")[0] == 404
            (told,) = orjson.loads(running.ask("/status")[1])["datasets"]
            assert told["current"]["generation"] == told["active"]["generation"] == "g1"
            assert b'lookupdb_sync_generation{namespace="team",dataset="people"} 1.0' in running.ask("/metrics")[1]
            publish(url, "g2")
            announce(people, "g2", 2)
            until(lambda: says(root, f"{UID} g2"), "g2 is current")
            assert running.stop() == 0
            assert "ending signal=SIGTERM" in running.log
        assert not (tmp_path / "sync-ready.json").exists()
        assert read_current(root) == f"{UID} g2"

    def test_is_not_ready_while_a_dataset_is_missing(self, tmp_path: Path, root: Path, url: str) -> None:
        publish(url, "g1")
        words = (str(root), "--store", url, "--dataset", "team/people", "--dataset", "team/places")
        with sync_process(tmp_path, *words) as running:
            until(lambda: "has no generation of team/places" in running.log, "it is reported")
            until(lambda: says(root, f"{UID} g1"), "the other one is there")
            assert not (tmp_path / "sync-ready.json").exists()
            publish(url, "g1", name="team/places")
            running.wait_ready()

    def test_ends_soon_in_the_middle_of_a_fetch_and_goes_on_later(
        self, tmp_path: Path, root: Path, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        publish(BucketStore(bucket.url, CLUSTER, bucket), "g1", keys=5000)
        words = (str(root), "--store", bucket.url, "--dataset", "team/people")
        with sync_process(tmp_path, *words, "--rate", "64KiB", environment=variables(server)) as running:
            until(lambda: list(root.glob("team/people/.g1.partial/*")), "it has begun")
            began = time.monotonic()
            assert running.stop() == 0
            assert time.monotonic() - began < 5
        assert read_current(root) is None
        with sync_process(tmp_path, *words, environment=variables(server)) as running:
            running.wait_ready()
            assert read_current(root) == f"{UID} g1"

    def test_ends_soon_while_the_store_does_not_answer(
        self, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = use_token(tmp_path, monkeypatch)
        environment = {"LOOKUPDB_STORE_TOKEN_FILE": str(token)}
        words = (str(root), "--store", f"http://127.0.0.1:{free_port()}", "--dataset", "team/people")
        with sync_process(tmp_path, *words, environment=environment) as running:
            until((root / "team/people/.sync.lock").exists, "it has begun")
            time.sleep(0.3)
            began = time.monotonic()
            assert running.stop(signal.SIGINT) == 0
            assert time.monotonic() - began < 5

    def test_needs_no_more_memory_for_more_datasets_and_shards(self, tmp_path: Path, root: Path, url: str) -> None:
        datasets = [f"team/d{number}" for number in range(60)]
        for name in datasets:
            announce(publish(url, "g1", name=name, shards=40, keys=40), "g1", 1)
        words = [word for name in datasets for word in ("--dataset", name)]
        with sync_process(tmp_path, str(root), "--store", url, *words) as running:
            running.wait_ready()
            used = private_bytes(running.process.pid)
            assert used is not None
            assert used < 60 << 20, f"{used} bytes"
            assert running.stop() == 0


class TestOnce:
    def test_ends_when_all_are_there(self, root: Path, url: str, tmp_path: Path) -> None:
        publish(url, "g1")
        publish(url, "g3", name="team/places")
        table = tmp_path / "table.json"
        dataset = {"namespace": "team", "name": "places", "uid": f"{UID}-0000"}
        table.write_bytes(table_file(entry([["10.0.0.1:7000"]], "g3"), version=1, dataset=dataset))
        for _ in range(2):  # the second one finds all there
            code, told = once(root, url, "--dataset", "team/people", "--table", str(table))
            assert code == 0
            assert "all datasets are there" in told
            assert "team/people g1, team/places g3" in told
        assert read_current(root) == f"{UID} g1"
        assert read_current(root, "team/places") == f"{UID} g3"

    def test_a_dataset_that_is_not_there_is_the_stores_error(self, root: Path, url: str) -> None:
        publish(url, "g1", name="team/places")
        code, told = once(root, url, "--dataset", "team/people")
        assert code == 5
        assert "has no generation of team/people that could serve" in told

    def test_a_store_that_is_not_there_is_told_as_such(self, root: Path, url: str) -> None:
        code, told = once(root, url, "--dataset", "team/people")
        assert code == 5
        assert f"the store {url} has no generation of team/people: the folder {url} does not exist" in told
        assert "--store names it" in told

    def test_a_table_that_is_not_there_is_an_error(self, root: Path, url: str, tmp_path: Path) -> None:
        code, told = once(root, url, "--table", str(tmp_path / "table.json"))
        assert code == 2
        assert "there is no routing table yet" in told
        assert "give the routing table" in told

    def test_nor_is_one_that_is_none(self, root: Path, url: str, tmp_path: Path) -> None:
        (tmp_path / "table.json").write_text("people: yes")
        code, told = once(root, url, "--table", str(tmp_path / "table.json"))
        assert code == 2
        assert "a routing table is JSON" in told
        assert "find out what writes that file" in told

    def test_what_is_there_and_cannot_be_brought_up_to_date_is_no_failure(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        assert once(root, url, "--dataset", "team/people")[0] == 0
        announce(people, "g2", 2)
        assert once(root, url, "--dataset", "team/people")[0] == 0
        assert read_current(root) == f"{UID} g1"

    def test_what_another_uid_has_left_is_not_the_dataset(self, root: Path, url: str) -> None:
        publish(url, "g1")
        publish(url, "g2")
        assert once(root, url, "--dataset", "team/people")[0] == 0
        code, told = once(root, url, "--dataset", f"team/people@{OTHER_UID}")
        assert code == 5
        assert f"has no generation of team/people@{OTHER_UID} that could serve" in told
        assert "all datasets are there" not in told
        assert read_current(root) == f"{UID} g2", "it stays"
        assert once(root, url, "--dataset", f"team/people@{UID}")[0] == 0

    def test_a_damaged_generation_is_not_waited_for(self, root: Path, url: str) -> None:
        people = publish(url, "g1")
        shard = Path(people.url) / "g1" / people.manifest("g1").shards[0].file
        content = bytearray(shard.read_bytes())
        content[100] ^= 1
        shard.unlink()
        shard.write_bytes(content)
        announce(people, "g1", 1)
        code, told = once(root, url, "--dataset", "team/people", wait="60")
        assert (code, "sha256" in told) == (5, True)
        assert names(root / "team/people") in ([], [".g1.partial"])

    def test_a_signal_ends_it(self, tmp_path: Path, root: Path, url: str) -> None:
        words = (str(root), "--store", url, "--dataset", "team/people", "--once", "--store-wait", "600")
        with sync_process(tmp_path, *words) as running:
            until((root / "team/people/.sync.lock").exists, "it has begun")
            until(lambda: "has no generation" in running.log, "it waits")
            assert running.stop() == 143

    def test_it_looks_once_however_short_it_is_to_wait(self, root: Path, url: str) -> None:
        publish(url, "g1")
        assert once(root, url, "--dataset", "team/people", wait="0")[0] == 0
        assert read_current(root) == f"{UID} g1"


class TestUsage:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ((), "there is nothing to keep"),
            (("--dataset", "a/b/c"), "is not a dataset"),
            (("--dataset", f"team/people@{UID}", "--dataset", f"team/people@{OTHER_UID}"), "named with two uids"),
            (("--dataset", "people", "--keep", "0"), "--keep"),
        ],
    )
    def test_what_cannot_be_is_refused(self, root: Path, url: str, words: tuple[str, ...], says: str) -> None:
        code, told = once(root, url, *words)
        assert (code, says in told) == (2, True)
        assert not root.exists()

    def test_a_folder_that_another_one_keeps_is_refused(self, tmp_path: Path, root: Path, url: str) -> None:
        publish(url, "g1")
        with sync_process(tmp_path, str(root), "--store", url, "--dataset", "team/people") as running:
            running.wait_ready()
            code, told = once(root, url, "--dataset", "team/people")
            assert (code, "another `lookupdb sync` keeps" in told) == (2, True)

    def test_a_folder_that_cannot_be_written_to_is_told(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "file").write_text("")
        code, told = once(tmp_path / "file" / "kept", url, "--dataset", "team/people")
        assert (code, "cannot write to" in told) == (5, True)

    def test_a_gateway_without_a_token_is_told(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LOOKUPDB_STORE_TOKEN_FILE", raising=False)
        with fake_gateway() as gateway:
            code, told = once(root, gateway.url, "--dataset", "team/people")
        assert (code, "LOOKUPDB_STORE_TOKEN_FILE is not set" in told) == (2, True)

    def test_two_share_a_root_if_they_keep_different_datasets(self, tmp_path: Path, root: Path, url: str) -> None:
        publish(url, "g1")
        publish(url, "g2", name="team/places")
        with sync_process(tmp_path, str(root), "--store", url, "--dataset", "team/people") as running:
            running.wait_ready()
            assert once(root, url, "--dataset", "team/places")[0] == 0
        assert read_current(root, "team/places") == f"{UID} g2"
