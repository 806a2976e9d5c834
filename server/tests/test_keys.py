"""Keys: what bytes a key becomes, and which shard they live in. The hash is a wire contract."""

import itertools
import unicodedata
from collections.abc import Sequence

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


ORDERS = [order for count in range(5) for order in itertools.permutations(keys.NORMALIZATIONS, count)]
UNSTRIPPED = sorted({keys.effective_steps(order) for order in ORDERS if "strip" not in order})
"""The steps that all orders without ``strip`` come to."""
MARKS = ["", "\u0301", "\u030c", "\u0331", "\u0308\u0301", "\u030a", "\u0307\u0323", "\u0338", "\u3099"]
IOTAS = ["\u0345", "\u0345\u0301", "\u0342\u0345"]
TRICKY = [
    "ΑΣ",
    "ΑΣ\u0345",
    "ΑΣ\u0301",
    "Σ",
    "ΣΑ",
    "ß\u0301",
    "ŉ\u0301",
    "ﬃ\u0301",
    "ẞ",
    "İ",
    "I\u0307",
    "ı",
    "\u1100\u1161\u11a8",
    "가\u11a8",
]
BLANKS = [
    "",
    " ",
    "\u2000",
    "\u2001a\u2000",
    "\u2000\u0301",
    " H\u0331 ",
    "H\u0331\u3000",
    "\u00a0\u0345\u2002",
    "\x1cΑΣ \x1f",
]


def is_changed(text: str) -> bool:
    """Return whether any step changes ``text``. If none does, no order of them does."""
    return not (text == text.lower() == text.casefold() and unicodedata.is_normalized("NFC", text))


@pytest.fixture(scope="module", params=[40, pytest.param(1, marks=pytest.mark.long)])
def letters(request: pytest.FixtureRequest) -> list[str]:
    """The letters of the BMP with each of several marks, Greek ones also with an iota below, that any step changes;
    or some of them."""
    plain = [chr(code) for code in range(0x10000) if not 0xD800 <= code <= 0xE000]
    greek = [chr(code) for code in (*range(0x370, 0x400), *range(0x1F00, 0x2000))]
    every = [
        letter + mark for letters, marks in ((plain, MARKS), (greek, IOTAS)) for letter in letters for mark in marks
    ]
    return [text for text in every[:: request.param] if is_changed(text)] + TRICKY


def normalize_all(steps: Sequence[str], texts: list[str]) -> list[str]:
    """Each of ``texts`` normalised: all at once, with a private character between them that no step knows."""
    return keys.make_normalizer(steps)("\ue000".join(texts)).split("\ue000")


@pytest.mark.parametrize("steps", UNSTRIPPED, ids=",".join)
def test_a_normalised_key_is_normalised_to_itself(steps: tuple[str, ...], letters: list[str]) -> None:
    once = normalize_all(steps, letters)
    twice = normalize_all(steps, once)
    assert [pair for pair in zip(letters, once, twice, strict=True) if pair[1] != pair[2]][:3] == []
    if "nfc" in steps:
        for form in ("NFC", "NFD"):
            other = normalize_all(steps, [unicodedata.normalize(form, text) for text in letters])
            assert [pair for pair in zip(letters, once, other, strict=True) if pair[1] != pair[2]][:3] == []


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
def test_so_is_one_with_blanks_at_its_ends(order: tuple[str, ...]) -> None:
    """Wherever ``strip`` is among the steps: the others are the same without it, and they are tested above."""
    steps = keys.effective_steps(order)
    others = tuple(step for step in order if step != "strip")
    assert tuple(step for step in steps if step != "strip") == keys.effective_steps(others)
    normalize = keys.make_normalizer(steps)
    assert [normalize(normalize(text)) for text in BLANKS] == [normalize(text) for text in BLANKS]


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        ("nfc lowercase", "nfc lowercase nfc"),
        ("strip nfc casefold", "strip nfc casefold nfc"),
        ("casefold nfc strip lowercase", "nfc casefold nfc strip lowercase nfc"),
        ("strip casefold nfc", "nfc strip casefold nfc"),
        ("lowercase nfc", "lowercase nfc"),
        ("nfc strip", "nfc strip"),
        ("casefold lowercase strip", "casefold lowercase strip"),
        ("", ""),
    ],
)
def test_nfc_is_applied_around_casefold_and_after_lowercase(order: str, steps: str) -> None:
    assert keys.effective_steps(order.split()) == tuple(steps.split())


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
