"""The choice of the compression dictionary: what is tried, on how much, and that it is the same everywhere."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Any

import pytest
import zstandard

from lookupdb.builder import dictionary as choosing
from lookupdb.builder.dictionary import NO_PREVIOUS, ROUNDS, PreviousDictionary, choose_dictionary
from lookupdb.builder.write import Compressor
from lookupdb.manifest import DictionaryChoice
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


def train(sample: list[bytes], **options: int) -> bytes:
    """The dictionary of a first generation."""
    dictionary, choice = choose_dictionary(sample, NO_PREVIOUS, **options)
    assert str(choice) == "trained: there is no earlier generation"
    return dictionary


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
    dictionary = train(people(8_000), records=1_000_000, shards=1)
    held = people(1000, seed=2)
    assert dictionary
    assert stored(held, dictionary) < stored(held, b"") * 0.8


def test_no_dictionary_where_files_would_grow_by_it() -> None:
    assert train(people(2000), records=2000, shards=100) == b""


def test_no_dictionary_from_noise_or_from_few_or_from_nothing() -> None:
    noise = [random.Random(number).randbytes(300) for number in range(1000)]
    assert train(noise, records=1_000_000, shards=1) == b""
    assert train([b"{}"] * 10, records=10, shards=1) == b""
    assert train([], records=0, shards=1) == b""
    assert train([b""] * 1000, records=1000, shards=1) == b""


def test_the_choice_is_the_same_each_time_on_any_number_of_threads() -> None:
    sample = people(8_000)
    chosen = [train(sample, records=10**6, shards=4, threads=threads) for threads in (1, 8)]
    assert len(set(chosen)) == 1
    assert chosen[0]


def test_a_large_dictionary_is_chosen_where_only_it_pays_and_training_is_bounded(trained: dict[int, int]) -> None:
    """The bound is a number of bytes for each byte of the dictionary."""
    sample = catalogue(45_000)
    assert len(train(sample, records=100_000_000, shards=4)) >= LARGE
    assert set(trained) == {SMALL, MEDIUM, LARGE, LARGEST}
    assert trained[SMALL] == pytest.approx(2 << 20, rel=0.001)
    assert trained[MEDIUM] == pytest.approx(2 << 20, rel=0.001)
    assert trained[LARGE] == trained[LARGEST] == pytest.approx(sum(map(len, sample)) * 7 / 8, rel=0.05)


def test_a_large_dictionary_is_not_tried_where_its_copies_cost_more_than_the_records(trained: dict[int, int]) -> None:
    assert train(people(8_000), records=20_000, shards=4)
    assert set(trained) == {SMALL, MEDIUM}


def test_a_large_dictionary_is_not_tried_where_small_ones_gain_nothing(trained: dict[int, int]) -> None:
    noise = [random.Random(number).randbytes(300) for number in range(20_000)]
    assert train(noise, records=100_000_000, shards=1) == b""
    assert set(trained) <= {SMALL, MEDIUM}


# A refresh: keep the dictionary of the active generation, or train another.


def refresh(sample: list[bytes], dictionary: bytes, records: int = 10**6, shards: int = 1) -> DictionaryChoice:
    """The choice after a generation g7 with ``dictionary``."""
    chosen, choice = choose_dictionary(sample, PreviousDictionary("g7", dictionary), records=records, shards=shards)
    assert choice.sha256 == hashlib.sha256(chosen).hexdigest()
    assert (chosen == dictionary) == (choice.outcome == "kept")
    return choice


def test_a_refresh_with_few_changes_keeps_the_dictionary() -> None:
    before = people(8_000)
    dictionary = train(before, records=10**6, shards=1)
    for changed in (0, 80):
        after = people(changed, seed=2) + before[changed:]
        choice = refresh(after, dictionary)
        assert choice.outcome == "kept"
        assert choice.reason.startswith("by the sample, g7's makes files ")


def test_values_that_have_become_others_train_another() -> None:
    choice = refresh(people(8_000, seed=2), train(people(8_000), records=10**6, shards=1))
    assert choice.outcome == "trained"
    assert choice.reason.endswith(" % larger than a newly trained one")


@pytest.mark.parametrize(
    ("bytes_kept", "outcome", "change"),
    [
        (9_000, "kept", "10.00 % smaller"),
        (10_000, "kept", "0.00 % larger"),
        (10_200, "kept", "2.00 % larger"),
        (10_201, "trained", "2.01 % larger"),
        (20_000, "trained", "100.00 % larger"),
    ],
)
def test_two_percent_are_the_limit(monkeypatch: pytest.MonkeyPatch, bytes_kept: int, outcome: str, change: str) -> None:
    """The evaluation is given; dictionaries hardly count beside so many records."""
    sizes = {b"": 10_000, b"previous": bytes_kept}
    monkeypatch.setattr(choosing, "_stored_bytes", lambda _, dictionary: sizes.get(dictionary, 11_000))
    choice = refresh(people(8_000), b"previous", records=10**30)
    assert str(choice) == f"{outcome}: by the sample, g7's makes files {change} than a newly trained one"


def test_a_dictionary_whose_copies_have_become_too_many_is_not_kept() -> None:
    sample = people(8_000)
    dictionary = train(sample, records=10**6, shards=1)
    assert refresh(sample, dictionary, shards=1).outcome == "kept"
    assert refresh(sample, dictionary, records=20_000, shards=1000).outcome == "trained"


def test_none_is_kept_by_the_same_rule() -> None:
    noise = [random.Random(number).randbytes(300) for number in range(1000)]
    assert refresh(noise, b"").outcome == "kept"
    assert refresh(people(8_000), b"").outcome == "trained"


def test_a_sample_too_small_to_train_on_keeps_what_serves_it() -> None:
    dictionary = train(people(8_000), records=10**6, shards=1)
    assert refresh(people(60), dictionary).outcome == "kept"
    assert refresh([], dictionary) == DictionaryChoice(
        "trained", "the sample has no values", hashlib.sha256(b"").hexdigest()
    )


def test_what_is_no_dictionary_is_replaced() -> None:
    broken = b"\x37\xa4\x30\xec" + bytes(1000)
    choice = refresh(people(8_000), broken)
    assert choice.outcome == "trained"
    assert choice.reason.startswith("g7's cannot be used: ")


def test_records_to_evaluate_on_stay_the_same_when_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that an earlier dictionary was trained on would flatter it."""
    training: list[set[bytes]] = []
    train_dictionary = zstandard.train_dictionary

    def spy(size: int, texts: list[Any], **parameters: int) -> zstandard.ZstdCompressionDict:
        training.append(set(texts))
        return train_dictionary(size, texts, **parameters)

    evaluated: list[set[bytes]] = []
    stored_bytes = choosing._stored_bytes

    def watch(values: list[bytes], dictionary: bytes) -> int:
        evaluated.append(set(values))
        return stored_bytes(values, dictionary)

    monkeypatch.setattr(zstandard, "train_dictionary", spy)
    monkeypatch.setattr(choosing, "_stored_bytes", watch)
    before = people(4000)
    dictionary = train(before, records=10**6, shards=1)
    trained_on = set().union(*training)
    evaluated.clear()
    refresh([value for number, value in enumerate(before) if number % 100 != 7], dictionary)
    assert evaluated
    assert all(len(values & trained_on) <= 0.02 * len(values) for values in evaluated)
