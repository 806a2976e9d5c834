"""The native view of a generation and its Python fallback give the same answers, for sound and for damaged files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.shards import write_generation

from lookupdb import keys, native
from lookupdb.errors import CorruptFile
from lookupdb.mapped import MappedDataset, open_dataset

NORMALIZATIONS = [
    (),
    ("strip",),
    ("lowercase", "strip"),
    ("casefold",),
    ("nfc", "casefold"),
    ("nfc", "lowercase", "nfc"),
]


def open_both(folder: Path) -> tuple[MappedDataset, MappedDataset]:
    """The native one, and that of Python."""
    views = []
    for value in ("1", "0"):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(native.VARIABLE, value)
            views.append(open_dataset(folder))
    return views[0], views[1]


def outcome(use: Callable[[], Any]) -> Any:
    """Return the result, or the kind of error."""
    try:
        found = use()
        return list(found.items()) if isinstance(found, dict) else found
    except (KeyError, CorruptFile, TypeError) as error:
        return type(error).__name__, isinstance(error, CorruptFile) or error.args


def assert_equal(native_view: MappedDataset, python_view: MappedDataset, asked: list[Any]) -> None:
    for key in asked:
        for use in (
            lambda view: view[key],  # noqa: B023
            lambda view: view.get(key, 7),  # noqa: B023
            lambda view: view.raw(key),  # noqa: B023
            lambda view: key in view,  # noqa: B023
            lambda view: view.get_many([key]),  # noqa: B023
        ):
            assert outcome(lambda: use(native_view)) == outcome(lambda: use(python_view)), key  # noqa: B023
    for raw in (False, True):
        assert outcome(lambda: native_view.get_many(asked, raw=raw)) == outcome(  # noqa: B023
            lambda: python_view.get_many(asked, raw=raw)  # noqa: B023
        )
        for part in ("keys", "values", "items"):
            assert items(native_view, part, raw) == items(python_view, part, raw)
    assert len(native_view) == len(python_view)
    assert native_view.is_sequence() == python_view.is_sequence()


def items(view: MappedDataset, part: str, raw: bool) -> list[Any]:
    """All that an iterator gives, and the error that ends it."""
    found: list[Any] = []
    try:
        for item in view.iterate(part, raw=raw):
            found.append(item)
    except CorruptFile as error:
        found.append(error.message.partition("damaged")[0])
    return found


TEXTS = st.one_of(st.text(max_size=6), st.text(" aAbB\t\x1c\x85ßİΣ", max_size=5), st.integers(0, 30).map(str))


@settings(SAME, max_examples=40)
@given(
    content=st.dictionaries(TEXTS, st.one_of(st.text(max_size=30), st.integers(-5, 5), st.none()), max_size=30),
    absent=st.lists(st.one_of(TEXTS, st.none(), st.integers(), st.binary(max_size=3)), max_size=12),
    normalize=st.sampled_from(NORMALIZATIONS),
    shards=st.integers(1, 4),
    options=st.fixed_dictionaries(
        {"compression": st.sampled_from(["zstd", "none"]), "value_format": st.sampled_from(["json", "raw"])}
    ),
)
def test_of_random_content(
    tmp_path_factory: pytest.TempPathFactory,
    content: dict[str, Any],
    absent: list[Any],
    normalize: tuple[str, ...],
    shards: int,
    options: dict[str, Any],
) -> None:
    encode = keys.make_key_encoder(normalize)
    records = {}
    for text, value in content.items():
        try:
            records[text if not normalize else encode(text).decode()] = orjson.dumps(value)
            encode(text)
            encode(encode(text).decode())
        except (keys.InvalidKey, UnicodeEncodeError):
            records.pop(text, None)
    folder = tmp_path_factory.mktemp("twins")
    both = open_both(write_generation(folder, records, shards=shards, normalize=normalize, **options))
    assert_equal(*both, [*content, *absent])


def stored_in(mapping: MappedDataset, key: str) -> bytes:
    """Return the stored bytes of ``key``."""
    found = mapping.current().find(key)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_of_damaged_values(tmp_path: Path, compression: Any) -> None:
    """Bytes of values are changed, not those of pages: there LMDB may end the process."""
    records = {f"key-{number}": orjson.dumps([f"some text {number}"] * 6) for number in range(120)}
    folder = write_generation(tmp_path, records, value_format="json", compression=compression)
    (path,) = folder.glob("*.lmdb")
    sound, chance = path.read_bytes(), random.Random(3)
    both = open_both(folder)
    stored = [stored_in(both[1], key) for key in records]
    path.chmod(0o644)
    changed = 0
    for _ in range(25):
        content = bytearray(sound)
        for value in chance.sample(stored, 5):
            at = content.find(value)
            if at >= 0:
                content[at + chance.randrange(len(value))] ^= 1 << chance.randrange(8)
                changed += 1
        with path.open("r+b") as file:
            file.write(content)
        assert_equal(*both, [*records, "x"])
    assert changed > 80


def test_of_shards_of_different_depths(tmp_path: Path) -> None:
    chance = random.Random(4)
    texts = [f"{number:0>400}" for number in range(4000)]
    alone = {text: b"%d" % number for number, text in enumerate(texts) if keys.shard_number(text.encode(), 5) == 2}
    records = {**alone, **dict.fromkeys(texts[:40], b"x")}
    native_view, python_view = open_both(write_generation(tmp_path, records, shards=5))
    for size in (1, 2, 31, 32, 33, 64, 1023, 1024, 1025, 3000):
        asked = [chance.choice([*texts, "x", "y" * 600, "é"]) for _ in range(size)]
        assert outcome(lambda: native_view.get_many(asked)) == outcome(lambda: python_view.get_many(asked))  # noqa: B023
