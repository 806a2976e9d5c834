"""Native and Python packing store the same bytes, and write the same shard files."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.generations import in_batches, records, write
from test_build_write import people

from lookupdb import native
from lookupdb.builder.dictionary import NO_PREVIOUS, choose_dictionary
from lookupdb.builder.write import Packer, Record, make_packer
from lookupdb.errors import UsageError
from lookupdb.manifest import ShardFile, Totals

SHARDS = 3
PEOPLE = list(people(4000).values())


@cache
def dictionary_of(kind: str) -> bytes:
    """A dictionary: none, a trained one, or plain content."""
    if kind == "trained":
        return choose_dictionary(PEOPLE, NO_PREVIOUS, records=10**6, shards=1)[0]
    return b"".join(PEOPLE[:50]) if kind == "plain" else b""


def pack(kind: str, batch: Sequence[Record], dictionary: bytes, compressed: bool) -> list[Any]:
    with patch.dict(os.environ, {native.VARIABLE: kind}):
        packer = make_packer(SHARDS, compressed=compressed, dictionary=dictionary)
    assert isinstance(packer, Packer) is (kind == "0")
    kernels = native.kernels()
    packed = packer.pack(list(batch) if kind == "0" or kernels is None else kernels.RecordBatch(list(batch)))
    return [packed.items(shard) for shard in range(SHARDS)]


def assert_same(values: Sequence[bytes], dictionary: bytes, *, compressed: bool = True) -> None:
    batch = [(b"key %d" % number, number, value) for number, value in enumerate(values)]
    assert pack("1", batch, dictionary, compressed) == pack("0", batch, dictionary, compressed)


@pytest.mark.parametrize("dictionary", ["none", "trained", "plain"])
class TestValues:
    def test_of_records_with_much_in_common(self, dictionary: str) -> None:
        assert_same(PEOPLE, dictionary_of(dictionary))

    def test_of_any_size(self, dictionary: str) -> None:
        chance = random.Random(1)
        sizes = [0, 1, 2, 100, 1990, 2030, 4096, 70_000, 131_072, 140_000, 300_000, 3 << 20]  # zstd's window has 2 MiB
        text = b"".join(PEOPLE)
        for size in sizes:
            start = chance.randrange(1000)
            mixed = b"".join(
                chance.choice([text[:99], text[500:2000], chance.randbytes(40)]) for _ in range(size // 40)
            )
            assert_same(
                [text[start : start + size], mixed[:size], bytes(size), chance.randbytes(size)],
                dictionary_of(dictionary),
            )

    @settings(SAME, max_examples=40)
    @given(values=st.lists(st.binary(max_size=300) | st.sampled_from(PEOPLE), max_size=20), compressed=st.booleans())
    def test_whatever_they_are(self, dictionary: str, values: list[bytes], compressed: bool) -> None:
        assert_same(values, dictionary_of(dictionary), compressed=compressed)


class TestAnotherVersionOfZstd:
    """It may write other bytes than python-zstandard's."""

    @pytest.fixture(autouse=True)
    def other_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native.kernels(), "ZSTD_VERSION", (1, 4, 9))
        monkeypatch.delenv(native.VARIABLE, raising=False)

    def test_is_not_used_and_that_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        packer = make_packer(SHARDS, compressed=True, dictionary=b"")
        assert isinstance(packer, Packer)
        assert "zstd 1.4.9" in caplog.text

    def test_is_refused_where_native_kernels_are_demanded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(native.VARIABLE, "1")
        with pytest.raises(UsageError, match="requires native kernels: it compresses with zstd 1"):
            make_packer(SHARDS, compressed=True, dictionary=b"")

    def test_changes_nothing_where_values_are_not_compressed(self) -> None:
        assert not isinstance(make_packer(SHARDS, compressed=False, dictionary=b""), Packer)


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("shards", [1, 5])
def test_shard_files(tmp_path: Path, compression: str, shards: int) -> None:
    content = people(10_000) | {
        f"large-{number}": random.Random(number).randbytes(number * 500) for number in range(40)
    }
    found: list[tuple[tuple[ShardFile, ...], Totals]] = []
    for kind in ("1", "0"):
        with patch.dict(os.environ, {native.VARIABLE: kind}):
            stream = in_batches(records(content), 3000 + 1000 * int(kind))
            dictionary = dictionary_of("trained") if compression == "zstd" else b""
            found.append(write(tmp_path / kind, stream, shards=shards, compression=compression, dictionary=dictionary))
    assert found[0] == found[1]
