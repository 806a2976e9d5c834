"""active.json: what it says, what is refused, and that nobody takes it for a generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sweeps import HOUR, Clock, Place, in_each_store, swept

from lookupdb.errors import CorruptFile
from lookupdb.manifest import ANNOUNCEMENT_NOTE, MAX_ANNOUNCEMENT_BYTES, Announcement, parse_announcement
from lookupdb.store.dataset import read_announcement, write_announcement
from lookupdb.store.generations import copy_generation
from lookupdb.store.sweep import prune, remove_superseded

pytest_plugins = ["support.sweep_fixtures"]

MEMBERS: dict[str, Any] = {
    "formatVersion": 1,
    "dataset": {"namespace": "team", "name": "people", "uid": "3f2b9c1e-77aa"},
    "generation": "g12",
    "version": 17,
    "announcedAt": "2026-11-20T02:04:00Z",
}
ANNOUNCEMENT = Announcement("team", "people", "3f2b9c1e-77aa", "g12", 17, "2026-11-20T02:04:00Z")


def changed(**members: Any) -> bytes:
    return json.dumps({**MEMBERS, **members}).encode()


class TestText:
    def test_says_which_generation_of_which_dataset_is_active(self) -> None:
        assert json.loads(ANNOUNCEMENT.to_json()) == MEMBERS
        assert parse_announcement(ANNOUNCEMENT.to_json(), "here") == ANNOUNCEMENT

    def test_members_of_a_later_revision_are_ignored(self) -> None:
        assert parse_announcement(changed(later=1), "here") == ANNOUNCEMENT

    def test_another_format_version_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(CorruptFile, match="here has format version 2, this lookupdb reads 1") as caught:
            parse_announcement(changed(formatVersion=2), "here")
        assert caught.value.hint is not None
        assert "upgrade" in caught.value.hint

    def test_what_is_none_is_refused(self) -> None:
        for content, says in (
            (b"", "here is not an announcement"),
            (b"{", "here is not an announcement"),
            (b"[]", "expected an object"),
            (b'{"formatVersion": true}', "format version True"),
            (changed(dataset="people"), "dataset is 'people', expected an object"),
            (changed(dataset={"namespace": "team", "name": "people"}), "it lacks 'uid'"),
            (changed(dataset={"namespace": "team", "name": 1, "uid": "a"}), "dataset.name is 1, expected text"),
            (changed(generation="12"), "generation is '12', expected g1, g2, …"),
            (changed(generation="../g1"), "generation is '../g1'"),
            (changed(version=-1), "version is -1"),
            (changed(version=True), "version is True"),
            (changed(version="17"), "version is '17'"),
            (changed(announcedAt="yesterday"), "yesterday"),
            (changed(announcedAt="2026-11-20T02:04:00"), "time zone"),
            (changed(more="x" * MAX_ANNOUNCEMENT_BYTES), "expected at most 4096"),
        ):
            with pytest.raises(CorruptFile) as caught:
                parse_announcement(content, "here")
            assert says in caught.value.message


class TestInAStore:
    @in_each_store
    def test_is_written_and_read(self, place: Place) -> None:
        people = place.dataset("people")
        assert read_announcement(people) is None
        write_announcement(people, "3f2b9c1e-77aa", "g12", 17, "2026-11-20T02:04:00Z")
        assert read_announcement(people) == ANNOUNCEMENT

    @in_each_store
    def test_a_version_only_grows(self, place: Place) -> None:
        people = place.dataset("people")
        for version, generation in ((5, "g5"), (4, "g4"), (5, "g6")):
            write_announcement(people, "3f2b9c1e-77aa", generation, version, "2026-11-20T02:04:00Z")
        standing = read_announcement(people)
        assert standing is not None
        assert (standing.version, standing.generation) == (5, "g5")
        write_announcement(people, "3f2b9c1e-77aa", "g4", 6, "2026-11-20T02:04:00Z")
        standing = read_announcement(people)
        assert standing is not None
        assert (standing.version, standing.generation) == (6, "g4"), "a generation goes back, a version does not"

    def test_what_is_none_is_written_again(self, place: Place) -> None:
        people = place.dataset("people")
        people.write_note(ANNOUNCEMENT_NOTE, b"{")
        write_announcement(people, "3f2b9c1e-77aa", "g12", 17, "2026-11-20T02:04:00Z")
        assert read_announcement(people) == ANNOUNCEMENT

    def test_that_of_another_dataset_is_refused(self, place: Place) -> None:
        for other in (place.dataset("people", "0a0b0c0d"), place.dataset("places")):
            other.write_note(ANNOUNCEMENT_NOTE, ANNOUNCEMENT.to_json())
            with pytest.raises(CorruptFile, match=r"announces team/people \(3f2b9c1e\), expected team/"):
                read_announcement(other)

    @in_each_store
    def test_nobody_takes_it_for_a_generation_or_removes_it_while_the_dataset_lives(self, place: Place) -> None:
        people = place.dataset("people")
        write_announcement(people, "3f2b9c1e-77aa", "g1", 1, "2026-11-20T02:04:00Z")
        assert (people.generations(), people.published_generations(), people.known_generations()) == ((), (), ())
        assert (people.unfinished_generations(), people.next_generation()) == ({}, "g1")
        place.publish(people, "g1", "g2", "g3")
        assert people.generations() == people.known_generations() == ("g1", "g2", "g3")
        place.living(people, keep=1, protect=("g3",))
        swept(place)
        assert people.generations() == ("g3",)
        assert read_announcement(people) is not None

    def test_what_it_announces_is_spared_by_whoever_removes_of_its_own_account(self, place: Place) -> None:
        people = place.publish(place.dataset("people"), "g1", "g2", "g3", "g4", "g5")
        write_announcement(people, "3f2b9c1e-77aa", "g2", 1, "2026-11-20T02:04:00Z")
        assert remove_superseded(people, 2, ("g5",)) == ["g1", "g3"]
        assert prune(people, 1) == ["g4"]
        assert people.generations() == ("g2", "g5")
        people.write_note(ANNOUNCEMENT_NOTE, b"{")
        assert prune(people, 1) == ["g2"], "nobody follows what is no announcement"

    def test_the_sweep_removes_it_with_a_dataset_that_is_gone(self, place: Place, clock: Clock) -> None:
        people = place.publish(place.dataset("people"), "g1")
        write_announcement(people, "3f2b9c1e-77aa", "g1", 1, "2026-11-20T02:04:00Z")
        place.living()
        swept(place)
        assert read_announcement(people) is not None, "it is marked"
        clock.ahead = 25 * HOUR
        place.living()
        swept(place)
        assert read_announcement(people) is None
        assert place.open().addresses() == ()

    @in_each_store
    def test_one_that_came_late_goes_in_time(self, place: Place, clock: Clock) -> None:
        people = place.dataset("people")
        write_announcement(people, "3f2b9c1e-77aa", "g1", 1, "2026-11-20T02:04:00Z")
        place.living()
        swept(place)
        clock.ahead = 25 * HOUR
        place.living()
        swept(place)
        assert place.open().addresses() == ()

    def test_a_copy_has_none(self, place: Place, tmp_path: Path) -> None:
        people = place.publish(place.dataset("people"), "g1")
        write_announcement(people, "3f2b9c1e-77aa", "g1", 1, "2026-11-20T02:04:00Z")
        copied = place.dataset("people", cluster="c2")
        copy_generation(people, copied, None, place.scratch(), lambda _bytes: None)
        assert copied.generations() == ("g1",)
        assert read_announcement(copied) is None
