"""Sweeps of datasets that were to be retained."""

from __future__ import annotations

from typing import Any

import pytest
from support.sweeps import HOUR, Clock, Place, in_each_store, run, swept

from lookupdb.errors import UsageError
from lookupdb.store import StoredDataset
from lookupdb.store.sweep import MARK_NOTE, RETAIN_NOTE, retain

pytest_plugins = ["support.sweep_fixtures"]


class TestRetained:
    @in_each_store
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

    @in_each_store
    def test_one_that_somebody_retains_while_it_is_removed_keeps_the_rest(
        self, place: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For example, a copy, which does not copy again what it finds there."""
        people = place.publish(place.dataset("people"), "g1", "g2")
        place.living()
        swept(place)
        clock.ahead = 48 * HOUR
        kind, remove = type(people), type(people).remove

        def remove_and_retain(dataset: StoredDataset, generation: str) -> None:
            remove(dataset, generation)
            retain(dataset)

        monkeypatch.setattr(kind, "remove", remove_and_retain)
        assert swept(place)[0] == ["team/people (3f2b9c1e): removed g1"]
        assert people.generations() == ("g2",)

    @in_each_store
    def test_a_note_beside_which_nothing_is_goes_in_time(self, place: Place, clock: Clock) -> None:
        """A killed copy leaves such a note, and so does somebody who removes generations by hand."""
        people = place.dataset("people")
        retain(people)
        place.living()
        assert swept(place)[0] == ["team/people (3f2b9c1e): marked: the dataset no longer exists"]
        assert swept(place)[0] == []
        assert people.read_note(RETAIN_NOTE) is not None
        clock.ahead = 48 * HOUR
        assert swept(place)[1]["removedDatasets"] == 1
        assert (people.read_note(RETAIN_NOTE), people.read_note(MARK_NOTE)) == (None, None)
        assert swept(place)[0] == []

    def test_what_comes_beside_such_a_note_in_time_stays(self, place: Place, clock: Clock) -> None:
        people = place.dataset("people")
        retain(people)
        place.living()
        swept(place)
        place.publish(people, "g1")
        clock.ahead = 48 * HOUR
        assert swept(place)[1]["unmarked"] == 1
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


class TestToBeAdopted:
    """A dataset that a live dataset is to adopt, and has not yet."""

    def test_it_stays_while_it_is_named_and_gets_no_note(self, place: Place, clock: Clock) -> None:
        old = place.publish(place.dataset("people"), "g1", "g2")
        new = place.dataset("people", uid="77aa4bcd")
        for days in range(3):
            clock.ahead = days * 24 * HOUR
            place.living(new, adopt="3f2b9c1e-77aa-4bcd")
            sentences, sums = swept(place)
            assert (sentences, sums["marked"], sums["retainedDatasets"]) == ([], 0, 1)
        assert old.generations() == ("g1", "g2")
        assert (old.read_note(MARK_NOTE), old.read_note(RETAIN_NOTE)) == (None, None)

    def test_it_goes_when_it_is_not_named_any_more(self, place: Place, clock: Clock) -> None:
        old = place.publish(place.dataset("people"), "g1")
        new = place.publish(place.dataset("people", uid="77aa4bcd"), "g1")
        place.living()
        swept(place)
        assert old.read_note(MARK_NOTE) is not None
        clock.ahead = 25 * HOUR
        place.living(new, adopt=old.address.uid, protect=("g1",))
        swept(place)
        assert old.read_note(MARK_NOTE) is None, "the grace period begins again"
        place.living(new, protect=("g1",))
        assert swept(place)[1]["marked"] == 1
        clock.ahead = 50 * HOUR
        assert swept(place)[1]["removedDatasets"] == 1
        assert (old.generations(), new.generations()) == ((), ("g1",))

    def test_another_of_that_uid_does_not(self, place: Place) -> None:
        place.publish(place.dataset("persons"), "g1")
        place.living(place.dataset("people", uid="77aa4bcd"), adopt="3f2b9c1e")
        assert swept(place)[1]["marked"] == 1
