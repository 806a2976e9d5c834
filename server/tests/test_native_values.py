"""The native expander and the Python fallback give the same bulk string for a stored value, or both find it damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.lmdb_files import write_lmdb

from lookupdb._native import Damaged, ShardFile
from lookupdb.shardfile import MAX_VALUE_BYTES, DamagedValue, expand, frame, make_inflater

TEXT = b'{"team":"research","manager":"somebody","salary":'
DICTIONARIES: Mapping[str, bytes] = {
    "none": b"",
    "raw": TEXT * 40,
    "trained": zstandard.train_dictionary(
        4096, [TEXT + b"%d" % (number * 7919) for number in range(2000)], k=200, d=8
    ).as_bytes(),
    "large": random.Random(7).randbytes(512 << 10) + TEXT * 40,
}
Twins = tuple[ShardFile, Callable[[bytes], bytes]]
"""The native expander, and that of Python."""


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Twins]:
    """Both for each of DICTIONARIES."""
    folder = tmp_path_factory.mktemp("values")
    return {name: open_twins(folder / name, dictionary) for name, dictionary in DICTIONARIES.items()}


def open_twins(path: Path, dictionary: bytes) -> Twins:
    shard = ShardFile(write_lmdb(path, [], dictionary=dictionary))
    assert shard.dictionary == dictionary
    inflate = make_inflater(dictionary)
    return shard, lambda stored: expand(stored, inflate)


def compress(data: bytes, dictionary: bytes, **options: bool) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, **options)
    dict_data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=dict_data).compress(data)


def both(twins: Twins, stored: bytes) -> bytes | None:
    """Return the bulk string of both, or None for damage. The native one may or may not prefetch its dictionary."""
    native, python = twins
    try:
        expected = python(stored)
    except DamagedValue:
        for fetch_ahead in (False, True):
            with pytest.raises(Damaged):
                native.expand(stored, fetch_ahead=fetch_ahead)
        return None
    for fetch_ahead in (False, True):
        assert native.expand(stored, fetch_ahead=fetch_ahead) == expected
    return expected


SIZES = [0, 1, 9, 10, 11, 99, 100, 255, 256, 257, 999, 1000, 4086, 4087, 4088, 9999, 65_535, 65_536, 1 << 20]


def test_values_of_any_size_come_back(twins: dict[str, Twins]) -> None:
    for size in SIZES:
        for name in DICTIONARIES:
            framed = frame((TEXT * (size // len(TEXT) + 1))[:size])
            assert both(twins[name], framed) == framed
            assert both(twins[name], compress(framed, DICTIONARIES[name])) == framed


def test_values_that_copy_from_all_over_a_large_dictionary_come_back(twins: dict[str, Twins]) -> None:
    dictionary = DICTIONARIES["large"]
    rng = random.Random(8)
    for _ in range(200):
        places = [rng.randrange(len(dictionary) - 60) for _ in range(rng.randrange(1, 40))]
        framed = frame(b"".join(dictionary[place : place + rng.randrange(8, 60)] for place in places))
        stored = compress(framed, dictionary)
        assert len(stored) < len(framed) / 2 or len(framed) < 100, "it is copied"
        assert both(twins["large"], stored) == framed


def test_the_largest_value_comes_back(twins: dict[str, Twins]) -> None:
    framed = frame(bytes(MAX_VALUE_BYTES))
    assert both(twins["none"], compress(framed, b"")) == framed
    assert both(twins["none"], compress(frame(bytes(MAX_VALUE_BYTES + 1)), b"")) is None


def test_what_is_not_one_bulk_string_is_damaged_plain_or_compressed(twins: dict[str, Twins]) -> None:
    for stored in (
        b"",
        b"$",
        b"$\r\n\r\n",
        b"$0\r\n",
        b"$0\r\n\r",
        b"$0\r\n\r\n\r\n",
        b"$-1\r\n",
        b"$-1\r\n\r\n",
        b"$+1\r\nx\r\n",
        b"$ 1\r\nx\r\n",
        b"$01\r\nx\r\n",
        b"$00\r\n\r\n",
        b"$1\r\nxy\r\n",
        b"$2\r\nx\r\n",
        b"$1\nx\r\n",
        b"$1\r\nx\n\r",
        b"$1\r\nx\r\n\r\n",
        b"$1\r\nx\r\n$1\r\nx\r\n",
        b"$5000\r\n" + b"x" * 4999 + b"\r\n",
        b"$05000\r\n" + b"x" * 5000 + b"\r\n",
        b"$5000\r\n" + b"x" * 5000 + b"xx",
        b"$" + b"0" * 20 + b"5000\r\n" + b"x" * 5000 + b"\r\n",
        b"$" + b"9" * 30 + b"\r\n" + b"x" * 5000 + b"\r\n",
        b"$18446744073709551621\r\n" + b"x" * 5000 + b"\r\n",
        b"x" * 5000,
        b"$" * 5000,
    ):
        assert both(twins["none"], stored) is None
        assert both(twins["none"], compress(stored, b"")) is None


FRAMED = frame(TEXT * 30)
WHOLE = compress(FRAMED, b"")


def test_frames_of_other_makers(twins: dict[str, Twins]) -> None:
    for stored, expected in (
        (WHOLE + b"behind it", FRAMED),
        (WHOLE + WHOLE, FRAMED),
        (WHOLE + compress(b"", b""), FRAMED),
        (compress(FRAMED, b"", write_checksum=True), FRAMED),
        (compress(FRAMED, b"", write_content_size=False), None),
        (compress(FRAMED, DICTIONARIES["trained"]), None),
        (WHOLE[:-1], None),
        (WHOLE[:1], None),
        (bytes([0xA0]) + struct.pack("<I", MAX_VALUE_BYTES) + b"\0" * 20, None),
        (bytes([0xA0]) + struct.pack("<I", MAX_VALUE_BYTES + 100) + b"\0" * 20, None),
        (bytes([0xE0]) + b"\xff" * 8 + b"\0" * 20, None),
        (bytes([0xE0]) + b"\xff" * 4, None),
        (bytes([0x00, 0xFF]) + b"\0" * 20, None),
        (bytes([0x08]) + b"\0" * 20, None),
        (zstandard.compress(FRAMED), None),
    ):
        assert both(twins["none"], stored) == expected
        assert both(twins["none"], WHOLE) == FRAMED, "what came before leaves nothing behind"


BODIES = st.one_of(
    st.binary(max_size=300), st.integers(0, 20_000).map(lambda size: (TEXT * 500)[:size]), st.just(TEXT)
).flatmap(lambda body: st.sampled_from([frame(body), frame(body), body, frame(body) + frame(body)]))


@st.composite
def stored_values(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name of a dictionary, and what may be stored: a compressed value, often with bytes changed, cut or added."""
    name = draw(st.sampled_from(sorted(DICTIONARIES)))
    options = {option: draw(st.booleans()) for option in ("write_checksum", "write_dict_id")} | {
        "write_content_size": draw(st.sampled_from([True, True, True, False]))
    }
    stored = bytearray(compress(draw(BODIES), DICTIONARIES[draw(st.sampled_from([name, name, "none"]))], **options))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(stored) - 1) | st.integers(0, min(12, len(stored) - 1)))
        stored[place] = draw(st.integers(0, 255))
    if draw(st.integers(0, 4)) == 0:
        stored = stored[: draw(st.integers(0, len(stored)))]
    return name, bytes(stored) + draw(st.sampled_from([b"", b"", b"\0", b"$1\r\nx\r\n"]))


@settings(SAME, max_examples=80)
@given(value=st.one_of(stored_values(), st.tuples(st.sampled_from(sorted(DICTIONARIES)), st.binary(max_size=60))))
@example(value=("none", b""))
def test_random_values_get_the_same_verdict(twins: dict[str, Twins], value: tuple[str, bytes]) -> None:
    name, stored = value
    both(twins[name], stored)
