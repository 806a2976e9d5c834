"""The writer: duplicates, compression, shard files."""

from __future__ import annotations

import random
import resource
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import lmdb
import pytest
from support.generations import in_batches, records, write

from lookupdb.builder import core
from lookupdb.builder.core import Duplicates, Policy, drop_duplicates
from lookupdb.builder.dictionary import NO_PREVIOUS, choose_dictionary
from lookupdb.builder.write import Compressor, Record, decode_place, encode_place
from lookupdb.errors import BadSource
from lookupdb.keys import file_name, shard_number
from lookupdb.manifest import ExcludedRows
from lookupdb.shardfile import FRAMED, ShardReader, frame, make_inflater, unframe

FILES = ["a.csv", "b.csv"]


def people(count: int, seed: int = 1) -> dict[str, bytes]:
    """Records that have much in common: a few teams and titles, and a manager out of a pool."""
    chance = random.Random(seed)
    managers = [f"{chance.getrandbits(128):032x}" for _ in range(50)]
    return {
        f"person-{number:07d}@example.com": b'{"team":"%b","manager":"%b","salary":%d}'
        % (chance.choice([b"research", b"sales", b"operations"]), chance.choice(managers).encode(), number)
        for number in range(count)
    }


def drop(policy: Policy, batches: Iterable[list[Record]]) -> tuple[list[Record], ExcludedRows]:
    """The records that are kept, and the rows that are not."""
    dropped = Duplicates()
    kept = [record for batch in drop_duplicates(batches, policy, dropped) for record in batch]
    return kept, dropped.describe(policy, FILES, decode_place)


class TestDuplicates:
    STREAM: Final = [
        (b"a", encode_place(0, 1), b"1"),
        (b"b", encode_place(0, 2), b"2"),
        (b"b", encode_place(0, 9), b"3"),
        (b"b", encode_place(1, 1), b"4"),
        (b"c", encode_place(0, 3), b"5"),
    ]

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize(("policy", "values"), [("first", b"125"), ("last", b"145")])
    def test_one_record_of_a_key_is_kept_wherever_batches_end(self, policy: Policy, values: bytes, size: int) -> None:
        kept, dropped = drop(policy, in_batches(self.STREAM, size))
        assert b"".join(record[2] for record in kept) == values
        assert dropped.count == 2

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_fail_names_the_key_and_both_rows(self, size: int) -> None:
        with pytest.raises(BadSource, match=r"'b' occurs twice: row 2 of a.csv and row 9 of a.csv"):
            drop("fail", in_batches(self.STREAM, size))

    def test_samples_say_what_was_dropped_and_what_was_kept(self) -> None:
        sample = drop("first", in_batches(self.STREAM))[1].samples[1]
        assert (sample.file, sample.row) == ("b.csv", 1)
        assert sample.reason == "the key 'b' also occurs in row 2 of a.csv, which is kept"

    def test_all_are_counted_and_ten_are_named(self) -> None:
        _, dropped = drop("last", in_batches([(b"k", row, b"") for row in range(1, 102)]))
        assert (dropped.count, len(dropped.samples)) == (100, 10)

    def test_nothing_comes_of_nothing(self) -> None:
        assert drop("fail", []) == ([], ExcludedRows())


class TestCompression:
    def test_every_value_comes_back(self) -> None:
        values = [frame(value) for value in people(2000).values()]
        dictionary = choose_dictionary(list(people(4000).values()), NO_PREVIOUS, records=1_000_000, shards=1)[0]
        stored = Compressor(dictionary).store(values)
        inflate = make_inflater(dictionary)
        assert [one if one[0] == FRAMED else inflate(one) for one in stored] == values

    def test_what_is_stored_does_not_depend_on_how_values_are_batched(self) -> None:
        values = [frame(value) for value in people(2000).values()]
        dictionary = choose_dictionary(list(people(4000).values()), NO_PREVIOUS, records=1_000_000, shards=1)[0]
        at_once = Compressor(dictionary).store(values)
        one_by_one = Compressor(dictionary)
        assert [one_by_one.store([value])[0] for value in values] == at_once

    def test_what_does_not_get_smaller_is_stored_as_it_is(self) -> None:
        noise = frame(random.Random(1).randbytes(300))
        assert Compressor(b"").store([noise, frame(b"x" * 300)])[0] == noise


class TestShardFiles:
    def test_every_record_is_found_in_the_one_shard_its_key_belongs_to(self, tmp_path: Path) -> None:
        content = people(5000)
        files, totals = write(tmp_path, in_batches(records(content)), shards=4)
        shards = [ShardReader(tmp_path / file.file) for file in files]
        for key, value in content.items():
            found = [shard.find(key.encode()) for shard in shards]
            assert unframe(found.pop(shard_number(key.encode(), 4)) or b"") == value
            assert found == [None] * 3
        assert totals.records == sum(file.records for file in files) == 5000
        assert totals.key_bytes == sum(map(len, content))
        assert totals.value_bytes == sum(map(len, content.values()))
        for number, shard in enumerate(shards):
            assert (shard.meta.shard, shard.meta.shards, shard.meta.records) == (number, 4, files[number].records)
            shard.close()

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_few_records_leave_shards_that_are_empty_and_whole(self, tmp_path: Path, count: int) -> None:
        files, totals = write(tmp_path, in_batches(records(people(count))), shards=5)
        assert totals.records == count
        for file in files:
            with ShardReader(tmp_path / file.file) as shard:
                assert shard.meta.records == file.records

    def test_values_of_any_length(self, tmp_path: Path) -> None:
        lengths = [0, 1, 1990, 2030, 2040, 4096, 70_000, 3 << 20]
        content = {f"{length:08d}": random.Random(length).randbytes(length) for length in lengths}
        files, _ = write(tmp_path, in_batches(records(content)), shards=1)
        with ShardReader(tmp_path / files[0].file) as shard:
            assert {key: unframe(shard.find(key.encode()) or b"") for key in content} == content

    def test_records_that_fill_pages_worst(self, tmp_path: Path) -> None:
        content = {f"{number:0511d}": bytes(1512) for number in range(20_000)}
        files, _ = write(tmp_path, in_batches(records(content)), shards=1, compression="none")
        assert files[0].bytes > 1.9 * 20_000 * 2048

    def test_more_shards_than_a_process_may_open_files_by_default(self, tmp_path: Path) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, limits[1]))
        try:
            files, totals = write(tmp_path, in_batches(records(people(100))), shards=100)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (len(files), totals.records) == (100, 100)

    def test_a_file_is_read_only_and_no_longer_than_its_pages(self, tmp_path: Path) -> None:
        files, _ = write(tmp_path, in_batches(records(people(3000))), shards=1)
        path = tmp_path / files[0].file
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
            assert path.stat().st_size == (env.info()["last_pgno"] + 1) * 4096
            assert env.info()["map_size"] <= max(10 << 20, 4 * path.stat().st_size)
        assert [one.name for one in tmp_path.iterdir()] == [path.name]

    def test_the_same_records_give_the_same_bytes_however_they_arrive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Small transactions, so that there are many of them in a small test.
        monkeypatch.setattr(core, "transaction_bytes", lambda _shards: 20_000)
        stream = records(people(5000) | {f"large-{n}": bytes(9000) + b"%d" % n for n in range(20)})
        first, _ = write(tmp_path / "g1", in_batches(stream, 1000), threads=1, compression="none")
        other, _ = write(tmp_path / "g2", in_batches(stream, 77), threads=2, compression="none")
        assert first == other

    def test_the_same_records_give_the_same_bytes_in_another_process(self, tmp_path: Path) -> None:
        here, _ = write(tmp_path / "here", in_batches(records(people(3000))))
        script = (
            "import sys; from pathlib import Path; from test_build_write import people;"
            "from support.generations import *; x = [bytes([i % 256]) * 4096 for i in range(999)]; del x;"
            "print(repr(write(Path(sys.argv[1]), in_batches(records(people(3000)), 100))[0]))"
        )
        tests = str(Path(__file__).parent)
        there = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "there")],
            cwd=tests,
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == repr(here)

    def test_keys_out_of_order_are_a_bug_that_cannot_pass_unseen(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="out of order"):
            write(tmp_path, [[(b"b", 1, b"1"), (b"a", 2, b"2")]], shards=1)

    def test_a_failed_write_leaves_nothing_open(self, tmp_path: Path) -> None:
        def broken() -> Iterator[list[Record]]:
            yield [(b"a", 1, b"1")]
            raise BadSource("half-way")

        with pytest.raises(BadSource, match="half-way"):
            write(tmp_path, broken())
        with lmdb.open(str(tmp_path / file_name(0, 3)), subdir=False, lock=False):
            pass  # LMDB refuses to open a file twice in one process
