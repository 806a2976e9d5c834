"""The time that a pod is away is measured by one process, whatever other clocks say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookupdb_operator import names
from lookupdb_operator.loop.observe import Absences
from lookupdb_operator.model import Absence, Observed, ObservedDataset, Pod

DATASET = ObservedDataset("shop", "airports", "u1", "1", 1, {}, None)
READY = Pod("router-a", "a", names.ROUTER, ready=True)
UNREADY = Pod("router-a", "a", names.ROUTER, unready_since="2020-01-01T00:00:00Z")
DELETED = replace(UNREADY, deleting=True)


class Bench:
    """A clock, and the absences seen by one process."""

    def __init__(self) -> None:
        self.now = 100.0
        self.absences = Absences(lambda: self.now)

    def look(self, *pods: Pod, after: float = 0.0) -> Absence | None:
        """Return for how long pod a was seen away, ``after`` so many seconds more."""
        self.now += after
        return self.absences.measure(Observed(DATASET, pods=pods)).get("a")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_the_seconds_since_the_first_look_count(bench: Bench) -> None:
    assert bench.look(DELETED) == Absence(0, 0), "whatever was written, and by which clock"
    assert bench.look(DELETED, after=7.5) == Absence(7.5, 7.5)


def test_what_was_not_ready_before_it_was_deleted_counts_for_that_alone(bench: Bench) -> None:
    bench.look(READY)
    assert bench.look(UNREADY, after=60) == Absence(0, 0)
    assert bench.look(UNREADY, after=60) == Absence(60, 0)
    assert bench.look(DELETED, after=60) == Absence(120, 0)
    assert bench.look(DELETED, after=60) == Absence(180, 60)


def test_a_pod_that_is_ready_in_between_begins_again(bench: Bench) -> None:
    bench.look(DELETED)
    assert bench.look(replace(DELETED, ready=True, unready_since=""), after=60) is None
    assert bench.look(DELETED, after=60) == Absence(0, 0)


def test_a_pod_that_was_ready_between_two_looks_does_so_too(bench: Bench) -> None:
    bench.look(DELETED)
    again = replace(DELETED, unready_since="2020-01-01T00:00:30Z")
    assert bench.look(again, after=60) == Absence(0, 60)


def test_another_pod_of_the_name_begins_again(bench: Bench) -> None:
    bench.look(replace(DELETED, uid="before"))
    assert bench.look(DELETED, after=60) == Absence(0, 0)


def test_no_more_is_remembered_than_there_are_pods(bench: Bench) -> None:
    for number in range(50):
        bench.look(replace(DELETED, uid=str(number)), DELETED)
    assert bench.absences._sightings.keys() == {"49", "a"}
    bench.look(READY)
    assert not bench.absences._sightings
