"""Which keys a load asks for: lines of a file, a sample of a generation, distributions, batches, made-up keys."""

from __future__ import annotations

import io
import random
from collections import Counter
from pathlib import Path

import orjson
import pytest
from support.shards import write_generation

from lookupdb.cli.load import read_key_lines
from lookupdb.errors import CorruptFile, UsageError
from lookupdb.load.plan import (
    KeyChooser,
    make_requests,
    make_target,
    parse_distribution,
    quote_key,
    take_sample,
)
from lookupdb.load.run import sample_generation
from lookupdb.store.generations import find_in_folder


def _choose(keys: int, distribution: str, count: int, hit_ratio: float = 1.0) -> Counter[int | str]:
    chooser = KeyChooser(keys, distribution, hit_ratio, random.Random(7))
    return Counter(chooser.choose() for _ in range(count))


def test_uniform_asks_for_all_keys_equally_often() -> None:
    counts = _choose(50, "uniform", 50_000)
    assert set(counts) == set(range(50))
    assert min(counts.values()) > 800
    assert max(counts.values()) < 1200


def test_zipf_asks_for_the_key_of_rank_n_a_part_as_often() -> None:
    counts = _choose(1000, "zipf:1", 200_000)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.1)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)
    steep = _choose(1000, "zipf:2", 200_000)
    assert steep[0] / steep[2] == pytest.approx(9, rel=0.2)


def test_made_up_keys_are_the_share_that_is_no_hit_and_each_is_another() -> None:
    counts = _choose(10, "uniform", 10_000, hit_ratio=0.3)
    made_up = [key for key in counts if isinstance(key, str)]
    assert len(made_up) == pytest.approx(7000, abs=250)
    assert all(key.startswith("lookupdb-load-") for key in made_up)


def test_keys_of_a_batch_are_different() -> None:
    for distribution in ("uniform", "zipf:1.2"):
        chooser = KeyChooser(200, distribution, 1.0, random.Random(7))
        batch = chooser.choose_batch(50)
        assert len(batch) == len(set(batch)) == 50
    steep = KeyChooser(200, "zipf:9", 1.0, random.Random(7)).choose_batch(50)
    assert len(steep) == len(set(steep)) < 50, "it gives up to choose what is never chosen"


@pytest.mark.parametrize(
    "text", ["", "normal", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:11", "zipf:nan", "uniform:1"]
)
def test_other_distributions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--distribution"):
        parse_distribution(text)


# Requests


def test_a_key_is_quoted_so_that_nobody_tidies_it_away() -> None:
    assert quote_key("KJFK") == b"/KJFK"
    assert quote_key("c++ ä%") == b"/c%2B%2B%20%C3%A4%25"
    assert [quote_key(key) for key in ("a/b", ".", "..", "")] == [b"?key=a%2Fb", b"?key=.", b"?key=..", b"?key="]


def test_requests_are_whole_http() -> None:
    target = make_target("http://example.com:81/people/", "a-token-of-20-bytes!", "g7", ["X-A: b"])
    chooser = KeyChooser(1, "uniform", 1.0, random.Random(1))
    single, keys = make_requests(target, ["k 1"], chooser, 1, partial=False)()
    head = (
        "HTTP/1.1\r\nHost: example.com:81\r\nUser-Agent: lookupdb-load\r\n"
        "Authorization: Bearer a-token-of-20-bytes!\r\nLookupdb-Generation: g7\r\nX-A: b\r\n"
    )
    assert (single.decode(), keys) == (f"GET /people/v1/lookup/k%201 {head}\r\n", 1)
    chooser = KeyChooser(3, "uniform", 1.0, random.Random(1))
    batch, keys = make_requests(target, ['"', "b", "c"], chooser, 3, partial=True)()
    begin, _, body = batch.decode().partition("\r\n\r\n")
    assert begin.startswith(f"POST /people/v1/lookup {head}")
    assert begin.endswith(f"Content-Type: application/json\r\nContent-Length: {len(body)}")
    assert keys == 3
    assert orjson.loads(body)["partial"] is True
    assert set(orjson.loads(body)["keys"]) == {'"', "b", "c"}


@pytest.mark.parametrize(
    "header",
    ["X", "X y: z", "X: a\r\nY: b", ": a", "X:", "Authorization: Bearer x", "cookie: a", "Content-Length: 3"],
)
def test_header_fields_that_cannot_be_or_would_show_a_secret_are_refused(header: str) -> None:
    with pytest.raises(UsageError, match="--header"):
        make_target("http://a", None, None, [header])
    with pytest.raises(UsageError, match="--at"):
        make_target("http://a", None, None, ["Lookupdb-Generation: g1"])


def test_a_host_of_ones_own_takes_the_place_of_the_urls() -> None:
    assert make_target("https://a:444", None, None, ["Host: lookups.example.com"]).head.count(b"Host: ") == 1
    assert make_target("https://a", None, None, []).port == 443


# Sources


def test_lines_of_a_file_are_keys() -> None:
    keys = read_key_lines(io.BytesIO("a\nä b\r\n\n c \nlast".encode()), "keys.txt", 1)
    assert sorted(keys) == sorted(["a", "ä b", " c ", "last"])


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "has no keys"), (b"\n\n", "has no keys"), (b"a\n\xff\n", "line 2 of keys.txt is not UTF-8")],
)
def test_what_has_no_keys_is_refused(content: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_key_lines(io.BytesIO(content), "keys.txt", 1)
    with pytest.raises(UsageError, match="has more than 65,536 bytes"):
        read_key_lines(io.BytesIO(b"x" * 100_000), "keys.txt", 1)


def test_a_sample_is_each_item_as_likely_as_any_other() -> None:
    counts: Counter[int] = Counter()
    for seed in range(2000):
        sample = take_sample(range(50), 5, seed)
        assert len(set(sample)) == 5
        counts.update(sample)
    assert set(counts) == set(range(50))
    assert min(counts.values()) > 140, "200 are expected"
    assert max(counts.values()) < 260


def test_a_seed_decides_a_sample_and_few_items_are_all_taken() -> None:
    assert take_sample(range(10_000), 10, 3) == take_sample(range(10_000), 10, 3) != take_sample(range(10_000), 10, 4)
    assert sorted(take_sample(range(7), 10, 1)) == list(range(7))
    assert take_sample([], 10, 1) == []


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(
        tmp_path_factory.mktemp("sampled"), {f"key {number}": b"v" for number in range(3000)}, shards=3
    )


def test_a_generation_is_sampled_from_all_its_shards(generation: Path, tmp_path: Path) -> None:
    stored = find_in_folder(generation)
    keys = sample_generation(stored, tmp_path, seed=1, size=300)
    assert len(keys) == len(set(keys)) == 300
    assert set(keys) <= {f"key {number}" for number in range(3000)}
    assert keys == sample_generation(stored, tmp_path, seed=1, size=300)
    assert sorted(sample_generation(stored, tmp_path, seed=1, size=5000)) == sorted(f"key {n}" for n in range(3000))


def test_a_damaged_shard_is_no_source(generation: Path, tmp_path: Path) -> None:
    stored = find_in_folder(generation)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in generation.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shard = copy / stored.manifest.shards[1].file
    shard.write_bytes(shard.read_bytes()[:-4096])
    with pytest.raises(CorruptFile):
        sample_generation(find_in_folder(copy), tmp_path, seed=1)
