"""Keys: what bytes a key becomes, and which shard they live in. The hash is a wire contract."""

import pytest

from lookupdb import keys

E_ACUTE_COMPOSED, E_ACUTE_DECOMPOSED = "\u00e9", "e\u0301"


@pytest.mark.parametrize(
    ("key", "shards", "shard"),
    [
        pytest.param(b"kjfk", 4, 0, id="short"),
        pytest.param("søren@example.com".encode(), 8, 2, id="utf-8"),
        pytest.param(b"x" * 511, 1024, 436, id="longest"),
        pytest.param(b"anything", 1, 0, id="one shard"),
    ],
)
def test_the_shard_of_a_key_never_changes(key: bytes, shards: int, shard: int) -> None:
    assert keys.shard_number(key, shards) == shard


def test_keys_spread_evenly_over_shards() -> None:
    counts = [0] * 7
    for number in range(70_000):
        counts[keys.shard_number(b"key-%d" % number, 7)] += 1
    assert min(counts) > 9_500
    assert max(counts) < 10_500


@pytest.mark.parametrize(
    ("steps", "asked", "stored"),
    [
        pytest.param([], " KJFK ", " KJFK ", id="none: as it is"),
        pytest.param(["strip"], " \tKJFK\n", "KJFK", id="strip"),
        pytest.param(["lowercase"], "STRASSE Straße", "strasse straße", id="lowercase keeps ß"),
        pytest.param(["casefold"], "Straße", "strasse", id="casefold makes it ss"),
        pytest.param(["nfc"], E_ACUTE_DECOMPOSED, E_ACUTE_COMPOSED, id="nfc composes"),
        pytest.param(["strip", "lowercase", "nfc"], " É ".replace("É", "E\u0301"), "é", id="all, in order"),
    ],
)
def test_normalisation_steps_apply_in_the_order_given(steps: list[str], asked: str, stored: str) -> None:
    assert keys.make_key_encoder(steps)(asked) == stored.encode()


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(KeyError):
        keys.make_normalizer(["uppercase"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "the key is empty", id="empty"),
        pytest.param("  ", "empty after normalisation", id="white space only"),
        pytest.param("x" * 512, "512 bytes long, the limit is 511", id="too long"),
        pytest.param("é" * 256, "512 bytes long", id="too long in bytes, not in characters"),
        pytest.param("\ud800", "lone surrogate", id="not text"),
    ],
)
def test_keys_that_no_record_can_have(text: str, why: str) -> None:
    with pytest.raises(keys.InvalidKey, match=why):
        keys.make_key_encoder(["strip"])(text)


def test_the_longest_key_is_511_bytes() -> None:
    assert len(keys.make_key_encoder([])("x" * 511)) == keys.MAX_KEY_BYTES


def test_the_hash_is_xxh3_64_as_published() -> None:
    """With one shard for each possible digest, the shard is the digest: XXH3's own test vector."""
    assert keys.shard_number(b"", 1 << 64) == 0x2D06800538D394C2


def test_many_keys_find_the_same_shards_as_one() -> None:
    encoded = [b"%d" % number for number in range(100)]
    assert keys.shard_numbers(encoded, 7) == [keys.shard_number(key, 7) for key in encoded]


@pytest.mark.parametrize(
    ("steps", "version", "alike"),
    [
        ([], "1.0.0", True),
        (["strip"], "1.0.0", True),
        (["strip", "lowercase"], keys.UNICODE_VERSION, True),
        (["strip", "lowercase"], "1.0.0", False),
        (["casefold"], "1.0.0", False),
        (["nfc"], "1.0.0", False),
    ],
)
def test_other_character_tables_matter_to_steps_that_use_them(steps: list[str], version: str, alike: bool) -> None:
    assert keys.has_same_normalization(steps, version) == alike
