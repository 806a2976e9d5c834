"""`lookupdb fetch`: its result can be served, whatever the store, the disk or a signal did meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.buckets import new_bucket, s3_server
from support.generations import publish
from support.shards import serving
from support.terminals import run_at_terminal
from support.waiting import until

from lookupdb import store
from lookupdb.cli.fetch import command
from lookupdb.errors import (
    CorruptFile,
    FolderDenied,
    GenerationMissing,
    NotEnoughRoom,
    StoreDenied,
    StoreError,
    UsageError,
)
from lookupdb.manifest import FILE_NAME, Manifest, ShardFile, verify_shard_file
from lookupdb.shard.server import locate_shard
from lookupdb.shardfile import ShardReader
from lookupdb.store import StoreAddress, StoredDataset
from lookupdb.store.bucket_dataset import BucketDataset
from lookupdb.store.directory import DirectoryDataset, store_errors
from lookupdb.store.generations import fetch_shard

ADDRESS = StoreAddress("c1", "team", "things", "3f2b9c1e-77aa")
CONTENT = {f"key-{number}": b"%d" % number * 50 for number in range(3000)}
GIB = 1 << 30


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["directory", "s3"])
def dataset(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, StoredDataset]:
    """The store's URL, and a dataset in it with generations g1 and g2 of two shards."""
    url = str(tmp_path / "store")
    if request.param == "s3":
        url = new_bucket(request.getfixturevalue("server"), monkeypatch).url
    place = store.open_store(url, "c1").dataset_at(ADDRESS)
    for generation in ("g1", "g2"):
        (tmp_path / generation).mkdir()
        publish(place, generation, CONTENT | {"generation": generation.encode()}, tmp_path / generation, shards=2)
    return url, place


@pytest.fixture
def local(tmp_path: Path) -> DirectoryDataset:
    """Generation g1, of one shard, in a directory."""
    place = store.open_store(str(tmp_path / "store"), "c1").dataset_at(ADDRESS)
    (tmp_path / "scratch").mkdir()
    publish(place, "g1", CONTENT, tmp_path / "scratch", shards=1)
    assert isinstance(place, DirectoryDataset)
    return place


def test_a_folder_that_may_not_be_written_to_is_told_and_not_the_store(local: DirectoryDataset) -> None:
    folder = Path("/sys/lookupdb")  # where nobody may make anything, root neither
    with pytest.raises(FolderDenied, match=f"cannot write to {folder}") as told:
        fetch_shard(local, folder, "g1", 0, rate=GIB, patience=60)
    assert (told.value.exit_code, told.value.reason) == (2, "FolderDenied")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def arguments(url: str, folder: Path, *more: str, generation: str = "g1", shard: int = 0) -> list[str]:
    words = ["--store", url, "--cluster-id", "c1", "--namespace", "team", "--dataset", "things"]
    words += ["--json", "--uid", "3f2b9c1e-77aa", "--generation", generation, "--shard", str(shard)]
    return [*words, *more, str(folder)]


def fetch(url: str, folder: Path, *more: str, **choice: Any) -> dict[str, Any]:
    run = CliRunner().invoke(command, arguments(url, folder, *more, **choice), standalone_mode=False)
    assert run.exception is None, run.exception
    (line,) = run.stdout.splitlines()
    told: dict[str, Any] = json.loads(line)
    return told


class TestFolder:
    def test_what_is_fetched_can_be_served(self, dataset: tuple[str, StoredDataset], tmp_path: Path) -> None:
        url, place = dataset
        folder, log = tmp_path / "data" / "deep", tmp_path / "log"
        told = fetch(url, folder, "--termination-log", str(log), shard=1)
        entry = place.manifest("g1").shards[1]
        assert names(folder) == [FILE_NAME, entry.file]
        verify_shard_file(folder / entry.file, entry)
        assert (folder / entry.file).stat().st_mode & 0o777 == 0o444
        assert (told["outcome"], told["reason"], told["exitCode"]) == ("fetched", "Fetched", 0)
        assert (told["dataset"], told["generation"], told["shard"]) == ("team/things", "g1", 1)
        assert (told["file"], told["bytes"]) == (entry.file, entry.bytes)
        assert json.loads(log.read_bytes()) == told
        assert locate_shard(folder, 1).manifest == place.manifest("g1")

    def test_a_server_answers_from_it(self, local: DirectoryDataset, tmp_path: Path) -> None:
        fetch_shard(local, tmp_path / "data", "g1", 0, rate=GIB)
        with serving(tmp_path / "data", shard=0) as server, redis.Redis(port=server.ports[0]) as client:
            assert client.get("key-17") == CONTENT["key-17"]

    def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(
        self, dataset: tuple[str, StoredDataset], tmp_path: Path
    ) -> None:
        url, place = dataset
        folder, entry = tmp_path / "data", place.manifest("g1").shards[0]
        fetch(url, folder)
        about = (folder / entry.file).stat()
        assert fetch(url, folder)["outcome"] == "present"
        assert (folder / entry.file).stat().st_ino == about.st_ino
        (folder / entry.file).chmod(0o644)
        (folder / entry.file).write_bytes(bytes(entry.bytes))
        assert fetch(url, folder)["outcome"] == "fetched"
        verify_shard_file(folder / entry.file, entry)

    def test_what_an_interrupted_fetch_left_goes(self, local: DirectoryDataset, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        entry = local.manifest("g1").shards[0]
        (folder / f".{entry.file}.partial").write_bytes(b"half")
        (folder / f".{FILE_NAME}.partial").write_bytes(b"half")
        fetch_shard(local, folder, "g1", 0, rate=GIB)
        assert names(folder) == [FILE_NAME, entry.file]

    def test_another_generation_takes_the_place_of_the_first(
        self, dataset: tuple[str, StoredDataset], tmp_path: Path
    ) -> None:
        url, _ = dataset
        folder = tmp_path / "data"
        for generation in ("g1", "g2"):
            assert fetch(url, folder, generation=generation)["outcome"] == "fetched"
            served = locate_shard(folder, 0)
            assert served.manifest.generation == generation
            verify_shard_file(served.path, served.entry)
        assert names(folder) == [FILE_NAME, served.entry.file], "of the first nothing is left"

    def test_no_manifest_stands_while_the_file_is_not_whole(self, local: DirectoryDataset, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        fetch_shard(local, folder, "g1", 0, rate=GIB)
        (tmp_path / "more").mkdir()
        publish(local, "g2", CONTENT | {"a": b"1"}, tmp_path / "more", shards=1)
        path = Path(local.url) / "g2" / local.manifest("g2").shards[0].file
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        with pytest.raises(CorruptFile, match=r"of g2 has bytes 7 in the store"):
            fetch_shard(local, folder, "g2", 0, rate=GIB)
        assert FILE_NAME not in names(folder)
        assert not list(folder.glob(".*"))


class Breaking(DirectoryDataset):
    """A dataset whose store breaks off again and again."""

    def __init__(self, inner: DirectoryDataset, *, failures: int) -> None:
        self.address, self.folder, self.url = inner.address, inner.folder, inner.url
        self.failures = failures
        self.starts: list[int] = []

    def _break(self, least: int) -> None:
        if self.failures > least:
            self.failures -= 1
            raise StoreError("the store is away")

    def manifest(self, generation: str) -> Manifest:
        self._break(2)
        return super().manifest(generation)

    def read(self, generation: str, shard: ShardFile, start: int = 0) -> Iterator[bytes]:
        self.starts.append(start)
        for chunk in super().read(generation, shard, start):
            yield chunk[:5000]
            self._break(0)
            yield chunk[5000:]


class TestStore:
    def test_that_breaks_off_is_read_on_from_there(self, local: DirectoryDataset, tmp_path: Path) -> None:
        breaking = Breaking(local, failures=3)
        assert fetch_shard(breaking, tmp_path / "data", "g1", 0, rate=GIB, patience=5).outcome == "fetched"
        assert breaking.starts == [0, 5000, 10_000]
        with ShardReader(tmp_path / "data" / local.manifest("g1").shards[0].file) as shard:
            assert shard.meta.records == len(CONTENT)

    def test_that_stays_away_is_given_up(self, local: DirectoryDataset, tmp_path: Path) -> None:
        began = time.monotonic()
        with pytest.raises(StoreError, match="the store is away"):
            fetch_shard(Breaking(local, failures=1000), tmp_path / "data", "g1", 0, rate=GIB, patience=0.6)
        assert time.monotonic() - began > 0.2, "it was asked again before"

    def test_without_the_generation_is_asked_once(self, dataset: tuple[str, StoredDataset], tmp_path: Path) -> None:
        _, place = dataset
        began = time.monotonic()
        with pytest.raises(GenerationMissing, match="no generation g7"):
            fetch_shard(place, tmp_path / "data", "g7", 0, rate=GIB, patience=60)
        assert time.monotonic() - began < 20

    def test_that_denies_is_asked_once(
        self, local: DirectoryDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = 0

        def denied(*_: object) -> Manifest:
            nonlocal asked
            asked += 1
            raise StoreDenied("no")

        monkeypatch.setattr(local.__class__, "manifest", denied)
        with pytest.raises(StoreDenied):
            fetch_shard(local, tmp_path / "data", "g1", 0, rate=GIB, patience=60)
        assert asked == 1

    def test_that_denies_is_not_taken_for_the_folder(
        self, local: DirectoryDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Although the store is read while a file of the folder is written."""

        def denied(*_: object) -> Iterator[bytes]:
            with store_errors("cannot read"):
                raise PermissionError(errno.EACCES, "no")
            yield b""

        monkeypatch.setattr(local.__class__, "read", denied)
        with pytest.raises(StoreDenied):
            fetch_shard(local, tmp_path / "data", "g1", 0, rate=GIB, patience=0)

    def test_whose_object_is_damaged_leaves_nothing(
        self, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = new_bucket(server, monkeypatch)
        place = BucketDataset(bucket, ADDRESS)
        entry = publish(place, "g1", CONTENT, tmp_path, shards=1).shards[0]
        bucket.objects.put(f"{ADDRESS.path}/g1/{entry.file}", bytes(entry.bytes))
        with pytest.raises(CorruptFile, match="sha256"):
            fetch_shard(place, tmp_path / "data", "g1", 0, rate=GIB)
        assert names(tmp_path / "data") == []

    def test_that_has_lost_the_shard_is_asked_once_and_says_what_is_damaged(
        self, dataset: tuple[str, StoredDataset], tmp_path: Path
    ) -> None:
        _, place = dataset
        lost, other = place.manifest("g1").shards
        if isinstance(place, BucketDataset):
            place.bucket.objects.delete([f"{ADDRESS.path}/g1/{lost.file}"])
        else:
            (Path(place.url) / "g1" / lost.file).unlink()
        with pytest.raises(CorruptFile, match=f"{lost.file} of g1 is missing in "):
            fetch_shard(place, tmp_path / "data", "g1", 0, rate=GIB, patience=60)
        assert fetch_shard(place, tmp_path / "data", "g1", 1, rate=GIB).file == other.file, (
            "what is there can be served"
        )

    def test_reads_a_shard_from_the_middle(self, dataset: tuple[str, StoredDataset]) -> None:
        _, place = dataset
        shard = place.manifest("g1").shards[0]
        whole = b"".join(place.read("g1", shard))
        assert len(whole) == shard.bytes
        assert b"".join(place.read("g1", shard, 7000)) == whole[7000:]


class TestDisk:
    def test_a_fetch_is_no_faster_than_it_may_be(self, local: DirectoryDataset, tmp_path: Path) -> None:
        size = local.manifest("g1").shards[0].bytes
        assert fetch_shard(local, tmp_path / "data", "g1", 0, rate=size * 3).seconds >= 0.33

    def test_that_is_full_is_said_before_anything_is_fetched(
        self, local: DirectoryDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
        with pytest.raises(NotEnoughRoom, match="has 1 bytes free"):
            fetch_shard(local, tmp_path / "data", "g1", 0, rate=GIB)

    def test_a_shard_that_there_is_not(self, local: DirectoryDataset, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no shard 1 in g1: it has 0 to 0"):
            fetch_shard(local, tmp_path / "data", "g1", 1, rate=GIB)


class TestCommand:
    @pytest.mark.usefixtures("local")
    @pytest.mark.parametrize("given", [["team/things"], ["team/things", "--namespace", "team"]], ids=str)
    def test_a_dataset_may_be_named_with_its_namespace(self, tmp_path: Path, given: list[str]) -> None:
        address = ["--store", str(tmp_path / "store"), "--cluster-id", "c1", "--uid", "3f2b9c1e"]
        words = [*address, "--dataset", *given, "--generation", "g1", "--shard", "0", "--json", str(tmp_path / "data")]
        run = CliRunner().invoke(command, words, standalone_mode=False)
        assert run.exception is None, run.exception
        told = json.loads(run.stdout)
        assert (told["dataset"], told["outcome"]) == ("team/things", "fetched")

    def test_a_dataset_is_in_one_namespace(self, tmp_path: Path) -> None:
        words = arguments(str(tmp_path / "store"), tmp_path / "data", "--dataset", "other/things")
        run = CliRunner().invoke(command, words, standalone_mode=False)
        assert isinstance(run.exception, UsageError)
        assert "--dataset other/things is in the namespace other, and --namespace says team" in str(run.exception)
        assert json.loads(run.stdout)["exitCode"] == 2

    def test_a_dataset_without_its_namespace_before_the_slash_is_refused(self, tmp_path: Path) -> None:
        address = ["--store", str(tmp_path / "store"), "--generation", "g1", "--shard", "0", "--dataset", "/things"]
        run = CliRunner().invoke(command, [*address, str(tmp_path / "data")], standalone_mode=False)
        assert isinstance(run.exception, UsageError)
        assert "--dataset /things names no namespace" in str(run.exception)

    def test_a_failure_is_told_in_the_termination_log(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        words = arguments(str(tmp_path / "store"), tmp_path / "data", "--termination-log", str(log))
        run = CliRunner().invoke(command, words, standalone_mode=False)
        assert isinstance(run.exception, GenerationMissing)
        told = json.loads(log.read_bytes())
        assert (told["outcome"], told["reason"], told["exitCode"]) == ("failed", "GenerationMissing", 5)
        assert "has no generation g1" in told["message"]

    @pytest.mark.usefixtures("local")
    def test_a_pipe_gets_a_sentence_unless_json_is_asked_for(self, tmp_path: Path) -> None:
        words = arguments(str(tmp_path / "store"), tmp_path / "data")
        words.remove("--json")
        run = CliRunner().invoke(command, words, standalone_mode=False)
        assert run.exception is None, run.exception
        assert run.stdout == "shard-00000-of-00001.lmdb: fetched\n"

    def test_a_terminal_gets_of_a_failure_its_message_and_json_when_it_is_asked_for(self, tmp_path: Path) -> None:
        words = ["fetch", *arguments(str(tmp_path / "store"), tmp_path / "data")]
        words.remove("--json")
        code, out, error = run_at_terminal(*words)
        assert (code, out) == (5, b"")
        assert error.count(b"has no generation g1") == 1
        code, out, error = run_at_terminal(*words, "--json")
        assert (code, json.loads(out)["reason"]) == (5, "GenerationMissing")
        assert b"has no generation g1" in error

    def test_a_signal_ends_it_cleanly(self, local: DirectoryDataset, tmp_path: Path) -> None:
        folder, log = tmp_path / "data", tmp_path / "log"
        slowly = ["--rate", "4KiB", "--termination-log", str(log)]
        words = arguments(str(tmp_path / "store"), folder, *slowly)
        # With the least there is in the environment: what a pod has.
        with subprocess.Popen(
            [sys.executable, "-m", "lookupdb", "fetch", *words], env=dict(os.environ), stdout=subprocess.DEVNULL
        ) as process:
            until(lambda: list(folder.glob(".*.partial")), "it has begun")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        assert names(folder) == []
        assert json.loads(log.read_bytes())["reason"] == "Interrupted"
