"""The exact difference of two generations, which takes little memory whatever is in them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from support.generations import publish

from lookupdb import store
from lookupdb.shardfile import FRAMED, ShardReader, unframe
from lookupdb.store import StoreAddress, StoredDataset, generations
from lookupdb.store.generations import MAX_VALUE_CHARACTERS, compare_generations, find_in_store
from support import dictionaries

VALUE_BYTES = 200_000
KEYS = [f"key-{number:03d}" for number in range(64)]


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    (tmp_path / "scratch").mkdir()
    return store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", "local"))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (16, 16), (16, 12)])
def test_large_values_are_in_memory_one_at_a_time_whatever_the_numbers_of_shards(
    dataset: StoredDataset, tmp_path: Path, before: int, after: int
) -> None:
    """Ten samples of each of sixteen shards would be 64 MB, a value of each shard is 5 MB."""
    for name, shards, letter in (("g1", before, b"a"), ("g2", after, b"b")):
        content = {key: letter * (VALUE_BYTES + number) for number, key in enumerate(KEYS)}
        publish(dataset, name, content, tmp_path / "scratch", shards=shards)
    old, new = find_in_store(dataset, "g1"), find_in_store(dataset, "g2")
    tracemalloc.start()
    try:
        found = compare_generations(old, new, tmp_path / "scratch", 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.changed == len(KEYS)
    assert [change.key.decode() for change in found.samples["changed"]] == KEYS[:10]
    assert peak < 10 * VALUE_BYTES


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3)])
def test_values_are_compared_as_lookups_return_them(
    dataset: StoredDataset, tmp_path: Path, before: int, after: int
) -> None:
    scratch = tmp_path / "scratch"
    publish(dataset, "g1", dictionaries.BEFORE, scratch, shards=before, dictionary=dictionaries.OLD_DICTIONARY)
    publish(dataset, "g2", dictionaries.AFTER, scratch, shards=after, dictionary=dictionaries.NEW_DICTIONARY)
    found = compare_generations(find_in_store(dataset, "g1"), find_in_store(dataset, "g2"), scratch)
    assert (found.added, found.removed, found.same) == (0, 0, dictionaries.SAME)
    assert [change.key.decode() for change in found.samples["changed"]] == dictionaries.CHANGED
    for change in found.samples["changed"]:
        assert change.before == dictionaries.BEFORE[change.key.decode()]
        assert change.after == dictionaries.AFTER[change.key.decode()]


def test_stored_bytes_tell_nothing_of_those_values(dataset: StoredDataset, tmp_path: Path) -> None:
    """Otherwise the previous test could not fail."""
    stored: list[dict[str, bytes]] = []
    for name, content, dictionary in (
        ("g1", dictionaries.BEFORE, dictionaries.OLD_DICTIONARY),
        ("g2", dictionaries.AFTER, dictionaries.NEW_DICTIONARY),
    ):
        publish(dataset, name, content, tmp_path / "scratch", shards=1, dictionary=dictionary)
        with find_in_store(dataset, name).shards(tmp_path / "scratch") as (shard,):
            assert shard.dictionary == dictionary
            stored.append({key.decode(): value for key, value in shard.items()})
    old, new = stored
    assert old[dictionaries.EQUAL_BYTES] == new[dictionaries.EQUAL_BYTES]
    assert old[dictionaries.EQUAL_VALUE] != new[dictionaries.EQUAL_VALUE]
    for key in (dictionaries.EQUAL_BYTES, dictionaries.EQUAL_VALUE):
        assert FRAMED not in (old[key][0], new[key][0])


@pytest.mark.parametrize(("before", "after", "together"), [(6, 6, 2), (4, 6, 5), (3, 6, 3), (2, 3, 5)])
def test_only_shards_that_can_hold_the_same_keys_are_open_together(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, together: int
) -> None:
    opened: list[ShardReader] = []
    most_open = 0

    def open_shard(path: Path) -> ShardReader:
        nonlocal most_open
        opened.append(ShardReader(path))
        most_open = max(most_open, len(opened))
        return opened[-1]

    def close(shard: ShardReader) -> None:
        opened.remove(shard)
        close_shard(shard)

    close_shard = ShardReader.close
    old = {f"k{number}": b"%d" % (number % 7) for number in range(500)}
    new = {f"k{number}": b"%d" % (number % 5) for number in range(100, 700)}
    publish(dataset, "g1", old, tmp_path / "scratch", shards=before)
    publish(dataset, "g2", new, tmp_path / "scratch", shards=after)
    monkeypatch.setattr(generations, "open_shard", open_shard)
    monkeypatch.setattr(ShardReader, "close", close)
    found = compare_generations(find_in_store(dataset, "g1"), find_in_store(dataset, "g2"), tmp_path / "scratch")
    same = sum(old[key] == new[key] for key in old.keys() & new.keys())
    assert (found.added, found.removed, found.changed, found.same) == (200, 100, 400 - same, same)
    assert [change.key.decode() for change in found.samples["added"]] == sorted(new.keys() - old.keys())[:5]
    assert [change.key.decode() for change in found.samples["removed"]] == sorted(old.keys() - new.keys())[:5]
    assert most_open == together
    assert not opened


def test_shards_of_one_dictionary_share_what_inflates_by_it(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", dictionaries.BEFORE, tmp_path, shards=3, dictionary=dictionaries.OLD_DICTIONARY)
    with find_in_store(dataset, "g1").shards(tmp_path) as shards:
        assert len({id(shard.inflate) for shard in shards}) == 1
        found = {key: unframe(shard.expand(stored)) for shard in shards for key, stored in shard.items()}
    assert found == {key.encode(): value for key, value in dictionaries.BEFORE.items()}


@pytest.mark.parametrize("character", ["a", "é", "€", "😀"])
@pytest.mark.parametrize("characters", [MAX_VALUE_CHARACTERS, MAX_VALUE_CHARACTERS + 1, 9000])
def test_of_a_sampled_value_is_kept_what_is_shown_and_that_there_is_more(
    dataset: StoredDataset, tmp_path: Path, character: str, characters: int
) -> None:
    publish(dataset, "g1", {}, tmp_path / "scratch")
    publish(dataset, "g2", {"k": (character * characters).encode()}, tmp_path / "scratch")
    old, new = find_in_store(dataset, "g1"), find_in_store(dataset, "g2")
    (change,) = compare_generations(old, new, tmp_path / "scratch").samples["added"]
    assert change.after
    kept = change.after.decode("utf-8", "backslashreplace")
    assert kept[:MAX_VALUE_CHARACTERS] == character * MAX_VALUE_CHARACTERS
    assert (len(kept) > MAX_VALUE_CHARACTERS) == (characters > MAX_VALUE_CHARACTERS)
    assert len(change.after) <= 4 * (MAX_VALUE_CHARACTERS + 1)
