"""The store: generations are whole or not there, claimed by one builder, and never leave their folder."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.buckets import new_bucket, s3_server
from support.gateways import fake_gateway, use_token
from support.generations import publish

from lookupdb import store
from lookupdb.errors import (
    CorruptFile,
    FolderDenied,
    GenerationExists,
    GenerationMissing,
    StoreDenied,
    StoreError,
    UsageError,
)
from lookupdb.manifest import Refusal, verify_shard_file
from lookupdb.store import StoreAddress, StoredDataset, directory, open_store
from lookupdb.store.bucket import Bucket, ObjectState
from lookupdb.store.bucket_dataset import BucketDataset, BucketStore
from lookupdb.store.generations import find_in_store
from lookupdb.store.sweep import prune
from support import gateways

ADDRESS = StoreAddress("local", "default", "things", "local")
CONTENT = {f"key-{number}": b"%d" % number for number in range(100)}


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["s3", "gateway"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    bucket: Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


@pytest.fixture
def s3_bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return new_bucket(s3_url, monkeypatch)


@pytest.fixture
def gateway_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        yield gateways.gateway_bucket(gateway.url)


REFUSAL = Refusal(("minRecords: expected at least 10 records, found 2", "two\nlines"), "of gates", "g0")


@pytest.fixture(params=["directory", "s3", "gateway"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> StoredDataset:
    if request.param != "directory":
        return BucketDataset(request.getfixturevalue(f"{request.param}_bucket"), ADDRESS)
    return open_store(str(tmp_path / "store")).dataset_at(ADDRESS)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


class TestGenerations:
    def test_an_empty_store_has_none(self, dataset: StoredDataset) -> None:
        assert dataset.generations() == ()
        assert next(reversed(dataset.generations()), None) is None
        assert dataset.next_generation() == "g1"

    def test_a_published_generation_is_listed_read_and_opened(self, dataset: StoredDataset, scratch: Path) -> None:
        made = publish(dataset, "g1", CONTENT, scratch)
        assert dataset.generations() == ("g1",)
        assert dataset.manifest("g1") == made
        for shard in made.shards:
            with dataset.shard("g1", shard, scratch) as path:
                verify_shard_file(path, shard)
        assert list(scratch.glob("*.lmdb")) == []

    def test_generations_are_in_order_of_their_numbers(self, dataset: StoredDataset, scratch: Path) -> None:
        for name in ("g10", "g9", "g2"):
            publish(dataset, name, {"a": b"1"}, scratch, shards=1)
        assert dataset.generations() == ("g2", "g9", "g10")
        assert next(reversed(dataset.generations()), None) == "g10"
        assert dataset.next_generation() == "g11"

    def test_a_generation_is_never_built_twice(self, dataset: StoredDataset, scratch: Path) -> None:
        publish(dataset, "g1", CONTENT, scratch)
        with pytest.raises(StoreError, match="g1 of default/things already exists"):
            dataset.claim("g1", scratch)
        assert dataset.generations() == ("g1",)

    def test_a_claim_left_without_publishing_leaves_nothing(self, dataset: StoredDataset, scratch: Path) -> None:
        publish(dataset, "g1", CONTENT, scratch)
        with dataset.claim("g2", scratch) as claim:
            (claim.folder / "shard-00000-of-00001.lmdb").write_bytes(b"half")
            assert dataset.next_generation() == "g3"
        assert dataset.generations() == ("g1",)
        assert dataset.next_generation() == "g2"
        assert list(scratch.iterdir()) == []

    def test_of_two_builders_of_one_generation_one_is_refused(self, dataset: StoredDataset, scratch: Path) -> None:
        other = _made(scratch / "other")
        if isinstance(dataset, BucketDataset):
            dataset.bucket.lease = 20.0  # a busy machine may keep the first from its heartbeat for some time
        with dataset.claim("g1", scratch), pytest.raises(StoreError, match="g1 of default/things is being built"):
            dataset.claim("g1", other)
        dataset.claim("g1", scratch).release()

    def test_a_generation_that_is_not_there(self, dataset: StoredDataset, scratch: Path) -> None:
        publish(dataset, "g1", {"a": b"1"}, scratch, shards=1)
        with pytest.raises(StoreError, match="no generation g7") as caught:
            dataset.manifest("g7")
        assert "it has: g1" in str(caught.value)

    def test_one_that_has_lost_a_shard_is_not_whole_and_not_built_over(
        self, dataset: StoredDataset, scratch: Path
    ) -> None:
        made = publish(dataset, "g1", CONTENT, scratch)
        publish(dataset, "g2", CONTENT, scratch)
        lose(dataset, "g1", made.shards[1].file)
        assert (dataset.generations(), tuple(dataset.take_inventory().damaged), dataset.published_generations()) == (
            ("g2",),
            ("g1",),
            ("g1", "g2"),
        )
        assert dataset.manifest("g1") == made
        with pytest.raises(CorruptFile, match=r"shard-00001\S+ is missing"):
            find_in_store(dataset, "g1").check_files()
        found = find_in_store(dataset, "g2")
        found.check_files()
        dataset.remove("g2")
        with pytest.raises(GenerationMissing):
            found.check_files()
        publish(dataset, "g2", CONTENT, scratch)
        with pytest.raises(CorruptFile, match=r"g1 of default/things .* is damaged: shard-00001\S+ is missing"):
            dataset.claim("g1", scratch)
        assert dataset.published_generations() == ("g1", "g2")

    def test_pruning_counts_whole_ones_only(self, dataset: StoredDataset, scratch: Path) -> None:
        for number in range(1, 6):
            (shard,) = publish(dataset, f"g{number}", {"a": b"1"}, scratch, shards=1).shards
            if number in (2, 4):
                lose(dataset, f"g{number}", shard.file)
        assert prune(dataset, 2) == ["g1", "g2"]
        assert (dataset.generations(), tuple(dataset.take_inventory().damaged)) == (("g3", "g5"), ("g4",))

    def test_removal_and_pruning_keep_what_is_protected(self, dataset: StoredDataset, scratch: Path) -> None:
        for number in range(1, 6):
            publish(dataset, f"g{number}", {"a": b"1"}, scratch, shards=1)
        assert prune(dataset, 2, protect={"g2"}) == ["g1", "g3"]
        assert dataset.generations() == ("g2", "g4", "g5")
        dataset.remove("g5")
        dataset.remove("g5")
        assert dataset.generations() == ("g2", "g4")

    def test_a_manifest_that_leads_out_of_its_generation_is_refused(
        self, dataset: StoredDataset, scratch: Path
    ) -> None:
        made = publish(dataset, "g1", {"a": b"1"}, scratch, shards=1)
        evil = replace(made, generation="g2", shards=(replace(made.shards[0], file="../../../etc/passwd"),))
        with dataset.claim("g2", scratch) as claim:
            if isinstance(dataset, BucketDataset):
                dataset.bucket.objects.put(f"{ADDRESS.path}/g2/manifest.json", evil.to_json())
            else:
                claim.publish(evil)
        with pytest.raises(CorruptFile, match=r"names the file '../../../etc/passwd'"):
            dataset.manifest("g2")

    def test_one_that_a_gate_has_refused_is_whole_and_none_that_may_serve(
        self, dataset: StoredDataset, scratch: Path
    ) -> None:
        publish(dataset, "g1", CONTENT, scratch)
        made = publish(dataset, "g2", CONTENT, scratch, refused=REFUSAL)
        assert (dataset.generations(), dataset.refused_generations()) == (("g1",), ("g2",))
        assert (dataset.published_generations(), tuple(dataset.take_inventory().damaged)) == (("g1", "g2"), ())
        assert (next(reversed(dataset.generations()), None), dataset.refused_generations()) == ("g1", ("g2",))
        assert dataset.manifest("g2") == made
        assert made.refused == REFUSAL
        with pytest.raises(GenerationExists):
            dataset.claim("g2", scratch)

    def test_an_admitted_one_is_like_any_other_and_says_why_it_was_refused(
        self, dataset: StoredDataset, scratch: Path
    ) -> None:
        made = publish(dataset, "g1", CONTENT, scratch, refused=REFUSAL)
        admitted = replace(made, refused=None, overridden=REFUSAL.reasons)
        for _ in range(2):
            assert dataset.admit("g1") == admitted
            assert (dataset.manifest("g1"), dataset.generations()) == (admitted, ("g1",))
        publish(dataset, "g2", CONTENT, scratch)
        with pytest.raises(UsageError, match=r"g2 of .* passed its gates: there is nothing to override"):
            dataset.admit("g2")
        with pytest.raises(GenerationMissing):
            dataset.admit("g3")

    def test_one_that_was_removed_meanwhile_is_not_brought_back_by_admitting_it(
        self, dataset: StoredDataset, scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = publish(dataset, "g1", CONTENT, scratch, refused=REFUSAL)
        dataset.remove("g1")
        with monkeypatch.context() as patch:
            patch.setattr(type(dataset), "manifest", lambda *_: made)
            with pytest.raises(GenerationMissing):
                dataset.admit("g1")
        assert dataset.published_generations() == ()

    def test_one_that_another_has_admitted_meanwhile_is_not_admitted_with_other_reasons(
        self, dataset: StoredDataset, scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = publish(dataset, "g1", CONTENT, scratch, refused=REFUSAL)
        stale = replace(made, refused=replace(REFUSAL, reasons=("another",)))
        with pytest.raises(StoreError, match="was changed by another process"):
            dataset._replace_manifest(stale, replace(stale, refused=None))
        assert dataset.manifest("g1") == made


def lose(dataset: StoredDataset, generation: str, file: str) -> None:
    """The store has lost ``file``."""
    if isinstance(dataset, BucketDataset):
        dataset.bucket.objects.delete([f"{dataset.address.path}/{generation}/{file}"])
    else:
        (Path(dataset.url) / generation / file).unlink()


class TestDirectory:
    def test_it_is_laid_out_as_documented(self, tmp_path: Path, scratch: Path) -> None:
        dataset = open_store(str(tmp_path / "store"), "c1").dataset_at(
            StoreAddress("c1", "team", "things", "3f2b9c1e-77aa")
        )
        publish(dataset, "g1", CONTENT, scratch, shards=2)
        found = sorted(
            str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()
        )
        assert found == [
            "c1/team/things-3f2b9c1e/g1/manifest.json",
            "c1/team/things-3f2b9c1e/g1/shard-00000-of-00002.lmdb",
            "c1/team/things-3f2b9c1e/g1/shard-00001-of-00002.lmdb",
        ]
        assert [str(one) for one in open_store(str(tmp_path / "store"), "c1").addresses()] == ["team/things"]
        assert open_store(str(tmp_path / "store"), "c2").addresses() == ()

    def test_what_a_killed_builder_left_goes_with_the_next_claim(self, tmp_path: Path, scratch: Path) -> None:
        script = (
            "import sys, time; from pathlib import Path; from lookupdb.store import StoreAddress, open_store\n"
            "address = StoreAddress('local', 'default', 'things', 'local')\n"
            "claim = open_store(sys.argv[1]).dataset_at(address).claim('g1', Path('.'))\n"
            "(claim.folder / 'half').write_bytes(b'x'); print(flush=True); time.sleep(60)"
        )
        dataset = open_store(str(tmp_path / "store")).dataset_at(ADDRESS)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "store")], stdout=subprocess.PIPE
        ) as builder:
            assert builder.stdout
            builder.stdout.readline()
            with pytest.raises(StoreError, match="is being built by another process"):
                dataset.claim("g1", scratch)
            builder.send_signal(signal.SIGKILL)
        assert dataset.generations() == ()
        publish(dataset, "g2", CONTENT, scratch)
        assert [path.name for path in Path(dataset.url).iterdir()] == ["g2"]

    def test_an_interrupted_removal_is_completed_by_a_build_of_that_name(self, tmp_path: Path, scratch: Path) -> None:
        dataset = open_store(str(tmp_path / "store")).dataset_at(ADDRESS)
        publish(dataset, "g1", CONTENT, scratch)
        (Path(dataset.url) / "g1" / "manifest.json").unlink()
        assert dataset.generations() == ()
        publish(dataset, "g1", CONTENT, scratch)
        assert dataset.generations() == ("g1",)

    def test_a_file_url_is_a_directory(self, tmp_path: Path) -> None:
        assert (
            open_store(f"file://{tmp_path}/a%20b").dataset_at(ADDRESS).url
            == f"{tmp_path}/a b/local/default/things-local"
        )

    def test_the_scheme_of_a_url_may_be_in_capitals(self) -> None:
        assert open_store("S3://Bucket/a").url == "s3://Bucket/a"

    def test_it_needs_nothing_that_speaks_to_a_gateway(self, tmp_path: Path) -> None:
        """Otherwise each build and each `lookupdb up` would import it first."""
        program = "import sys; from lookupdb.store import open_store; open_store(sys.argv[1]); print(*sys.modules)"
        command = [sys.executable, "-c", program, str(tmp_path)]
        loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert "lookupdb.store.directory" in loaded
        assert {"urllib3", "lookupdb.store.gateway"}.isdisjoint(loaded)

    def test_a_store_that_cannot_be_written(self, tmp_path: Path, scratch: Path) -> None:
        (tmp_path / "store").write_text("a file, not a folder")
        with pytest.raises(StoreError, match="cannot write to the store"):
            open_store(str(tmp_path / "store")).dataset_at(ADDRESS).claim("g1", scratch)

    @pytest.mark.parametrize("method", ["is_file", "exists"])
    def test_one_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone(
        self, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        dataset = open_store(str(tmp_path / "store")).dataset_at(ADDRESS)
        (shard, *_) = publish(dataset, "g1", CONTENT, scratch).shards

        def deny(path: Path) -> bool:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(Path, method, deny)
        questions: dict[str, list[Callable[[], object]]] = {
            "is_file": [dataset.published_generations, dataset.unfinished_generations],
            "exists": [
                lambda: dataset.shard("g1", shard, scratch),
                lambda: list(dataset.read("g1", shard)),
                dataset.free_bytes,
                dataset.find_write_obstacle,
            ],
        }
        for question in questions[method]:
            with pytest.raises(StoreDenied, match="Permission denied"):
                question()


class TestObjects:
    def test_a_scratch_folder_that_may_not_be_written_to_is_told_and_not_the_store(
        self, bucket: Bucket, scratch: Path
    ) -> None:
        dataset, folder = BucketDataset(bucket, ADDRESS), Path("/sys")  # where not even root may create anything
        (shard, *_) = publish(dataset, "g1", CONTENT, scratch).shards
        with pytest.raises(FolderDenied, match=f" to {folder}: "), dataset.shard("g1", shard, folder):
            pass
        with pytest.raises(FolderDenied, match=f"cannot write to the scratch folder {folder}"):
            dataset.claim("g2", folder)

    def test_a_dead_builders_claim_is_taken_over(self, bucket: Bucket, scratch: Path) -> None:
        path = f"{ADDRESS.path}/g1"
        bucket.objects.put(f"{path}/claim.json", b"{}")
        bucket.objects.put(f"{path}/shard-00000-of-00009.lmdb", b"left over")
        made = publish(BucketDataset(bucket, ADDRESS), "g1", CONTENT, scratch, shards=1)
        assert sorted(bucket.files(path)) == ["manifest.json", made.shards[0].file]

    def test_a_builder_that_stood_still_and_lost_its_claim_publishes_nothing(
        self, bucket: Bucket, scratch: Path
    ) -> None:
        bucket.heartbeat = 3600.0  # it stands still
        dataset = BucketDataset(bucket, ADDRESS)
        with dataset.claim("g1", scratch) as claim:
            bucket.objects.put(f"{ADDRESS.path}/g1/claim.json", b"somebody else")
            made = publish(dataset, "g2", CONTENT, _made(scratch / "other"))
            for shard in made.shards:
                with dataset.shard("g2", shard, scratch) as copy:
                    (claim.folder / shard.file).write_bytes(copy.read_bytes())
            with pytest.raises(StoreError, match="taken over by another process"):
                claim.publish(replace(made, generation="g1"))
        assert dataset.generations() == ("g2",)
        assert "claim.json" in bucket.files(f"{ADDRESS.path}/g1")

    def test_a_damaged_object_is_never_opened(self, bucket: Bucket, scratch: Path) -> None:
        dataset = BucketDataset(bucket, ADDRESS)
        shard = publish(dataset, "g1", CONTENT, scratch, shards=1).shards[0]
        bucket.objects.put(f"{ADDRESS.path}/g1/{shard.file}", bytes(shard.bytes))
        with pytest.raises(CorruptFile, match="checksum"), dataset.shard("g1", shard, scratch):
            pass
        assert list(scratch.iterdir()) == []

    def test_a_manifest_that_is_listed_and_gone_is_missing(
        self, bucket: Bucket, scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = BucketDataset(bucket, ADDRESS)
        for generation in ("g1", "g2"):
            publish(dataset, generation, CONTENT, _made(scratch / generation))
        read = bucket.read

        def lose(path: str) -> ObjectState:
            return ObjectState(None, {}) if path.endswith("g2/manifest.json") else read(path)

        monkeypatch.setattr(bucket, "read", lose)
        with pytest.raises(GenerationMissing, match="has no generation g2") as told:
            BucketDataset(bucket, ADDRESS).manifest("g2")
        assert told.value.hint == "it has: g1"

    def test_datasets_are_listed(self, bucket: Bucket, scratch: Path) -> None:
        publish(BucketDataset(bucket, ADDRESS), "g1", {"a": b"1"}, scratch)
        assert BucketStore(bucket.url, "local", bucket).namespaces() == ("default",)
        assert BucketStore(bucket.url, "local", bucket).addresses_in("default") == (ADDRESS,)

    def test_a_bucket_that_is_not_there(self, s3_bucket: Bucket) -> None:
        missing = Bucket("s3://no-such-bucket")
        with pytest.raises(StoreError, match="cannot list s3://no-such-bucket"):
            BucketDataset(missing, ADDRESS).generations()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


class TestNames:
    @pytest.mark.parametrize("part", ["", "..", "a/b", "A", "-a", "a" * 64, "a\n"])
    def test_what_is_no_name_never_becomes_a_path(self, part: str) -> None:
        for parts in ((part, "n", "d"), ("c", part, "d"), ("c", "n", part)):
            with pytest.raises(UsageError):
                StoreAddress(*parts, "u")
        assert StoreAddress.parse("c", "n", part) is None

    @pytest.mark.parametrize("name", ["", "g0", "../g1", "g1/..", "latest", "g1234567890"])
    def test_what_is_no_generation_never_becomes_a_path(self, name: str, tmp_path: Path) -> None:
        dataset = open_store(str(tmp_path)).dataset_at(ADDRESS)
        for use in (dataset.manifest, dataset.remove, dataset.local_path, lambda name: dataset.claim(name, tmp_path)):
            with pytest.raises(UsageError, match="a generation is called"):
                use(name)

    def test_an_address_is_read_back(self) -> None:
        assert StoreAddress.parse("c", "n", "a-b-3f2b9c1e") == StoreAddress("c", "n", "a-b", "3f2b9c1e")

    def test_a_folder_that_a_failed_first_build_left_is_no_dataset(self, tmp_path: Path) -> None:
        place = store.open_store(str(tmp_path))
        (tmp_path / "local" / "default" / "failed-local").mkdir(parents=True)
        assert place.addresses() == ()

    @pytest.mark.parametrize(
        "url",
        ["", "ftp://host/path", "http://host/path", "s3://", "gs://", "az:///path", "s3://[x", "file://[x"]
        + ["s3:bucket", "s3:/bucket", "s3//bucket", "gs:x", "file:x", "S3:/bucket", "File:/x", "HTTPS:/x"]
        + ["file://data/x", "file://./x", "file:///x?y", "file:///x#y", "s3://bucket/x?y", "s3://bucket/#"],
    )
    def test_what_is_no_store(self, url: str) -> None:
        with pytest.raises(UsageError, match="is not a store"):
            store.open_store(url)


def test_a_file_of_another_file_system_is_copied_but_not_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        def link(_self: Path, target: Path) -> None:
            raise OSError(number, os.strerror(number), str(target))

        monkeypatch.setattr(Path, "hardlink_to", link)

    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        directory._link_or_copy(source, target)
    fail(errno.EXDEV)
    directory._link_or_copy(source, target)
    assert target.read_bytes() == b"content"
