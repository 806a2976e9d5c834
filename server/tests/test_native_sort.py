"""Sorting, the sample, duplicates and shards' replies: the native kernels and Python give the same results."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hiredis
import pytest

from lookupdb import native
from lookupdb.builder.core import Duplicates, drop_duplicates
from lookupdb.builder.write import SPOOL_BYTES, Record, Sorter, encode_place, make_sample
from lookupdb.errors import BadSource

SEEDS = range(2)
EDGE_KEYS = [
    b"",
    b"\x00",
    b"\xff" * 511,
    b"a",
    b"a\x00",
    b"k" * 16,
    b"k" * 17,
    b"sixteen bytes it",
    b"sixteen bytes is",
]


def by_both(do: Callable[[], Any]) -> list[Any]:
    """Call ``do`` with native kernels, and with Python."""
    found = []
    for kind in ("1", "0"):
        with patch.dict(os.environ, {native.VARIABLE: kind}):
            found.append(do())
    return found


def make_records(chance: random.Random, piece: int, count: int) -> list[Record]:
    """Records in the order of their places, many with equal keys, some too large to wait in memory."""
    sizes = [0, 1, 100, 100, 100, 2000, SPOOL_BYTES, SPOOL_BYTES + 1]
    return [
        (
            chance.choice(EDGE_KEYS) if chance.random() < 0.1 else b"key %d" % chance.randrange(count),
            encode_place(piece, row),
            chance.randbytes(chance.choice(sizes)),
        )
        for row in range(1, count + 1)
    ]


@pytest.mark.parametrize("memory", [1, 100_000, 1 << 30])
@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_sorted_alike(tmp_path: Path, seed: int, memory: int) -> None:
    """In memory and in runs, of one slice and of several."""
    chance = random.Random(seed)
    count = 60 if memory == 1 else 400
    slices = [make_records(chance, piece, count) for piece in range(3)]

    def sort() -> list[Record]:
        scratch = tmp_path / native.kind()
        scratch.mkdir()
        with Sorter(scratch, memory, "whole") as whole:
            for piece, records in enumerate(slices[1:], 1):
                with Sorter(scratch, memory, f"slice-{piece}") as sorter:
                    for record in records:
                        sorter.put(*record)
                    whole.adopt(piece, scratch, *sorter.detach())
            for record in slices[0]:
                whole.put(*record)
            return [record for batch in whole for record in batch]

    by_kernel, by_python = by_both(sort)
    assert len(by_python) >= count
    assert by_python == sorted(by_python, key=lambda record: record[0])
    assert [key for key, *_ in by_kernel] == [key for key, *_ in by_python]
    assert by_kernel == by_python


@pytest.mark.parametrize("seed", SEEDS)
def test_what_fits_in_memory_is_sorted_alike(tmp_path: Path, seed: int) -> None:
    records = make_records(random.Random(seed), 0, 1500)

    def sort() -> list[Record]:
        with Sorter(tmp_path, 1 << 30, native.kind()) as sorter:
            for record in records:
                sorter.put(*record)
            return [record for batch in sorter for record in batch]

    by_kernel, by_python = by_both(sort)
    assert by_kernel == by_python == sorted(records, key=lambda record: record[0])


@pytest.mark.parametrize("max_bytes", [0, 1, 5_000, 1 << 30])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_sample_is_the_same(tmp_path: Path, seed: int, max_bytes: int) -> None:
    chance = random.Random(seed)
    halves = [make_records(chance, piece, 400) for piece in range(2)]
    source_bytes = chance.choice([0, 100_000, 1 << 40])

    def take() -> list[bytes]:
        whole, other = (make_sample(max_bytes, source_bytes) for _ in range(2))
        for sample, records in zip((whole, other), halves, strict=True):
            for record in records:
                sample.offer(*record)
        run = tmp_path / native.kind()
        other.write_run(run)
        whole.add_run(run)
        return whole.take_values()

    by_kernel, by_python = by_both(take)
    assert by_kernel == by_python
    assert by_python or max_bytes < 5_000 or source_bytes > 100_000


@pytest.mark.parametrize("policy", ["first", "last", "fail"])
@pytest.mark.parametrize("seed", SEEDS)
def test_duplicates_are_dropped_alike(seed: int, policy: Any) -> None:
    chance = random.Random(seed)
    keys = sorted(b"key %03d" % chance.randrange(200) for _ in range(chance.choice([0, 1, 2, 20, 400])))
    records = [(key, place, b"value %d" % place) for place, key in enumerate(keys)]
    cuts = sorted(chance.choices(range(len(records) + 1), k=9))
    batches = [records[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]

    def drop() -> Any:
        dropped = Duplicates()
        kept = [record for batch in drop_duplicates(batches, policy, dropped) for record in batch]
        try:
            return kept, dropped.describe(policy, ["people.csv"], lambda place: (0, place + 1))
        except BadSource as problem:
            return str(problem)

    by_kernel, by_python = by_both(drop)
    assert by_kernel == by_python
    if policy != "fail":
        wanted = {key: (key, place, value) for key, place, value in (records if policy == "last" else records[::-1])}
        assert by_python[0] == sorted(wanted.values())
        assert by_python[1].count == len(records) - len(wanted)


def pieces_of(data: bytes, chance: random.Random) -> Iterator[bytes]:
    cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(5)))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if start < end:
            yield data[start:end]


def scan(data: bytes, expected: int, chance: random.Random) -> list[bytes | None] | None:
    """The values by the native scan of ``data`` in pieces; None if hiredis is to read them, or they are not whole."""
    kernels: Any = native.kernels()
    scan = kernels.ReplyScan(expected)
    fed = []
    for piece in pieces_of(data, chance):
        is_whole = scan.feed(piece)
        fed.append(piece)
        if is_whole is None:
            return None
    if not fed or not is_whole:
        return None
    reply = scan.join(fed)
    return None if reply is None else [reply[at] for at in range(len(reply))]


def test_replies_are_read_as_hiredis_reads_them() -> None:
    chance = random.Random(5)
    read = left = 0
    for _ in range(3000):
        values = [
            chance.choice([None, b"", b"\r\n", chance.randbytes(chance.randrange(300))])
            for _ in range(chance.randrange(1, 6))
        ]
        data = bytearray(
            b"*%d\r\n" % len(values)
            + b"".join(b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value) for value in values)
        )
        is_damaged = chance.random() < 0.5
        if is_damaged:
            data[chance.randrange(len(data))] = chance.choice(b"*$:-_\r\n0123456789x\xff")
        found = scan(bytes(data), len(values), chance)
        if found is None:
            assert is_damaged
            left += 1
            continue
        reader = hiredis.Reader()
        reader.feed(bytes(data))
        assert found == reader.gets(), bytes(data)
        read += 1
    assert read > 1500
    assert left > 100
