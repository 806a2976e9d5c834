"""The difference between a new generation and the active one, from real files of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.buckets import new_bucket, s3_server
from support.generations import in_batches, publish, records, write

from lookupdb import store
from lookupdb.builder import existing
from lookupdb.builder.existing import choose_halvings, choose_shards, compare_sampled
from lookupdb.builder.gates import SampledDifference
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.keys import file_name, make_sampler, shard_number
from lookupdb.manifest import ShardFile, Totals
from lookupdb.shardfile import ShardReader
from lookupdb.store import StoredDataset, generations
from lookupdb.store.bucket_dataset import BucketDataset
from lookupdb.store.dataset import StoreAddress
from lookupdb.store.generations import StoredGeneration
from support import dictionaries

BEFORE = {f"k{number}": b'{"v": %d}' % number for number in range(3000)}
AFTER = (
    {key: value for key, value in BEFORE.items() if not key.endswith("7")}
    | {f"k{number}": b"changed" for number in range(0, 3000, 10)}
    | {f"new{number}": b"1" for number in range(150)}
)
TOTALS = Totals(0, 0, 0, 0, 0)


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    return store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", "local"))


def opener(folder: Path, shards: int, opened: list[str] | None = None) -> Callable[[int], ShardReader]:
    def open_shard(number: int) -> ShardReader:
        path = folder / file_name(number, shards)
        if opened is not None:
            opened.append(path.name)
        return ShardReader(path)

    return open_shard


class Comparison:
    """Compares contents, as files of a store and files of a builder."""

    def __init__(self, dataset: StoredDataset, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder
        self.opened: list[str] = []

    def of(self, before: int, after: int) -> SampledDifference:
        active = publish(self.dataset, "g1", BEFORE, self.folder, shards=before, train=True)
        _, totals = write(self.folder / "new", in_batches(records(AFTER)), shards=after)
        before_shards = StoredGeneration("", active, self.dataset)
        opened = opener(self.folder / "new", after, self.opened)
        return compare_sampled(before_shards, opened, after, totals, self.folder)


@pytest.fixture
def comparison(dataset: StoredDataset, tmp_path: Path) -> Comparison:
    return Comparison(dataset, tmp_path)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (4, 4), (4, 6), (6, 4), (3, 5), (1, 7), (7, 1)])
def test_a_small_dataset_is_compared_whole_whatever_its_numbers_of_shards(
    comparison: Comparison, before: int, after: int
) -> None:
    found = comparison.of(before, after)
    assert (found.added, found.removed, found.changed, found.same) == (150, 300, 300, 2400)
    assert found.is_whole
    assert {kind: len(keys) for kind, keys in found.samples.items()} == {"added": 10, "removed": 10, "changed": 10}
    assert all(key.decode() in BEFORE and key.decode() not in AFTER for key in found.samples["removed"])


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3)])
def test_values_are_compared_as_lookups_return_them(
    dataset: StoredDataset, tmp_path: Path, before: int, after: int, compression: str
) -> None:
    active = publish(
        dataset, "g1", dictionaries.BEFORE, tmp_path, shards=before, dictionary=dictionaries.OLD_DICTIONARY
    )
    new_dictionary = dictionaries.NEW_DICTIONARY if compression == "zstd" else b""
    batches = in_batches(records(dictionaries.AFTER))
    _, totals = write(tmp_path / "new", batches, shards=after, compression=compression, dictionary=new_dictionary)
    found = compare_sampled(
        StoredGeneration("", active, dataset), opener(tmp_path / "new", after), after, totals, tmp_path
    )
    assert (found.added, found.removed, found.same) == (0, 0, dictionaries.SAME)
    assert sorted(key.decode() for key in found.samples["changed"]) == dictionaries.CHANGED


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 6), (6, 4), (1, 3), (8, 3)])
def test_of_more_a_sample_is_compared_that_is_like_all_of_it(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    monkeypatch.setattr(existing, "MAX_KEYS", 600)
    found = comparison.of(before, after)
    assert not found.is_whole
    assert 400 <= found.compared <= 1600
    assert 100 * found.differing / found.compared == pytest.approx(100 * 750 / 3150, abs=5)
    assert 100 * found.added / found.compared == pytest.approx(100 * 150 / 3150, abs=3)


@pytest.mark.parametrize(("before", "after"), [(8, 6), (6, 8), (5, 7), (8, 8)])
def test_what_is_counted_is_exactly_what_differs_of_the_sampled_keys(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    """The sample is one in 2^k keys of the first shards, in both generations, also with different numbers of shards."""
    monkeypatch.setattr(existing, "MAX_KEYS", 600)
    found = comparison.of(before, after)
    shards = [sum(shard_number(key.encode(), before) == number for key in BEFORE) for number in range(before)]
    chosen = next(count for count in range(1, before + 1) if sum(shards[:count]) >= 600)
    is_sampled = make_sampler(choose_halvings(max(sum(shards[:chosen]), len(AFTER) * chosen // before)))
    keys = {
        key for key in {**BEFORE, **AFTER} if shard_number(key.encode(), before) < chosen and is_sampled(key.encode())
    }
    assert found.compared == len(keys)
    assert found.added == len(keys - BEFORE.keys())
    assert found.removed == len(keys - AFTER.keys())
    assert found.same == sum(BEFORE.get(key) == AFTER.get(key) for key in keys)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (12, 11), (11, 12), (12, 8), (1, 9)])
def test_each_file_is_opened_once_whatever_the_numbers_of_shards(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    opened = comparison.opened

    def open_old(path: Path) -> ShardReader:
        opened.append(path.name)
        return generations.open_shard(path)

    monkeypatch.setattr(existing, "open_shard", open_old)
    comparison.of(before, after)
    assert len(opened) == before + after


@pytest.mark.parametrize(("before", "after"), [(4, 6), (1, 3)])
def test_long_keys_make_the_sample_smaller_and_never_take_more_memory(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    monkeypatch.setattr(existing, "MAX_KEPT_BYTES", 4000)
    found = comparison.of(before, after)
    assert not found.is_whole
    assert 300 <= found.compared - found.added <= 4000 / 2
    assert 100 * found.differing / found.compared == pytest.approx(100 * 750 / 3150, abs=6)
    assert 100 * found.added / found.compared == pytest.approx(100 * 150 / 3150, abs=3)


def test_a_shard_that_cannot_be_read_is_an_error(dataset: StoredDataset, tmp_path: Path) -> None:
    active = publish(dataset, "g1", BEFORE, tmp_path, shards=2)
    _, totals = write(tmp_path / "new", in_batches(records(AFTER)), shards=2)
    (Path(dataset.url) / "g1" / active.shards[1].file).unlink()
    with pytest.raises(CorruptFile, match=r"shard-00001-of-00002\.lmdb of g1 is missing"):
        compare_sampled(StoredGeneration("", active, dataset), opener(tmp_path / "new", 2), 2, totals, tmp_path)


class TestBucket:
    @pytest.fixture
    def dataset(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketDataset]:
        with s3_server() as url:
            yield BucketDataset(new_bucket(url, monkeypatch), StoreAddress("local", "default", "things", "local"))

    def test_one_file_at_a_time_is_copied_and_none_is_left(
        self, dataset: BucketDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies: list[int] = []
        opened = generations.open_shard

        def open_shard(path: Path) -> ShardReader:
            copies.append(len(list(tmp_path.glob("*.lmdb"))))
            return opened(path)

        monkeypatch.setattr(existing, "open_shard", open_shard)
        found = Comparison(dataset, tmp_path).of(3, 2)
        assert (found.added, found.removed, found.changed, found.same) == (150, 300, 300, 2400)
        assert copies == [1, 1, 1]
        assert not list(tmp_path.glob("*.lmdb"))

    def test_what_the_store_has_lost_or_damaged_is_an_error(self, dataset: BucketDataset, tmp_path: Path) -> None:
        comparison = Comparison(dataset, tmp_path)
        comparison.of(1, 1)
        active = dataset.manifest("g1")
        path = f"{dataset.address.path}/g1/{active.shards[0].file}"
        dataset.bucket.objects.put(path, bytes(active.shards[0].bytes))
        with pytest.raises(CorruptFile, match="has checksum"):
            compare_sampled(StoredGeneration("", active, dataset), opener(tmp_path / "new", 1), 1, TOTALS, tmp_path)
        dataset.bucket.objects.delete([path])
        with pytest.raises(CorruptFile, match="is missing"):
            compare_sampled(StoredGeneration("", active, dataset), opener(tmp_path / "new", 1), 1, TOTALS, tmp_path)
        dataset.remove("g1")
        with pytest.raises(GenerationMissing):
            compare_sampled(StoredGeneration("", active, dataset), opener(tmp_path / "new", 1), 1, TOTALS, tmp_path)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (4, 4), (4, 6), (6, 4), (1, 5)])
@pytest.mark.parametrize("is_growing", [True, False], ids=["grown", "shrunk"])
def test_the_generation_with_more_keys_decides_how_many_are_compared(
    dataset: StoredDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: int,
    is_growing: bool,
) -> None:
    monkeypatch.setattr(existing, "MAX_KEYS", 300)
    small, large = dict(list(BEFORE.items())[:10]), BEFORE
    old, new = (small, large) if is_growing else (large, small)
    active = publish(dataset, "g1", old, tmp_path, shards=before)
    _, totals = write(tmp_path / "new", in_batches(records(new)), shards=after)
    found = compare_sampled(
        StoredGeneration("", active, dataset), opener(tmp_path / "new", after), after, totals, tmp_path
    )
    assert not found.is_whole
    assert 250 <= found.compared <= 700
    assert found.differing >= 0.95 * found.compared


def shard(records: int, size: int) -> ShardFile:
    return ShardFile("", size, records, "")


@pytest.mark.parametrize(
    ("shards", "totals", "read"),
    [
        pytest.param([shard(10, 1)] * 5, TOTALS, 5, id="few keys: all"),
        pytest.param([shard(60_000, 1)] * 5, TOTALS, 2, id="until there are enough"),
        pytest.param([shard(50_000, 1)] * 5, TOTALS, 2, id="until there are exactly enough"),
        pytest.param([shard(10, 1)] * 5, Totals(300_000, 0, 0, 0, 5), 2, id="until the other has enough"),
        pytest.param([shard(10**9, 1 << 50)] * 5, TOTALS, 1, id="one, however large"),
        pytest.param([shard(10, 1)] * 5, Totals(10**9, 0, 0, 0, 1 << 50), 1, id="one, however large the other is"),
        pytest.param([shard(10, 1 << 29)] * 5, TOTALS, 2, id="no more than a gigabyte of large values"),
        pytest.param([shard(10, 1)] * 5, Totals(50, 0, 0, 0, 5 << 29), 2, id="nor of the other's"),
        pytest.param([shard(0, 1)], TOTALS, 1, id="empty"),
    ],
)
def test_no_more_shards_are_read_than_it_takes(shards: list[ShardFile], totals: Totals, read: int) -> None:
    assert len(choose_shards(shards, totals)) == read


@pytest.mark.parametrize(
    ("keys", "halvings"),
    [(0, 0), (199_999, 0), (200_000, 1), (399_999, 1), (400_000, 2), (10**9, 13), (2**62, 45)],
)
def test_the_sample_is_halved_while_enough_are_left(keys: int, halvings: int) -> None:
    assert choose_halvings(keys) == halvings


def test_a_sample_is_spread_over_all_shards_and_holds_every_smaller_one() -> None:
    keys = [b"key-%d" % number for number in range(40_000)]
    samples = [{key for key in keys if make_sampler(halvings)(key)} for halvings in range(5)]
    assert samples[0] == set(keys)
    for number, sample in enumerate(samples):
        assert len(sample) == pytest.approx(len(keys) / 2**number, rel=0.1)
        assert sample <= samples[max(0, number - 1)]
        counts = [sum(shard_number(key, 8) == part for key in sample) for part in range(8)]
        assert min(counts) > 0.7 * len(sample) / 8
