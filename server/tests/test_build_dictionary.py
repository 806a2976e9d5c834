"""The choice of the compression dictionary: what is tried, on how much, and that it is the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
import zstandard

from lookupdb.builder.write import ROUNDS, Compressor, choose_dictionary
from lookupdb.shardfile import frame

SMALL, MEDIUM, LARGE, LARGEST = (size for sizes in ROUNDS for size in sizes)


def people(count: int, seed: int = 1) -> list[bytes]:
    """Values that have much in common: a few teams, and a manager out of a pool."""
    chance = random.Random(seed)
    managers = [f"{chance.getrandbits(128):032x}" for _ in range(50)]
    return [
        b'{"team":"%b","manager":"%b","salary":%d}'
        % (chance.choice([b"research", b"sales", b"operations"]), chance.choice(managers).encode(), number)
        for number in range(count)
    ]


def catalogue(count: int) -> list[bytes]:
    """Values whose common part is larger than a small dictionary: ten of 20,000 products each."""
    chance = random.Random(1)
    products = [chance.randbytes(20) for _ in range(20_000)]
    return [b"".join(chance.choices(products, k=10)) for _ in range(count)]


def stored(values: Iterable[bytes], dictionary: bytes) -> int:
    return sum(map(len, Compressor(dictionary).store([frame(value) for value in values])))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Dictionaries that a choice trained: size → number of bytes in the samples."""
    found: dict[int, int] = {}
    train = zstandard.train_dictionary

    def count(size: int, texts: list[Any], **parameters: int) -> zstandard.ZstdCompressionDict:
        found[size] = sum(map(len, texts))
        return train(size, texts, **parameters)

    monkeypatch.setattr(zstandard, "train_dictionary", count)
    return found


def test_a_dictionary_pays_for_many_records_with_much_in_common() -> None:
    dictionary = choose_dictionary(people(20_000), records=1_000_000, shards=1)
    held = people(1000, seed=2)
    assert dictionary
    assert stored(held, dictionary) < stored(held, b"") * 0.8


def test_no_dictionary_where_files_would_grow_by_it() -> None:
    assert choose_dictionary(people(2000), records=2000, shards=100) == b""


def test_no_dictionary_from_noise_or_from_few_or_from_nothing() -> None:
    noise = [random.Random(number).randbytes(300) for number in range(1000)]
    assert choose_dictionary(noise, records=1_000_000, shards=1) == b""
    assert choose_dictionary([b"{}"] * 10, records=10, shards=1) == b""
    assert choose_dictionary([], records=0, shards=1) == b""
    assert choose_dictionary([b""] * 1000, records=1000, shards=1) == b""


def test_the_choice_is_the_same_each_time_on_any_number_of_threads() -> None:
    sample = people(20_000)
    chosen = [choose_dictionary(sample, records=10**6, shards=4, threads=threads) for threads in (1, 2, 8)]
    assert len(set(chosen)) == 1
    assert chosen[0]


def test_a_large_dictionary_is_chosen_where_only_it_pays_and_training_is_bounded(trained: dict[int, int]) -> None:
    """The bound is a number of bytes for each byte of the dictionary."""
    sample = catalogue(45_000)
    assert len(choose_dictionary(sample, records=100_000_000, shards=4)) >= LARGE
    assert set(trained) == {SMALL, MEDIUM, LARGE, LARGEST}
    assert trained[SMALL] == pytest.approx(2 << 20, rel=0.001)
    assert trained[MEDIUM] == pytest.approx(2 << 20, rel=0.001)
    assert trained[LARGE] == trained[LARGEST] == pytest.approx(sum(map(len, sample)) * 7 / 8, rel=0.05)


def test_a_large_dictionary_is_not_tried_where_its_copies_cost_more_than_the_records(trained: dict[int, int]) -> None:
    assert choose_dictionary(people(20_000), records=20_000, shards=4)
    assert set(trained) == {SMALL, MEDIUM}


def test_a_large_dictionary_is_not_tried_where_small_ones_gain_nothing(trained: dict[int, int]) -> None:
    noise = [random.Random(number).randbytes(300) for number in range(20_000)]
    assert choose_dictionary(noise, records=100_000_000, shards=1) == b""
    assert set(trained) <= {SMALL, MEDIUM}
