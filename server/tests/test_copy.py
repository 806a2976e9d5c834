"""`lookupdb copy`: whole generations into another store or cluster, verified, retained, and adopted there."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from support.buckets import create_bucket, new_bucket, s3_server, use_server, variables
from support.generations import publish
from support.ports import free_port

from lookupdb.cli import cli
from lookupdb.errors import CorruptFile, NotEnoughRoom, StoreError, StoreUnreachable, UsageError
from lookupdb.manifest import Refusal
from lookupdb.store import StoreAddress, StoredDataset, bucket_dataset, directory, open_store
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import CLAIM, BucketDataset
from lookupdb.store.dataset import write_announcement
from lookupdb.store.generations import copy_generation
from lookupdb.store.objects import PutMode, Version
from lookupdb.store.sweep import MARK_NOTE, RETAIN_NOTE, LiveDataset, Sweep

pytestmark = pytest.mark.long

UID = "0f6b1c2d"
CONTENT = {f"key-{number}": b"%d" % number for number in range(100)}


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


class Stores:
    """A source with two generations of two datasets in cluster c1, and an empty target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source_url, self.target_url = str(folder / "source"), str(folder / "target")
        for name in ("people", "places"):
            for generation in ("g1", "g2"):
                scratch = folder / f"{name}-{generation}"
                scratch.mkdir()
                publish(self.source(name), generation, {**CONTENT, name: generation.encode()}, scratch)

    def source(self, name: str = "people") -> StoredDataset:
        return open_store(self.source_url, "c1").dataset_at(StoreAddress("c1", "team", name, UID))

    def target(self, name: str = "people", cluster: str = "c2") -> StoredDataset:
        return open_store(self.target_url, cluster).dataset_at(StoreAddress(cluster, "team", name, UID))

    def copy(self, *arguments: str, to: str = "c2") -> Any:
        fixed = ("--cluster-id", "c1", "--to-cluster-id", to, "--progress", "none", "--scratch", str(self.folder))
        return CliRunner().invoke(
            cli, ["copy", self.source_url, self.target_url, *fixed, *arguments], standalone_mode=False
        )

    def check(self, name: str, generation: str) -> None:
        original, copied = self.source(name).manifest(generation), self.target(name).manifest(generation)
        assert [replace(shard, file="") for shard in copied.shards] == [
            replace(shard, file="") for shard in original.shards
        ]
        assert replace(copied, shards=()) == replace(original, shards=())
        for shard in copied.shards:
            with self.target(name).verified_shard(generation, shard, self.folder):
                pass


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_copies_the_newest_of_every_dataset_and_says_how_to_adopt_it(stores: Stores) -> None:
    result = stores.copy()
    assert result.exception is None
    for name in ("people", "places"):
        assert stores.target(name).generations() == ("g2",)
        stores.check(name, "g2")
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all(
        "g2 copied (101 records, 3 shards); spec.adopt: {uid: 'local', generation: g2}" in line for line in lines
    )


def test_a_scratch_folder_that_may_not_be_written_to_is_reported_and_not_the_store(stores: Stores) -> None:
    error = stores.copy("--scratch", "/sys").exception  # where nobody may make anything, root neither
    assert "cannot write to the scratch folder /sys: " in str(error)
    assert "grant this user access, or use another folder" in str(error)


@pytest.mark.parametrize("source", ["directory", "s3"])
def test_passes_from_one_kind_of_store_to_another(
    stores: Stores, s3_url: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(s3_url, monkeypatch)
    bucket = create_bucket(s3_url)
    stores.target_url = bucket
    assert stores.copy().exception is None
    stores.check("people", "g2")
    if source == "s3":
        stores.source_url, stores.target_url = bucket, create_bucket(s3_url)
        CliRunner().invoke(cli, ["copy", bucket, stores.target_url, "--cluster-id", "c2"], standalone_mode=False)
        target = stores.target()
        assert target.generations() == ("g2",)


def test_within_one_bucket_another_cluster_gets_it(
    stores: Stores, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(s3_url, monkeypatch)
    stores.target_url = create_bucket(s3_url)
    stores.copy()
    stores.source_url = stores.target_url
    result = CliRunner().invoke(
        cli,
        ["copy", stores.source_url, stores.target_url, "--cluster-id", "c2", "--to-cluster-id", "c3", "--json"],
        standalone_mode=False,
    )
    assert [json.loads(line)["outcome"] for line in result.stdout.splitlines()] == ["copied", "copied"]
    assert stores.target(cluster="c3").generations() == ("g2",)


def test_what_is_whole_already_is_not_copied_again(stores: Stores) -> None:
    stores.copy("--dataset", "people")
    before = sorted((path, path.stat().st_mtime_ns) for path in stores.folder.glob("target/**/*.lmdb"))
    assert before
    outcomes = [json.loads(line)["outcome"] for line in stores.copy("--json").stdout.splitlines()]
    assert outcomes == ["present", "copied"]
    assert all(path.stat().st_mtime_ns == changed for path, changed in before)


def test_one_dataset_and_one_generation_can_be_chosen(stores: Stores) -> None:
    assert stores.copy("--dataset", "team/people", "--generation", "g1").exception is None
    assert (stores.target("people").generations(), stores.target("places").generations()) == (("g1",), ())
    assert isinstance(stores.copy("--generation", "g1").exception, UsageError)
    unknown = stores.copy("--dataset", "persons").exception
    assert isinstance(unknown, UsageError)
    assert f"it has: team/people ({UID}), team/places ({UID});" in str(unknown.hint)
    assert isinstance(stores.copy("--uid", "ffffffff", "--dataset", "people").exception, UsageError)
    missing = stores.copy("--dataset", "people", "--generation", "g9").exception
    assert isinstance(missing, StoreError)
    assert "g9" in missing.message


def test_the_sweep_of_the_other_cluster_spares_it_until_it_is_adopted(stores: Stores) -> None:
    stores.copy("--dataset", "people")
    target = stores.target()
    assert target.read_note(RETAIN_NOTE) is not None
    for _ in range(2):
        list(Sweep({}, grace=0, now=2e9, dry=False).run(iter([target])))
    assert target.generations() == ("g2",)
    living = {target.address: LiveDataset(target.address, 1, frozenset({"g2"}))}
    list(Sweep(living, grace=0, now=2e9, dry=False).run(iter([target])))
    assert target.read_note(RETAIN_NOTE) is None, "a dataset that lives has its own policy"


def test_a_copy_that_was_not_noted_is_noted_when_it_is_run_again(stores: Stores) -> None:
    stores.copy("--dataset", "people")
    stores.target().write_note(RETAIN_NOTE, None)
    stores.copy("--dataset", "people")
    assert stores.target().read_note(RETAIN_NOTE) is not None


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_it_is_noted_and_no_longer_marked_before_anything_is_there(
    stores: Stores, s3_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep removes what is published, marked long ago and without a retain note. A copy is never in that state."""
    if kind == "s3":
        use_server(s3_url, monkeypatch)
        stores.target_url = create_bucket(s3_url)
    (stores.folder / "old").mkdir()
    target = stores.target()
    publish(target, "g1", CONTENT, stores.folder / "old")
    list(Sweep({}, grace=0, now=0, dry=False).run(iter([target])))
    assert target.read_note(MARK_NOTE) is not None

    def sweep(_bytes: int) -> None:
        assert (target.read_note(RETAIN_NOTE) is not None, target.read_note(MARK_NOTE)) == (True, None)
        list(Sweep({}, grace=86400, now=time.time(), dry=False).run(iter([target])))

    copy_generation(stores.source(), stores.target(), "g2", stores.folder, sweep)
    assert target.generations() == ("g1", "g2")


def test_a_copy_that_is_killed_when_all_is_decided_is_completed_by_the_next(
    stores: Stores, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, address = new_bucket(s3_url, monkeypatch), stores.target().address
    put = bucket.objects.put

    def die_decided(path: str, body: bytes, mode: PutMode = None) -> Version:
        version = put(path, body, mode)
        if path.endswith(CLAIM) and b'"manifest":null' not in body:
            raise KeyboardInterrupt
        return version

    monkeypatch.setattr(bucket.objects, "put", die_decided)
    with pytest.raises(KeyboardInterrupt):
        copy_generation(stores.source(), BucketDataset(bucket, address), None, stores.folder, lambda _bytes: None)
    stores.target_url = bucket.url
    assert stores.target().read_note(RETAIN_NOTE) is not None, "whoever completes it"
    result = stores.copy("--dataset", "people", "--json")
    assert (result.exception, json.loads(result.stdout)["outcome"]) == (None, "present")
    stores.check("people", "g2")


def test_a_damaged_one_is_reported_and_the_others_are_copied(stores: Stores) -> None:
    path = next((stores.folder / "source").glob("c1/team/people-*/g2/*.lmdb"))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = stores.copy()
    assert isinstance(result.exception, StoreError)
    assert f"team/people ({UID})" in result.exception.message
    assert (stores.target("people").published_generations(), stores.target("places").generations()) == ((), ("g2",))
    with pytest.raises(CorruptFile):
        copy_generation(stores.source(), stores.target(), "g2", stores.folder, lambda _bytes: None)


def test_where_the_newest_is_damaged_an_older_one_is_copied_and_that_is_said(stores: Stores) -> None:
    next((stores.folder / "source").glob("c1/team/people-*/g2/*.lmdb")).unlink()
    result = stores.copy()
    assert isinstance(result.exception, StoreError)
    assert f"team/people ({UID}): g2 in " in result.exception.message
    copied, damaged, other = result.stdout.splitlines()
    assert ": g1 copied" in copied
    assert "is damaged and was not copied: the target has the older g1" in damaged
    assert ": g2 copied" in other
    lines = [json.loads(line) for line in stores.copy("--json", "--dataset", "people").stdout.splitlines()]
    assert [(line["outcome"], line.get("generations")) for line in lines] == [("present", None), ("damaged", ["g2"])]
    assert stores.copy("--dataset", "people", "--generation", "g1").exception is None, "it was chosen"


def test_an_older_one_that_is_damaged_is_no_matter(stores: Stores) -> None:
    next((stores.folder / "source").glob("c1/team/people-*/g1/*.lmdb")).unlink()
    assert stores.copy().exception is None


@pytest.mark.parametrize("damaged", ["*.lmdb", "manifest.json"])
def test_what_is_damaged_in_the_target_stays_and_what_to_do_is_said(stores: Stores, damaged: str) -> None:
    stores.copy("--dataset", "people")
    path = next((stores.folder / "target").glob(f"c2/team/people-*/g2/{damaged}"))
    path.unlink()
    if damaged == "manifest.json":
        path.write_text("{}")
    left = sorted(path.parent.iterdir())
    result = stores.copy("--dataset", "people")
    assert isinstance(result.exception, StoreError)
    assert "the target's g2 is damaged" in result.exception.message
    assert f"remove {path.parent} and copy again" in result.exception.message
    assert sorted(path.parent.iterdir()) == left
    shutil.rmtree(path.parent)
    assert stores.copy("--dataset", "people").exception is None
    stores.check("people", "g2")


def test_one_that_finds_no_room_is_reported_and_the_others_are_copied(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = directory._link_or_copy

    def fill(source: Path, target: Path) -> None:
        if "people" in str(source):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(directory, "_link_or_copy", fill)
    result = stores.copy()
    assert isinstance(result.exception, NotEnoughRoom)
    assert f"team/people ({UID}): cannot copy " in result.exception.message
    assert "No space left" in result.stdout.splitlines()[0]
    assert (stores.target("people").generations(), stores.target("places").generations()) == ((), ("g2",))
    left = [path.name for path in Path(stores.target("people").url).iterdir()]
    assert left == [RETAIN_NOTE], "a sweep removes it"


def test_one_that_meets_damage_besides_lacks_more_than_room(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    real = directory._link_or_copy

    def fill(source: Path, target: Path) -> None:
        if "people" in str(source):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(directory, "_link_or_copy", fill)
    manifest = Path(stores.source("places").url) / "g2" / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(b"{")
    result = stores.copy()
    assert isinstance(result.exception, StoreError)
    assert "No space left" in result.exception.message
    assert "g2 in" in result.exception.message


class TestRetained:
    def test_what_was_published_without_an_answer_is_retained(
        self, stores: Stores, s3_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = BucketDataset(new_bucket(s3_url, monkeypatch), stores.target().address)
        complete = bucket_dataset.complete_publication

        def lose_answer(bucket: Bucket, prefix: str, manifest: bytes) -> None:
            complete(bucket, prefix, manifest)
            raise StoreUnreachable("no answer")

        monkeypatch.setattr(bucket_dataset, "complete_publication", lose_answer)
        with pytest.raises(StoreUnreachable):
            copy_generation(stores.source(), target, None, stores.folder, lambda _bytes: None)
        assert target.generations() == ("g2",)
        assert target.read_note(RETAIN_NOTE) is not None

    def test_a_copy_whose_note_was_removed_while_nothing_was_there_notes_it_again(self, stores: Stores) -> None:
        target = stores.target()

        def remove_note(_bytes: int) -> None:
            target.write_note(RETAIN_NOTE, None)

        copy_generation(stores.source(), target, "g2", stores.folder, remove_note)
        assert target.read_note(RETAIN_NOTE) is not None


def test_a_scratch_disk_that_is_full_is_reported(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", fill)
    result = stores.copy()
    assert isinstance(result.exception, NotEnoughRoom)
    assert result.exception.message.count("No space left") == 2


def test_another_generation_of_that_number_is_never_replaced(stores: Stores) -> None:
    (stores.folder / "other").mkdir()
    publish(stores.target(), "g2", {"other": b"1"}, stores.folder / "other")
    before = stores.target().manifest("g2")
    result = stores.copy("--dataset", "people")
    assert isinstance(result.exception, StoreError)
    assert "has another g2" in result.exception.message
    assert stores.target().manifest("g2") == before


def test_the_announced_one_is_copied_and_nothing_in_its_place(stores: Stores) -> None:
    write_announcement(stores.source(), UID, "g1", 1, "2026-11-20T02:04:00Z")
    assert stores.copy("--dataset", "people").exception is None
    assert stores.target().generations() == ("g1",)
    write_announcement(stores.source(), UID, "g3", 2, "2026-11-20T02:04:00Z")
    lost = stores.copy("--dataset", "people").exception
    assert isinstance(lost, StoreError)
    assert (
        "has no whole g3 to copy (it has: g1, g2; by default the one that active.json announces is copied)"
        in lost.message
    )


def test_a_refused_one_is_not_chosen_by_itself(stores: Stores) -> None:
    (stores.folder / "refused").mkdir()
    publish(stores.source(), "g3", CONTENT, stores.folder / "refused", refused=Refusal(("a gate",), "gates", "g2"))
    stores.copy("--dataset", "people")
    assert stores.target().generations() == ("g2",)


def test_a_store_is_not_copied_onto_itself(stores: Stores) -> None:
    stores.target_url = stores.source_url
    assert isinstance(stores.copy(to="c1").exception, UsageError)


def test_source_and_target_may_have_credentials_of_their_own(
    stores: Stores, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(s3_url, monkeypatch)
    stores.target_url = create_bucket(s3_url)
    stores.copy()
    target = create_bucket(s3_url)
    for name, value in variables(s3_url).items():
        monkeypatch.setenv(f"LOOKUPDB_STORE_{name}", value)
        monkeypatch.setenv(f"LOOKUPDB_SOURCE_STORE_{name}", value)
        monkeypatch.delenv(name)
    arguments = ["copy", stores.target_url, target, "--cluster-id", "c2", "--store-wait", "0", "--progress", "none"]
    for whose in ("STORE", "SOURCE_STORE"):
        monkeypatch.setenv(f"LOOKUPDB_{whose}_AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        assert isinstance(CliRunner().invoke(cli, arguments, standalone_mode=False).exception, StoreUnreachable)
        monkeypatch.setenv(f"LOOKUPDB_{whose}_AWS_ENDPOINT_URL", s3_url)
    assert CliRunner().invoke(cli, arguments, standalone_mode=False).exception is None
    stores.target_url = target
    assert stores.target().generations() == ("g2",)


@pytest.mark.parametrize("to", ["c2", "c3"])
def test_one_url_behind_two_endpoints_is_two_stores(
    stores: Stores, s3_url: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(s3_url, monkeypatch)
    bucket = stores.target_url = create_bucket(s3_url)
    stores.copy()
    with other_server() as url:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{urlsplit(bucket).netloc}", method="PUT")).close()
        for name, value in variables(s3_url).items():
            monkeypatch.setenv(f"LOOKUPDB_SOURCE_STORE_{name}", value)
        use_server(url, monkeypatch)
        arguments = ["copy", bucket, bucket, "--cluster-id", "c2", "--to-cluster-id", to, "--progress", "none"]
        assert CliRunner().invoke(cli, arguments, standalone_mode=False).exception is None
        target = stores.target(cluster=to)
        for shard in target.manifest("g2").shards:
            with target.verified_shard("g2", shard, stores.folder):
                pass


@contextlib.contextmanager
def other_server() -> Iterator[str]:
    """Run it in a process of its own: all servers of one process share their buckets."""
    code = """import sys; from support.buckets import s3_server
with s3_server() as url:
    print(url, flush=True)
    sys.stdin.read()"""
    folder = str(Path(__file__).parent)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def test_the_same_bucket_with_other_credentials_is_not_asked_to_copy_by_itself(
    stores: Stores, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(s3_url, monkeypatch)
    bucket = create_bucket(s3_url)
    one, same = open_store(bucket), open_store(f"{bucket}/")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    other = open_store(bucket)
    assert one.identity == same.identity != other.identity
    shard = stores.source().manifest("g2").shards[0]
    dataset = one.dataset_at(stores.source().address)
    assert dataset.object_path("g2", shard, same.identity) is not None
    assert dataset.object_path("g2", shard, other.identity) is None


def test_nothing_to_copy_is_no_success(stores: Stores) -> None:
    arguments = ["copy", stores.source_url, stores.target_url, "--cluster-id", "c7"]
    error = CliRunner().invoke(cli, arguments, standalone_mode=False).exception
    assert isinstance(error, UsageError)
    assert "has nothing of cluster c7" in error.message
