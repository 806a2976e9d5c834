"""`lookupdb sweep`: nothing that serves, lives, is being built or is unknown ever goes; all else does, in time."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from click.testing import CliRunner, Result
from support.buckets import new_bucket, s3_server
from support.generations import publish

from lookupdb import store
from lookupdb.cli import sweep as verb
from lookupdb.errors import StoreError, UsageError
from lookupdb.manifest import Refusal
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.store.bucket import Bucket
from lookupdb.store.sweep import MARK_NOTE, RETAIN_NOTE

HOUR = 3600.0


class Place:
    """A store with datasets, a living list, and a clock."""

    def __init__(self, folder: Path, url: str, bucket: Bucket | None) -> None:
        self.folder = folder
        self.url = url
        self.bucket = bucket
        self.list = folder / "living.json"
        self.number = 0

    def open(self, cluster: str = "c1") -> Store:
        return Store(self.url, cluster, self.bucket) if self.bucket else store.open_store(self.url, cluster)

    def dataset(self, name: str, uid: str = "3f2b9c1e", cluster: str = "c1") -> StoredDataset:
        return self.open(cluster).dataset_at(StoreAddress(cluster, "team", name, uid))

    def publish(self, dataset: StoredDataset, *generations: str) -> StoredDataset:
        for generation in generations:
            publish(dataset, generation, {"a": b"1"}, self.scratch(), shards=1)
        return dataset

    def scratch(self) -> Path:
        self.number += 1
        path = self.folder / f"scratch-{self.number}"
        path.mkdir()
        return path

    def put(self, path: str, content: bytes = b"{}") -> None:
        if self.bucket:
            obstore.put(self.bucket.store, path, content)
        else:
            (Path(self.url) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(self.url) / path).write_bytes(content)

    def damage(self, dataset: StoredDataset, generation: str) -> None:
        """Its only shard is gone."""
        (shard,) = dataset.manifest(generation).shards
        path = f"{dataset.address.path}/{generation}/{shard.file}"
        if self.bucket:
            self.bucket.delete([path])
        else:
            (Path(self.url) / path).unlink()

    def living(
        self,
        *datasets: StoredDataset,
        keep: int = 3,
        protect: tuple[str, ...] = (),
        retain: bool = False,
        **changes: Any,
    ) -> None:
        entries = [
            {
                "namespace": one.address.namespace,
                "name": one.address.name,
                "uid": f"{one.address.uid}-77aa-4bcd",
                "keep": keep,
                "protect": list(protect),
                "retain": retain,
            }
            for one in datasets
        ]
        now = datetime.datetime.now(datetime.UTC).isoformat()
        members = {"formatVersion": 1, "cluster": "c1", "writtenAt": now, "datasets": entries, **changes}
        self.list.write_text(json.dumps(members))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "directory":
        return Place(tmp_path, str(tmp_path / "store"), None)
    bucket = new_bucket(request.getfixturevalue("server"), monkeypatch)
    made = Place(tmp_path, bucket.url, bucket)
    monkeypatch.setattr(store, "open_store", lambda _url, cluster: made.open(cluster))  # with a short lease
    return made


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import time

        self.ahead = 0.0
        real = time.time

        class Moved:
            @staticmethod
            def time() -> float:
                return real() + self.ahead

        monkeypatch.setattr(verb, "time", Moved)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def run(place: Place, *more: str, cluster: str = "c1") -> Result:
    words = ["--store", place.url, "--cluster-id", cluster, "--living", str(place.list), "--grace", "24h"]
    words += ["--max-age", "1000h", *more]  # the tests' clock is days ahead
    return CliRunner().invoke(verb.command, words, standalone_mode=False)


def swept(place: Place, *more: str) -> tuple[list[str], dict[str, Any]]:
    """The sentences and the sums."""
    result = run(place, *more)
    assert result.exception is None, result.exception
    *sentences, sums = result.stdout.splitlines()
    return sentences, json.loads(sums)


class TestLiving:
    def test_the_newest_and_the_protected_stay(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g10")
        place.living(people, keep=2, protect=("g1", "g7"))
        sentences, sums = swept(place)
        assert people.generations() == ("g1", "g4", "g10")
        assert sentences == ["team/people (3f2b9c1e): removed g2", "team/people (3f2b9c1e): removed g3"]
        assert (sums["outcome"], sums["removedGenerations"], sums["datasets"]) == ("swept", 2, 1)
        assert swept(place)[0] == []

    def test_nothing_newer_than_what_is_known_to_serve_goes(self, place: Place) -> None:
        """The list was read before the sweep began: since then g4 may have been built, and serve with no other left."""
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g5")
        place.living(people, keep=1, protect=("g2", "g3"))
        swept(place)
        assert people.generations() == ("g2", "g3", "g4", "g5")

    def test_of_one_of_which_nothing_is_known_to_serve_nothing_goes(self, place: Place) -> None:
        """As of one whose status was lost, or cannot be read."""
        people = place.publish(place.dataset("people"), "g1", "g2", "g3")
        place.living(people, keep=1)
        assert swept(place)[0] == []
        assert people.generations() == ("g1", "g2", "g3")

    def test_a_build_under_way_stays_and_what_a_dead_one_left_goes(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living(people)
        with people.claim("g2", place.scratch()):
            if place.bucket:
                place.put(f"{people.address.path}/g3/claim.json")
            place.put(f"{people.address.path}/g3/shard-00000-of-00001.lmdb", b"left")
            assert swept(place)[0] == []
            clock.ahead = 25 * HOUR
            assert swept(place)[0] == ["team/people (3f2b9c1e): removed the remains of g3"]
            assert list(people.unfinished_generations()) == ["g2"]
        assert people.generations() == ("g1",)
        assert people.next_generation() == "g2"

    def test_a_damaged_generation_is_not_counted_and_goes_when_it_is_old(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g5")
        for generation in ("g2", "g3", "g4"):
            place.damage(people, generation)
        place.living(people, keep=2, protect=("g4", "g5"))
        assert swept(place)[0] == ["team/people (3f2b9c1e): removed g2", "team/people (3f2b9c1e): removed g3"]
        assert people.generations() == ("g1", "g5"), "two of those that can be rolled out"
        assert people.damaged_generations() == ("g4",), "what is protected stays, whatever it is"

    def test_a_refused_generation_is_not_counted_and_goes_when_a_newer_one_is_protected(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2")
        for generation in ("g3", "g5"):
            publish(people, generation, {"a": b"1"}, place.scratch(), shards=1, refused=Refusal(("no",), "", "g2"))
        place.living(people, keep=2, protect=("g1", "g2", "g3"))
        assert swept(place)[0] == [], "the one that is to be looked at stays"
        place.publish(people, "g4")
        place.living(people, keep=2, protect=("g2", "g4"))
        assert swept(place)[0] == ["team/people (3f2b9c1e): removed g1", "team/people (3f2b9c1e): removed g3"]
        assert people.refused_generations() == ("g5",), "nobody knows yet whether it is protected"
        place.living(people, keep=2, protect=("g4", "g5"))
        assert swept(place)[0] == [], "an operator has overridden its gates: it may serve"


class TestDead:
    def test_a_dataset_is_marked_and_goes_after_the_grace_period(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        gone = place.publish(place.dataset("gone"), "g1", "g2")
        place.living(people)
        assert swept(place)[0] == ["team/gone (3f2b9c1e): marked: the dataset no longer exists"]
        assert gone.generations() == ("g1", "g2")
        clock.ahead = 23 * HOUR
        assert swept(place)[0] == []
        clock.ahead = 25 * HOUR
        sentences, sums = swept(place)
        assert sentences[:2] == ["team/gone (3f2b9c1e): removed g1", "team/gone (3f2b9c1e): removed g2"]
        assert "removed: it has not existed since" in sentences[2]
        assert (sums["removedDatasets"], sums["removedGenerations"]) == (1, 2)
        assert place.open().addresses() == (people.address,)
        assert people.generations() == ("g1",)

    def test_one_of_the_same_name_and_another_uid_lives_on(self, place: Place, clock: Clock) -> None:
        new, old = (place.publish(place.dataset("people", uid), "g1") for uid in ("aaaaaaaa", "bbbbbbbb"))
        place.living(new)
        swept(place)
        clock.ahead = 25 * HOUR
        swept(place)
        assert (new.generations(), old.generations()) == (("g1",), ())

    def test_one_that_lives_again_loses_its_mark(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living()
        assert swept(place)[1]["marked"] == 1
        place.living(people)
        assert swept(place)[1]["unmarked"] == 1
        place.living()
        clock.ahead = 25 * HOUR
        assert swept(place)[1]["marked"] == 1, "the grace period begins anew"
        assert people.generations() == ("g1",)

    def test_a_build_under_way_keeps_it(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living()
        swept(place)
        with people.claim("g2", place.scratch()):
            clock.ahead = 25 * HOUR
            assert swept(place)[1]["removedDatasets"] == 0
            assert list(people.unfinished_generations()) == ["g2"]
        assert swept(place)[1]["removedDatasets"] == 1
        assert place.open().addresses() == ()

    def test_its_damaged_generations_go_too(self, place: Place, clock: Clock) -> None:
        place.damage(place.publish(place.dataset("gone"), "g1"), "g1")
        place.living()
        swept(place)
        clock.ahead = 25 * HOUR
        assert swept(place)[1]["removedDatasets"] == 1
        assert place.open().addresses() == ()

    def test_a_mark_that_cannot_be_read_is_written_again(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        people.write_note(MARK_NOTE, b"{")
        place.living()
        assert swept(place)[1]["marked"] == 1
        assert people.generations() == ("g1",)


class TestNeverTouched:
    def test_what_is_not_known(self, place: Place, clock: Clock) -> None:
        place.publish(place.dataset("gone"), "g1")
        unknown = (
            "c1/team/gone-3f2b9c1e/notes.txt",
            "c1/team/README",
            "c1/Not A Namespace/x/y",
            "c1/team/other-u/gX/z",
        )
        for path in unknown:
            place.put(path, b"somebody's")
        place.living()
        for clock.ahead in (0.0, 25 * HOUR, 50 * HOUR):
            swept(place)
        assert place.dataset("gone").generations() == ()
        assert all(_content(place, path) == b"somebody's" for path in unknown)

    def test_another_cluster(self, place: Place, clock: Clock) -> None:
        other = place.publish(place.dataset("people", cluster="c2"), "g1")
        place.living()
        for clock.ahead in (0.0, 25 * HOUR):
            assert swept(place)[1]["datasets"] == 0
        assert other.generations() == ("g1",)

    def test_anything_in_a_dry_run(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2")
        gone = place.publish(place.dataset("gone"), "g1")
        place.living(people, keep=1, protect=("g2",))
        sentences, sums = swept(place, "--dry-run")
        assert sentences == [
            "would have: team/gone (3f2b9c1e): marked: the dataset no longer exists",
            "would have: team/people (3f2b9c1e): removed g1",
        ]
        assert sums["dryRun"] is True
        assert gone.read_note(MARK_NOTE) is None
        swept(place)
        clock.ahead = 25 * HOUR
        assert swept(place, "--dry-run")[1]["removedDatasets"] == 1
        assert (people.generations(), gone.generations()) == (("g2",), ("g1",))


def _content(place: Place, path: str) -> bytes:
    if place.bucket:
        return bytes(obstore.get(place.bucket.store, path).bytes())
    return (Path(place.url) / path).read_bytes()


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"cluster": "c2"}, "it is of cluster 'c2'"),
            ({"formatVersion": 2}, "format version 2; this lookupdb reads 1"),
            ({"datasets": None}, "datasets is None, expected list"),
            ({"datasets": [{"namespace": "team", "name": "people", "uid": "1", "keep": 0}]}, "keep is 0"),
            ({"datasets": [{"namespace": "team", "name": "people", "uid": "1"}]}, "it has no member 'keep'"),
            ({"datasets": [{"namespace": "..", "name": "people", "uid": "1", "keep": 1}]}, "cannot be part of"),
            (
                {"datasets": [{"namespace": "t", "name": "p", "uid": "1", "keep": 1, "protect": ["newest"]}]},
                "g1, g2",
            ),
        ],
    )
    def test_a_living_list_that_is_not_one(self, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        people = place.publish(place.dataset("people"), "g1")
        place.living(people, **changes)
        error = run(place).exception
        assert isinstance(error, UsageError)
        assert "is not the list of living datasets of cluster c1" in error.message
        assert said in error.message
        assert people.read_note(MARK_NOTE) is None

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            (
                "2020-01-01T00:00:00Z",
                r"was written at 2020-01-01T00:00:00\+00:00, \d+\.\d hours ago: expected at most 1 h",
            ),
            ("2120-01-01T00:00:00Z", "in the future: expected at most 1 hours ago"),
            (None, "does not say when it was written"),
            ("yesterday", "does not say when it was written"),
        ],
    )
    def test_a_living_list_that_is_old(self, tmp_path: Path, written: str | None, said: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        people = place.publish(place.dataset("people"), "g1")
        place.living(writtenAt=written)
        error = run(place, "--max-age", "1h").exception
        assert isinstance(error, UsageError)
        assert re.search(said, error.message)
        assert people.read_note(MARK_NOTE) is None

    def test_a_living_list_that_is_not_there_or_cut_short(self, tmp_path: Path) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        assert "cannot be read: No such file" in str(run(place).exception)
        place.list.write_text('{"formatVersion": 1, "clus')
        assert isinstance(run(place).exception, UsageError)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"formatVersion": 1}', "it has no member 'cluster'"),
            ('{"cluster": 7}', "cluster is 7, expected str"),
            ("[]", "the list is [], expected dict"),
            ("", "it is not JSON: "),
        ],
    )
    def test_a_list_that_does_not_say_whose_it_is(self, tmp_path: Path, text: str, said: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        place.list.write_text(text)
        words = ["--store", place.url, "--living", str(place.list)]
        error = CliRunner().invoke(verb.command, words, standalone_mode=False).exception
        assert isinstance(error, UsageError)
        assert f"is not a list of living datasets: {said}" in error.message

    @pytest.mark.parametrize("grace", ["24", "1y", "-1h", ""])
    def test_a_grace_period_that_is_none(self, tmp_path: Path, grace: str) -> None:
        place = Place(tmp_path, str(tmp_path / "store"), None)
        assert "is not a duration" in str(run(place, "--grace", grace).exception)


def test_without_a_cluster_the_lists_own_is_swept(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "store"), None)
    people = place.publish(place.dataset("people"), "g1")
    place.living()
    words = ["--store", place.url, "--living", str(place.list)]
    result = CliRunner().invoke(verb.command, words, standalone_mode=False)
    assert result.exception is None, result.exception
    assert people.read_note(MARK_NOTE) is not None


def test_a_dataset_that_cannot_be_swept_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, str(tmp_path / "store"), None)
    one, other = (place.publish(place.dataset(name), "g1", "g2") for name in ("one", "other"))
    place.living(one, other, keep=1, protect=("g2",))
    remove = type(one).remove

    def failing(self: Any, generation: str) -> None:
        if self.address == one.address:
            raise StoreError("the disk is broken")
        remove(self, generation)

    monkeypatch.setattr(type(one), "remove", failing)
    result = run(place)
    assert isinstance(result.exception, StoreError)
    assert "team/one: the disk is broken" in str(result.exception)
    assert json.loads(result.stdout.splitlines()[-1])["outcome"] == "failed"
    assert (one.generations(), other.generations()) == (("g1", "g2"), ("g2",))


class TestRetained:
    def test_what_a_retained_dataset_leaves_stays_for_ever(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2")
        place.living(people, retain=True, protect=("g2",))
        assert swept(place)[0] == ["team/people (3f2b9c1e): retained when it is deleted"]
        place.living()
        for days in range(3):
            clock.ahead = days * 24 * HOUR
            sentences, sums = swept(place)
            assert (sentences, sums["retainedDatasets"], sums["removedDatasets"]) == ([], 1, 0)
        assert people.generations() == ("g1", "g2")

    def test_one_that_was_deleted_before_any_sweep_knew_is_retained_by_the_list(
        self, place: Place, clock: Clock
    ) -> None:
        people = place.publish(place.dataset("people"), "g1")
        gone = {"namespace": "team", "name": "people", "uid": f"{people.address.uid}-77aa-4bcd"}
        place.living(retained=[gone])
        assert swept(place)[0] == ["team/people (3f2b9c1e): retained: the dataset no longer exists"]
        place.living()
        clock.ahead = 48 * HOUR
        assert swept(place)[0] == []
        assert people.generations() == ("g1",)

    def test_a_mark_of_before_goes(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living()
        swept(place)
        assert people.read_note(MARK_NOTE) is not None
        place.living(retained=[{"namespace": "team", "name": "people", "uid": people.address.uid}])
        clock.ahead = 48 * HOUR
        assert swept(place)[1]["unmarked"] == 1
        assert people.read_note(MARK_NOTE) is None
        assert people.generations() == ("g1",)

    def test_its_old_generations_go_as_long_as_it_lives(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3")
        place.living(people, keep=1, retain=True, protect=("g3",))
        swept(place)
        assert people.generations() == ("g3",)

    def test_a_living_one_that_is_not_to_be_retained_any_more_loses_its_note(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living(people, retain=True, protect=("g1",))
        swept(place)
        place.living(people, protect=("g1",))
        assert swept(place)[0] == ["team/people (3f2b9c1e): not retained when it is deleted"]
        assert people.read_note(RETAIN_NOTE) is None
        place.living()
        swept(place)
        clock.ahead = 48 * HOUR
        swept(place)
        assert people.generations() == ()

    def test_one_made_again_under_the_name_has_a_folder_of_its_own(self, place: Place, clock: Clock) -> None:
        """Its g1 is not the g1 that is retained, and neither touches the other."""
        old = place.publish(place.dataset("people"), "g1", "g2")
        new = place.publish(place.dataset("people", uid="77aa4bcd"), "g1")
        place.living(old, retain=True, protect=("g2",))
        swept(place)
        place.living(new, protect=("g1",))
        clock.ahead = 48 * HOUR
        swept(place)
        assert (old.generations(), new.generations(), new.next_generation()) == (("g1", "g2"), ("g1",), "g2")

    def test_a_dry_run_writes_no_note(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living(people, retain=True, protect=("g1",))
        assert swept(place, "--dry-run")[0] == ["would have: team/people (3f2b9c1e): retained when it is deleted"]
        assert people.read_note(RETAIN_NOTE) is None

    @pytest.mark.parametrize(
        "changes",
        [{"retained": {}}, {"retained": ["people"]}, {"retained": [{"namespace": "team", "name": "people"}]}],
        ids=["no list", "no datasets", "no uid"],
    )
    def test_a_list_that_does_not_say_what_is_retained_is_refused(self, place: Place, changes: dict[str, Any]) -> None:
        place.living(**changes)
        assert isinstance(run(place).exception, UsageError)
