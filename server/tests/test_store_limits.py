"""Objects that lookupdb did not write cost readers little memory: they are rejected first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.buckets import mark_folder, new_bucket, s3_server
from support.generations import publish
from support.sweeps import HOUR, Clock, Place, run, swept

from lookupdb.errors import CorruptFile, StoreError
from lookupdb.manifest import FILE_NAME, Manifest, Refusal
from lookupdb.store import StoreAddress
from lookupdb.store.bucket import Bucket, ObjectState, ObstoreObjects
from lookupdb.store.bucket_dataset import BucketDataset, _read_member
from lookupdb.store.objects import MAX_CONDITIONAL_BYTES, folder_names
from lookupdb.store.sweep import MARK_NOTE

pytest_plugins = ["support.sweep_fixtures"]

DENSE = b"[],"
"""Three bytes that take 64 in memory."""


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return new_bucket(s3_url, monkeypatch)


@pytest.fixture
def dataset(bucket: Bucket) -> BucketDataset:
    return BucketDataset(bucket, StoreAddress("c1", "team", "people", "3f2b9c1e"))


@pytest.fixture
def s3_place(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path, bucket.url, bucket)
    monkeypatch.setattr("lookupdb.store.open_store", lambda _url, cluster: made.open(cluster))
    return made


def test_an_object_that_is_too_large_is_refused_before_its_bytes_come(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Announced:
        meta = {"size": MAX_CONDITIONAL_BYTES + 1, "e_tag": "x", "version": None}

        def bytes(self) -> bytes:
            raise AssertionError("it was read")

    monkeypatch.setattr("lookupdb.store.bucket.obstore.get", lambda _store, _path: Announced())
    with pytest.raises(CorruptFile, match=f"x/swept.json: it has {MAX_CONDITIONAL_BYTES + 1} bytes, expected at most"):
        bucket.read("x/swept.json")


@pytest.mark.parametrize("text", [b'{"a":[' + DENSE * 200_000 + b"0]}", b"[" + b"0," * 400_000 + b"0]"])
def test_json_of_many_small_parts_is_no_manifest_and_no_claim(text: bytes) -> None:
    with pytest.raises(CorruptFile, match="too many parts"):
        Manifest.from_json(text, "it")
    claim = b'{"owner":"x",' + text[1:] if text.startswith(b"{") else text
    assert _read_member(ObjectState(claim, {}), "owner") is None


def test_a_manifest_of_many_source_files_is_one(
    dataset: BucketDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb.manifest._MIN_PARTS", 1000)
    made = json.loads(publish(dataset, "g1", {"a": b"1"}, tmp_path, shards=1).to_json())
    made["source"] = [{"url": "", "bytes": 0, "etag": None, "modified": None}] * 1200
    assert len(Manifest.from_json(json.dumps(made, indent=2).encode(), "it").source) == 1200


def test_a_manifest_that_nobody_could_read_is_not_published(
    dataset: BucketDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookupdb.store.bucket_dataset.MAX_CONDITIONAL_BYTES", 500)
    with pytest.raises(StoreError, match=r"its manifest takes [0-9]+ bytes of the claim, expected at most 500"):
        publish(dataset, "g1", {"a": b"1"}, tmp_path, shards=1)
    assert dataset.bucket.files(dataset.address.path) == {}


def test_an_inventory_keeps_no_manifest(dataset: BucketDataset, tmp_path: Path) -> None:
    for name, refused in (("g1", None), ("g2", Refusal(("no",), "", "g1")), ("g10", None), ("g3", None)):
        folder = tmp_path / name
        folder.mkdir()
        publish(dataset, name, {"a": b"1"}, folder, shards=1, refused=refused)
    dataset.bucket.objects.put(f"{dataset.address.path}/g3/{FILE_NAME}", b"{}")
    other = BucketDataset(dataset.bucket, dataset.address)
    found = other.take_inventory()
    assert (found.usable, found.refused, found.damaged) == (["g1", "g10"], ["g2"], ["g3"])
    assert not other._manifests


def test_folders_are_those_of_what_is_in_them() -> None:
    """The folder's own marker, which consoles of stores make, is listed without the slash behind it."""
    paths = (
        "c1/team",
        "c1/team/a-1/g1/x",
        "c1/team/a-1/g2/y",
        "c1/team/b-2/g1/x",
        "c1/team/note",
        "c1/team-b/c-3/g1/x",
    )
    assert list(folder_names(({"path": path} for path in paths), "c1/team")) == ["a-1", "b-2"]


def test_the_marker_of_a_folder_is_no_remains_of_a_build(
    s3_url: str, bucket: Bucket, dataset: BucketDataset, tmp_path: Path
) -> None:
    for folder in ("", "/g1", "/g2", "/g3/tmp"):
        mark_folder(s3_url, bucket, f"{dataset.address.path}{folder}")
    assert "g1" in dataset.known_generations(), "it is there"
    assert (dataset.published_generations(), dataset.unfinished_generations()) == ((), {})
    publish(dataset, "g2", {"a": b"1"}, tmp_path, shards=1)
    assert (dataset.generations(), dataset.unfinished_generations()) == (("g2",), {})
    dataset.remove("g2")
    assert bucket.files(dataset.address.path).keys() == {"g1", "g2", "g3/tmp"}, "the markers alone"
    assert (dataset.published_generations(), dataset.unfinished_generations()) == ((), {})


class TestSweep:
    """One dataset's folder is a problem of that dataset; the others are swept."""

    def test_a_folder_with_too_many_objects(self, s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        full, other = (s3_place.publish(s3_place.dataset(name), "g1", "g2") for name in ("full", "other"))
        for number in range(10):
            s3_place.put(f"{full.address.path}/g1/{number}")
        s3_place.living(full, other, keep=1, protect=("g2",))
        monkeypatch.setattr("lookupdb.store.bucket.MAX_LISTING_BYTES", 2000)
        result = run(s3_place, "--json")
        monkeypatch.undo()
        assert "team/full: " in str(result.exception)
        assert "has more objects than lookupdb creates" in str(result.exception)
        assert json.loads(result.stdout.splitlines()[-1])["removedGenerations"] == 1

    def test_a_dataset_whose_folders_have_markers(self, s3_url: str, s3_place: Place, clock: Clock) -> None:
        people = s3_place.publish(s3_place.dataset("people"), "g1", "g2")
        assert s3_place.bucket
        for folder in ("", "/g1", "/g2", "/g9", "/g10/tmp"):
            mark_folder(s3_url, s3_place.bucket, f"{people.address.path}{folder}")
        s3_place.living(people, keep=1, protect=("g2",))
        clock.ahead = 25 * HOUR
        for removed in (1, 0):
            sums = swept(s3_place)[1]
            assert (sums["removedGenerations"], sums["removedRemains"], sums["problems"]) == (removed, 0, [])
        s3_place.living()
        for clock.ahead, counted in ((25 * HOUR, (1, 0)), (50 * HOUR, (0, 1)), (75 * HOUR, (0, 0))):
            sums = swept(s3_place)[1]
            assert (sums["marked"], sums["removedDatasets"]) == counted, "and then nothing of ours is left"

    def test_a_namespace_with_too_many_folders(self, s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Any writer can create them. Other namespaces are still swept, and memory is bounded."""
        other = s3_place.publish(s3_place.dataset("other"), "g1", "g2")
        for number in range(20):
            s3_place.put(f"{other.address.cluster}/full/x{number}-3f2b9c1e/g1/shard")
        s3_place.living(other, keep=1, protect=("g2",))
        monkeypatch.setattr("lookupdb.store.bucket.MAX_LISTING_BYTES", 4000)
        result = run(s3_place, "--json")
        monkeypatch.undo()
        assert "full: s3://" in str(result.exception)
        assert "has more folders than lookupdb creates" in str(result.exception)
        assert json.loads(result.stdout.splitlines()[-1])["removedGenerations"] == 1

    def test_a_namespace_that_cannot_be_listed(self, s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store's client refuses a page with a name such as a//b, whoever has put that."""
        other = s3_place.publish(s3_place.dataset("other"), "g1", "g2")
        s3_place.put(f"{other.address.cluster}/odd/x-3f2b9c1e/g1/shard")
        s3_place.living(other, keep=1, protect=("g2",))
        walk = ObstoreObjects.walk_folders

        def refuse(objects: ObstoreObjects, path: str) -> Iterator[str]:
            if path.endswith("/odd"):
                raise StoreError("Path a//b contained empty path segment")
            return walk(objects, path)

        monkeypatch.setattr(ObstoreObjects, "walk_folders", refuse)
        result = run(s3_place, "--json")
        assert "odd: Path a//b contained empty path segment" in str(result.exception)
        assert json.loads(result.stdout.splitlines()[-1])["removedGenerations"] == 1

    def test_notes_that_are_too_large(self, s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = (s3_place.publish(s3_place.dataset(name), "g1", "g2") for name in ("one", "other"))
        one.write_note(MARK_NOTE, b" " * 5000)
        s3_place.living(one, other, keep=1, protect=("g2",))
        monkeypatch.setattr("lookupdb.store.objects.MAX_CONDITIONAL_BYTES", 4000)
        result = run(s3_place)
        assert "swept.json: it has 5000 bytes, expected at most 4000" in str(result.exception)
        assert (one.generations(), other.generations()) == (("g1", "g2"), ("g2",))

    def test_a_large_mark_is_none(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        since = json.dumps({"formatVersion": 1, "notLivingSince": "2001-01-01T00:00:00Z"}).encode()
        people.write_note(MARK_NOTE, since + b" " * 1024)
        place.living()
        assert swept(place)[1]["marked"] == 1
        clock.ahead = 25 * HOUR
        assert swept(place)[1]["removedDatasets"] == 1

    def test_a_generation_whose_manifest_is_too_large_is_damaged(
        self, s3_place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = s3_place.publish(s3_place.dataset("people"), "g1", "g2")
        s3_place.put(f"{people.address.path}/g1/{FILE_NAME}", b" " * 5000)
        s3_place.living(people, keep=3, protect=("g2",))
        monkeypatch.setattr("lookupdb.store.objects.MAX_CONDITIONAL_BYTES", 4000)
        assert swept(s3_place)[0] == ["team/people (3f2b9c1e): removed g1"]
