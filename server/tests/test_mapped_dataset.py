"""A mapping over the shards of a generation is what a dict of the same records is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.shards import write_generation
from support.sources import dataset

import lookupdb
from lookupdb import keys
from lookupdb.builder.build import build_generation
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.mapped import MappedDataset, open_dataset
from lookupdb.store import open_store

RECORDS = {f"key-{number}": b"value %d" % number for number in range(500)}


@pytest.fixture
def mapping(tmp_path: Path) -> MappedDataset:
    return open_dataset(write_generation(tmp_path, RECORDS, shards=4))


def test_lookupdb_open_is_it(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, RECORDS)
    mapping = lookupdb.open(folder)
    assert mapping["key-7"] == b"value 7"
    assert isinstance(mapping, MappedDataset)
    assert isinstance(mapping, Mapping)
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        lookupdb.close  # noqa: B018


def test_it_is_as_a_dict(mapping: MappedDataset) -> None:
    assert mapping["key-3"] == b"value 3"
    assert mapping.get("key-3") == b"value 3"
    assert mapping.get("key-500") is None
    assert mapping.get("key-500", 7) == 7
    assert mapping.get("key-500", default=8) == 8
    assert "key-3" in mapping
    assert "key-500" not in mapping
    assert len(mapping) == 500
    assert bool(mapping)
    with pytest.raises(KeyError, match=r"^'key-500'$"):
        mapping["key-500"]
    with pytest.raises(KeyError, match=r"^'key-500'$"):
        mapping.raw("key-500")
    assert {**mapping} == RECORDS
    assert dict(mapping) == RECORDS


@pytest.mark.parametrize("key", [1, None, b"key-3", ("key-3",), [], 3.0])
def test_what_is_no_text_is_missing(mapping: MappedDataset, key: Any) -> None:
    assert key not in mapping
    assert mapping.get(key) is None
    assert mapping.get_many([key, "key-3"]) == {"key-3": b"value 3"}
    with pytest.raises(KeyError) as caught:
        mapping[key]
    assert caught.value.args == (key,)


@pytest.mark.parametrize("key", ["", "k" * 512, "é" * 256, "\ud800", "key-3\ud800"])
def test_what_no_record_can_have_as_its_key_is_missing(mapping: MappedDataset, key: str) -> None:
    assert key not in mapping
    assert mapping.get(key, 1) == 1
    assert mapping.get_many([key]) == {}
    with pytest.raises(KeyError):
        mapping[key]


def test_a_str_of_another_class_is_its_text(mapping: MappedDataset) -> None:
    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    assert mapping[Name("key-3")] == b"value 3"


def test_it_cannot_be_changed(mapping: MappedDataset) -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        mapping["a"] = b"1"  # type: ignore[index]
    with pytest.raises(TypeError, match=r"doesn't support item deletion|does not support item"):
        del mapping["key-3"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(mapping)


def test_iteration_is_by_shards_and_then_by_keys(mapping: MappedDataset) -> None:
    def place(key: str) -> tuple[int, bytes]:
        return keys.shard_number(key.encode(), 4), key.encode()

    expected = sorted(RECORDS, key=place)
    assert list(mapping) == expected
    assert list(mapping.keys()) == expected
    assert list(mapping.items()) == [(key, RECORDS[key]) for key in expected]
    assert list(mapping.values()) == [RECORDS[key] for key in expected]
    assert list(mapping.iterate("items", raw=True)) == list(mapping.items())
    with pytest.raises(ValueError, match="expected keys, values or items, found 'rows'"):
        mapping.iterate("rows")


def test_views_are_as_those_of_a_dict(mapping: MappedDataset) -> None:
    assert len(mapping.items()) == len(mapping.keys()) == len(mapping.values()) == 500
    assert ("key-3", b"value 3") in mapping.items()
    assert ("key-3", b"value 4") not in mapping.items()
    assert b"value 3" in mapping.values()
    assert b"value" not in mapping.values()
    assert mapping.keys() & {"key-3", "x"} == {"key-3"}


def test_equality_is_that_of_keys_and_values(tmp_path: Path, mapping: MappedDataset) -> None:
    assert mapping == RECORDS
    assert RECORDS == mapping  # noqa: SIM300 - the other way round
    assert mapping == mapping.snapshot()
    assert mapping != {**RECORDS, "key-3": b""}
    assert mapping != {**RECORDS, "x": b""}
    assert mapping != {"x" if key == "key-3" else key: value for key, value in RECORDS.items()}
    assert mapping != 7


def test_many_keys_of_any_number_and_order(mapping: MappedDataset) -> None:
    wanted = [key for number in range(2500) for key in (f"key-{number % 700}", f"x{number}")]
    found = mapping.get_many(iter(wanted))
    assert found == {key: RECORDS[key] for key in wanted if key in RECORDS}
    assert list(found) == [key for key in dict.fromkeys(wanted) if key in RECORDS]
    assert mapping.get_many([]) == {}
    with pytest.raises(TypeError):
        mapping.get_many(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["key-3", b"key-3", ""])
def test_one_text_is_not_many_keys(mapping: MappedDataset, text: str) -> None:
    """Its letters would all be missing."""
    with pytest.raises(TypeError, match=r"get_many\(\) takes several keys, found one text: b?'.*get\(\) takes one"):
        mapping.get_many(text)


def test_facts_of_the_generation(mapping: MappedDataset, tmp_path: Path) -> None:
    assert mapping.generation == "g1"
    assert mapping.manifest.totals.records == 500
    assert mapping.manifest.built_at == "2026-01-01T00:00:00Z"
    assert mapping.facts.folder == tmp_path / "g1"
    assert repr(mapping) == "<lookupdb mapping default/sample g1, 500 records>"
    assert mapping.reload() is False, "one generation stays"


def test_json_is_decoded_at_each_access(tmp_path: Path) -> None:
    values = {"a": {"x": [1, 2.5, "é"]}, "b": None, "c": [], "large": ["v" * 9000] * 3}
    records = {key: orjson.dumps(value) for key, value in values.items()}
    mapping = open_dataset(write_generation(tmp_path, records, shards=2, value_format="json"))
    assert dict(mapping) == values
    assert dict(mapping.items()) == values
    assert mapping.get_many(values) == values
    assert mapping["a"] is not mapping["a"], "nothing is kept"
    assert "b" in mapping
    assert mapping.get("b", 7) is None
    assert mapping.raw("a") == b'{"x":[1,2.5,"\xc3\xa9"]}'
    assert mapping.get_many(["a"], raw=True) == {"a": mapping.raw("a")}
    assert dict(mapping.iterate("items", raw=True)) == records


NUMBERS = (
    *("0", "-1", "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809"),
    *("9" * 19, "9" * 300, "1e400", "-1e400", "0.1", "1.50", "1e5", f"0.{'3' * 40}"),
)


@pytest.mark.parametrize("form", ["%s", "[%s]", '{"a":[1,"0123456789012345678901234567890",%s]}', '[" %s ",%s]'])
def test_numbers_of_json_are_those_that_python_reads(tmp_path: Path, form: str) -> None:
    """The client reads them alike: integers of any length are exact, and floats beyond the range are infinities."""
    texts = [form.replace("%s", number) for number in NUMBERS]
    records = {f"key-{place}": text.encode() for place, text in enumerate(texts)}
    mapping = open_dataset(write_generation(tmp_path, records, shards=2, value_format="json"))
    expected = {f"key-{place}": json.loads(text) for place, text in enumerate(texts)}
    for found in (dict(mapping), dict(mapping.items()), mapping.get_many(expected), {k: mapping[k] for k in expected}):
        assert found == expected
        assert repr(sorted(found.items())) == repr(sorted(expected.items())), "2 ** 64 == 2.0 ** 64"


def test_a_deep_value_with_a_long_number_is_not_damaged(tmp_path: Path) -> None:
    """It is the caller's stack that has no room."""
    records = {"a": b"[" * 1000 + b"1" * 23 + b"]" * 1000, "b": b"[" * 100 + b"1" * 23 + b"]" * 100}
    mapping = open_dataset(write_generation(tmp_path, records, value_format="json"))
    with pytest.raises(RecursionError):
        mapping["a"]
    assert mapping["b"] == json.loads(records["b"])


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_values_of_any_size(tmp_path: Path, compression: Any) -> None:
    sizes = [0, 1, 100, 2000, 2025, 4096, 5000, 70_000, 3 << 20]
    records = {f"{size}-{kind}": (b"%d " % size * size)[:size] for size in sizes for kind in range(3)}
    mapping = open_dataset(write_generation(tmp_path, records, shards=3, compression=compression))
    assert {key: mapping[key] for key in records} == records
    assert mapping.get_many(records) == records
    assert dict(mapping.items()) == records


def test_no_records_at_all(tmp_path: Path) -> None:
    mapping = open_dataset(write_generation(tmp_path, {}, shards=3))
    assert len(mapping) == 0
    assert not mapping
    assert list(mapping.items()) == []
    assert mapping.get_many(["a", "b"]) == {}
    assert "a" not in mapping


def test_shards_of_different_depths(tmp_path: Path) -> None:
    """Some shards are empty, some have one leaf, some have more levels. Many keys of all are looked up together."""
    records = {f"{number:0>300}": b"%d" % number for number in range(3000)}
    few = {key: value for key, value in records.items() if keys.shard_number(key.encode(), 8) == 3}
    records = {**few, **dict(list(records.items())[:12])}
    mapping = open_dataset(write_generation(tmp_path, records, shards=8))
    wanted = [key for number in range(3000) for key in (f"{number:0>300}",)]
    assert mapping.get_many(wanted) == records


@pytest.mark.parametrize("normalize", [(), ("strip",), ("lowercase",), ("strip", "casefold"), ("nfc", "strip")])
def test_keys_are_normalised_as_everywhere(tmp_path: Path, normalize: tuple[str, ...]) -> None:
    texts = [
        "ABC",
        "straße",
        "İx",
        "e\u0301",
        "a b",
        "x\x1f",
        "\x7f",
        '"',
        "\\",
        "ß",
        "x\u2028",
        "\u00a0a",
        "tab\t",
        "Ⅷ",
    ]
    encode = keys.make_key_encoder(normalize)
    records = {text: encode(text) for text in texts}
    by_key = {encode(text).decode(): value for text, value in records.items()}
    mapping = open_dataset(write_generation(tmp_path, by_key, shards=3, normalize=normalize))
    asked = [
        form
        for text in texts
        for form in (text, f" {text}", f"{text}\x1c", text.upper(), text.swapcase(), f"\t{text}\u3000")
    ]
    for text in asked:
        expected = by_key.get(encode(text).decode())
        assert mapping.get(text) == expected, text
        assert (text in mapping) == (expected is not None)
    found = {text: by_key[encode(text).decode()] for text in asked if encode(text).decode() in by_key}
    assert mapping.get_many(asked) == found


@pytest.mark.parametrize("normalize", [["nfc", "lowercase"], ["nfc", "casefold"], ["casefold", "nfc"]])
def test_what_a_mapping_lists_is_in_it(tmp_path: Path, normalize: list[str]) -> None:
    names = ["H\u0331asan", "J\u030cane", "Ada"]
    (tmp_path / "names.csv").write_text("k\n" + "".join(f"{name}\n" for name in names))
    spec = dataset(tmp_path, "names.csv", normalize=tuple(normalize))
    store = open_store(str(tmp_path / "store"))
    build_generation(spec, store, BuildOptions(scratch=tmp_path), SilentProgress())
    mapping = open_dataset(tmp_path / "store/local/default/test-local/g1")
    assert sorted(mapping) == ["ada", "\u01f0ane", "\u1e96asan"]
    assert [key in mapping for key in mapping] == [True, True, True]
    assert {mapping.raw(key) for key in mapping} == {b"{}"}
    assert all(name in mapping and name.lower() in mapping and name.upper() in mapping for name in names)


TEXTS = ["a", "B", " ", "\t", "\x1c", "ß", "İ", "é", "\u0301", "\0", "\U0001f600", "ﬁ"]


@pytest.mark.parametrize("seed", range(20))
def test_random_content_is_as_in_a_dict(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def texts(count: int) -> list[str]:
        return ["".join(chance.choices(TEXTS, k=chance.choice([0, 1, 2, 3, 6, 250, 511, 520]))) for _ in range(count)]

    content = {text: chance.randbytes(chance.randrange(60)) for text in texts(chance.randrange(40))}
    absent = texts(20)
    normalize = chance.choice([(), ("strip",), ("casefold", "nfc"), ("strip", "lowercase")])
    encode = keys.make_key_encoder(normalize)

    def stored(text: str) -> str | None:
        try:
            return encode(text).decode()
        except keys.InvalidKey:
            return None

    records = {key: value for text, value in content.items() if (key := stored(text)) is not None}
    # What is normalised twice may be something else: such keys cannot be asked for.
    records = {key: value for key, value in records.items() if stored(key) == key}
    options: dict[str, Any] = {
        "shards": 1 + seed % 5,
        "normalize": normalize,
        "compression": ("zstd", "none")[seed % 2],
    }
    with open_dataset(write_generation(tmp_path, records, **options)) as mapping:
        assert dict(mapping.items()) == records
        assert len(mapping) == len(records)
        for text in [*content, *absent]:
            expected = records.get(stored(text) or "")
            assert mapping.get(text) == expected
            assert (text in mapping) == (expected is not None)
        wanted = [*content, *absent]
        found = {text: records.get(stored(text) or "") for text in wanted}
        assert mapping.get_many(wanted) == {text: value for text, value in found.items() if value is not None}


def test_a_snapshot_is_a_mapping_that_outlives_the_other(mapping: MappedDataset) -> None:
    with mapping.snapshot() as view:
        assert dict(view) == RECORDS
        iterator = iter(mapping.items())
        next(iterator)
        mapping.close()
        mapping.close()
        assert view["key-3"] == b"value 3"
        assert len(list(iterator)) == 499
    for closed in (mapping, view):
        check_closed(closed)


def check_closed(mapping: MappedDataset) -> None:
    assert repr(mapping) == "<lookupdb mapping, closed>"
    uses: list[Callable[[], object]] = [
        lambda: mapping["key-3"],
        lambda: mapping.get("key-3"),
        lambda: mapping.raw("key-3"),
        lambda: "key-3" in mapping,
        lambda: len(mapping),
        lambda: list(mapping),
        lambda: mapping.get_many(["a"]),
        lambda: mapping.generation,
        mapping.snapshot,
        mapping.reload,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="the mapping is closed"):
            use()
