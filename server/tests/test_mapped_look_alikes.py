"""A mapping as a set of its keys, and as a sequence of its values."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import cast

import pytest
from support.mapped import SyncedDataset
from support.shards import write_generation

from lookupdb.errors import UsageError
from lookupdb.mapped import open_dataset
from lookupdb.mapped.dataset import ValueSequence

VALUES = [b"value %d" % number for number in range(300)]
RECORDS = {str(number): value for number, value in enumerate(VALUES)}


def test_a_set_of_keys(tmp_path: Path) -> None:
    records = {"ada": b"", "bob": b"", "eve": b""}
    names: Set[object] = open_dataset(
        write_generation(tmp_path, records, shards=2, normalize=("strip", "lowercase"))
    ).as_set()
    assert isinstance(names, Set)
    assert names == {"ada", "bob", "eve"}
    assert len(names) == 3
    assert " Ada" in names
    assert 7 not in names
    assert names & {"ada", "x"} == {"ada"}
    assert names | {"x"} == {"ada", "bob", "eve", "x"}
    assert names - {"ada"} == {"bob", "eve"}
    assert {"ada"} < names
    assert names >= {"bob"}
    assert names.isdisjoint({"x"})
    assert type(names | {"x"}) is set
    assert not hasattr(names, "add")


@pytest.fixture
def values(tmp_path: Path) -> ValueSequence:
    return open_dataset(write_generation(tmp_path, RECORDS, shards=3)).as_sequence()


def test_a_sequence_of_values(values: ValueSequence) -> None:
    assert isinstance(values, Sequence)
    assert len(values) == 300
    assert (values[0], values[7], values[-1], values[-300]) == (VALUES[0], VALUES[7], VALUES[-1], VALUES[0])
    assert list(values) == VALUES
    assert list(reversed(values)) == VALUES[::-1]
    assert values.index(b"value 9") == 9
    assert values.count(b"value 9") == 1
    assert b"value 9" in values
    assert b"x" not in values


@pytest.mark.parametrize("place", [300, -301, 10**30])
def test_places_beyond_the_end(values: ValueSequence, place: int) -> None:
    with pytest.raises(IndexError):
        values[place]


@pytest.mark.parametrize("place", ["1", 1.0, None])
def test_what_is_no_place(values: ValueSequence, place: object) -> None:
    with pytest.raises(TypeError):
        values[place]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(2, 5), slice(-3, None), slice(None, None, -1), slice(5, 2), slice(0, 900, 7), slice(-1, 0, -9)],
)
def test_slices_are_lists(values: ValueSequence, part: slice) -> None:
    assert values[part] == VALUES[part]


@pytest.mark.parametrize(
    "records",
    [
        {"0": b"", "2": b""},
        {"0": b"", "1": b"", "x": b""},
        {"1": b"", "2": b""},
        {"0": b"", "01": b""},
        {"0": b"", "-1": b""},
        {"0": b"", "1.0": b""},
        {"0": b"", "1" * 30: b""},
        {"0": b"", "١": b""},
        {"00": b""},
    ],
)
def test_other_keys_are_no_sequence(tmp_path: Path, records: dict[str, bytes]) -> None:
    mapping = open_dataset(write_generation(tmp_path, records, shards=2))
    assert not mapping.is_sequence()
    with pytest.raises(UsageError, match=f"is not a sequence: expected the keys 0 to {len(records) - 1} for "):
        mapping.as_sequence()


def test_none_at_all_is_an_empty_one(tmp_path: Path) -> None:
    values = open_dataset(write_generation(tmp_path, {}, shards=2)).as_sequence()
    assert list(values) == []
    assert values[:] == []
    with pytest.raises(IndexError):
        values[0]


def test_they_follow_and_an_iteration_stays(tmp_path: Path) -> None:
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", RECORDS)
    mapping = open_dataset(dataset.path, refresh_seconds=0)
    values, names = mapping.as_sequence(), cast("Set[object]", mapping.as_set())
    iterator = iter(values)
    assert next(iterator) == VALUES[0]
    dataset.publish("g2", {"0": b"new", "1": b"newer"})
    assert list(values) == [b"new", b"newer"]
    assert names == {"0", "1"}
    assert list(iterator) == VALUES[1:]
    dataset.publish("g3", {"a": b"new"})
    with pytest.raises(UsageError, match=r"/g3 is not a sequence"):
        values[0]
    assert names == {"a"}
