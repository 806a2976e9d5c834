"""`lookupdb sweep`: nothing that serves, is live, is being built or is unknown is removed, and all else is in time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.buckets import read_object
from support.generations import publish
from support.sweeps import HOUR, Clock, Place, in_each_store, run, swept

from lookupdb.errors import StoreError
from lookupdb.manifest import Refusal
from lookupdb.store.bucket import ObjectState
from lookupdb.store.bucket_dataset import Lease
from lookupdb.store.sweep import MARK_NOTE, Sweep

pytestmark = pytest.mark.long

pytest_plugins = ["support.sweep_fixtures"]


@in_each_store
class TestLiving:
    def test_the_newest_and_the_protected_stay(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g10")
        place.living(people, keep=2, protect=("g1", "g7"))
        sentences, sums = swept(place)
        assert people.generations() == ("g1", "g4", "g10")
        assert sentences == ["team/people (3f2b9c1e): removed g2", "team/people (3f2b9c1e): removed g3"]
        assert (sums["outcome"], sums["removedGenerations"], sums["datasets"]) == ("swept", 2, 1)
        assert swept(place)[0] == []

    def test_every_line_is_json_when_that_is_asked_for(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2")
        place.living(people, keep=1, protect=("g2",))
        assert swept(place, "--dry-run")[0] == ["would have: team/people (3f2b9c1e): removed g1"]
        lines, sums = swept(place)
        assert lines == ["team/people (3f2b9c1e): removed g1"]
        assert sums["removedGenerations"] == 1

    def test_without_json_it_ends_with_a_sentence(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2")
        place.living(people, keep=1, protect=("g2",))
        lines = ["team/people (3f2b9c1e): removed g1", "1 dataset looked at; generations removed: 1"]
        assert run(place).stdout.splitlines() == lines
        assert run(place).stdout.splitlines() == ["1 dataset looked at; nothing to do"]

    def test_nothing_newer_than_what_is_known_to_serve_goes(self, place: Place) -> None:
        """The list was read before the sweep began: since then g4 may have been built, and serve with no other left."""
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g5")
        place.living(people, keep=1, protect=("g2", "g3"))
        swept(place)
        assert people.generations() == ("g2", "g3", "g4", "g5")

    def test_of_one_of_which_nothing_is_known_to_serve_nothing_goes(self, place: Place) -> None:
        """Such as one whose status was lost or cannot be read."""
        people = place.publish(place.dataset("people"), "g1", "g2", "g3")
        place.living(people, keep=1)
        assert swept(place)[0] == []
        assert people.generations() == ("g1", "g2", "g3")

    def test_a_build_under_way_stays_and_what_a_dead_one_left_goes(self, place: Place, clock: Clock) -> None:
        if place.bucket:
            place.bucket.lease = 5.0  # a busy machine may keep g2 from its heartbeat for some time
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

    def test_what_many_dead_builders_left_goes_without_watching_each(
        self, place: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        people = place.publish(place.dataset("people"), "g1")
        place.living(people)
        for number in range(2, 13):
            place.put(f"{people.address.path}/g{number}/claim.json", b'{"owner": "dead", "beat": 9, "manifest": null}')
        clock.ahead = 25 * HOUR
        machine = SimpleNamespace(time=lambda: time.time() + 25 * HOUR)
        monkeypatch.setattr("lookupdb.store.bucket_dataset.time", machine)
        monkeypatch.setattr("lookupdb.store.bucket_dataset.Lease._await_expiry", _fail_to_wait)
        monkeypatch.setattr("lookupdb.store.sweep._MOST_REMAINS", 8)
        assert [swept(place)[1]["removedRemains"] for _ in range(3)] == [8, 3, 0]
        assert people.unfinished_generations() == {}
        assert people.generations() == ("g1",)

    def test_a_damaged_generation_is_not_counted_and_goes_when_it_is_old(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g5")
        for generation in ("g2", "g3", "g4"):
            place.damage(people, generation)
        place.living(people, keep=2, protect=("g4", "g5"))
        assert swept(place)[0] == ["team/people (3f2b9c1e): removed g2", "team/people (3f2b9c1e): removed g3"]
        assert people.generations() == ("g1", "g5"), "two of those that can be rolled out"
        assert tuple(people.take_inventory().damaged) == ("g4",), "what is protected stays, whatever it is"

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


@in_each_store
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
        assert swept(place)[1]["marked"] == 1, "the grace period begins again"
        assert people.generations() == ("g1",)

    def test_a_build_under_way_keeps_it(self, place: Place, clock: Clock) -> None:
        if place.bucket:
            place.bucket.lease = 20.0
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

    @pytest.mark.parametrize(
        "since",
        [
            *("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "1969-12-31T23:59:59Z"),
            *("9999-12-31T23:59:59-14:00", "2999-01-01T00:00:00Z"),
        ],
    )
    def test_a_mark_of_a_time_at_which_no_sweep_ran_is_written_again(
        self, place: Place, clock: Clock, since: str
    ) -> None:
        people = place.publish(place.dataset("people"), "g1")
        people.write_note(MARK_NOTE, json.dumps({"formatVersion": 1, "notLivingSince": since}).encode())
        place.living()
        assert swept(place)[1]["marked"] == 1
        assert people.generations() == ("g1",)
        clock.ahead = 25 * HOUR
        assert swept(place)[1]["removedDatasets"] == 1


@in_each_store
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


def _fail_to_wait(_lease: Lease, _first: ObjectState) -> None:
    raise AssertionError("it was watched")


def _content(place: Place, path: str) -> bytes:
    if place.bucket:
        return read_object(place.bucket, path)
    return (Path(place.url) / path).read_bytes()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (StoreError("the disk is broken"), "team/one: the disk is broken"),
        (ValueError("year 0 is out of range"), "team/one: ValueError: year 0 is out of range"),
        (MemoryError(), "team/one: MemoryError"),
    ],
    ids=["store", "defect", "memory"],
)
def test_a_dataset_that_cannot_be_swept_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, said: str
) -> None:
    place = Place(tmp_path, str(tmp_path / "store"), None)
    one, other = (place.publish(place.dataset(name), "g1", "g2") for name in ("one", "other"))
    place.living(one, other, keep=1, protect=("g2",))
    remove = type(one).remove

    def failing(self: Any, generation: str) -> None:
        if self.address == one.address:
            raise failure
        remove(self, generation)

    monkeypatch.setattr(type(one), "remove", failing)
    result = run(place)
    assert isinstance(result.exception, StoreError)
    assert said in str(result.exception)
    assert result.stdout.splitlines() == [
        "team/other (3f2b9c1e): removed g1",
        "2 datasets looked at; generations removed: 1, problems: 1",
    ]
    assert (one.generations(), other.generations()) == (("g1", "g2"), ("g2",))


def test_whoever_interrupts_the_sweep_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, str(tmp_path / "store"), None)
    one = place.publish(place.dataset("one"), "g1", "g2")

    def interrupted(_self: Any, _name: str) -> bytes | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(one), "read_note", interrupted)
    sweep = Sweep({}, grace=0, now=0, dry=False)
    with pytest.raises(KeyboardInterrupt):
        list(sweep.run(iter([one])))


@in_each_store
class TestPushes:
    def test_of_a_live_dataset_stay_but_for_what_dead_pushers_left(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        inbox = place.publish(place.inbox("people"), "g1", "g2", "g3")
        place.living(people, keep=1, protect=("g1",))
        place.put(f"{inbox.address.path}/g4/shard-00000-of-00001.lmdb", b"left")
        assert swept(place)[0] == []
        clock.ahead = 25 * HOUR
        assert swept(place)[0] == ["pushes to team/people (3f2b9c1e): removed the remains of g4"]
        assert inbox.generations() == ("g1", "g2", "g3")
        assert people.generations() == ("g1",), "numbers of pushes are others"

    def test_of_a_deleted_dataset_go_even_if_it_is_retained(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        inbox = place.publish(place.inbox("people"), "g1", "g2")
        place.living(retained=[{"namespace": "team", "name": "people", "uid": people.address.uid}])
        sentences, sums = swept(place)
        assert "pushes to team/people (3f2b9c1e): marked: the dataset no longer exists" in sentences
        assert (sums["datasets"], sums["marked"], sums["retainedDatasets"]) == (1, 0, 1)
        clock.ahead = 25 * HOUR
        assert sum("removed g" in sentence for sentence in swept(place)[0]) == 2
        assert (inbox.published_generations(), people.generations()) == ((), ("g1",))
        assert swept(place)[0] == []
