"""The native reader gives what py-lmdb gives, for whole files, and survives whatever damage a file has."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import SAME
from support.generations import in_batches, records, write
from support.lmdb_files import BRANCH, LEAF, OVERFLOW, PAGE, Changes, keys_on, pages_of, read_lmdb, write_lmdb

from lookupdb import shardfile
from lookupdb._native import Damaged, ShardFile
from lookupdb.builder.write import ShardWriter, sum_items
from lookupdb.shardfile import ShardMeta, ShardReader
from support import damage_sweep


def near(keys: Sequence[bytes]) -> Iterator[bytes]:
    """``keys``, and what lies next to them: longer, shorter and neighbouring ones, and keys that cannot exist."""
    for key in keys:
        yield from (key, key[:-1], key + b"\0", key + b"\xff", key[:-1] + bytes([key[-1] ^ 1]))
    yield from (b"", b"\0", b"\xff" * 511, b"\xff" * 512, b"\xff" * 70_000)


def assert_equal_to_lmdb(path: Path) -> ShardFile:
    """Every record, in order, by its key and among others; and no other."""
    file = ShardFile(path)
    items, _ = read_lmdb(path)
    assert list(file.items()) == items
    assert file.records == len(items)
    keys = list(near([key for key, _ in items[:: max(1, len(items) // 2000)]]))
    random.Random(1).shuffle(keys)
    found = read_lmdb(path, keys)[1]
    assert [file.find(key) for key in keys] == found
    assert file.find_many(keys) == found
    return file


def numbered(count: int, size: int = 20, key: str = "key-{:06}") -> dict[bytes, bytes]:
    return {key.format(number).encode(): b"%d" % number * size for number in range(count)}


class TestWholeFiles:
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 32, 33, 1000, 60_000])
    def test_of_any_number_of_records(self, tmp_path: Path, count: int) -> None:
        file = assert_equal_to_lmdb(write_lmdb(tmp_path / "f", [numbered(count, 1)]))
        assert file.records == count

    def test_with_values_of_any_size(self, tmp_path: Path) -> None:
        sizes = [0, 1, 100, *range(2010, 2050), *range(4070, 4110), 8176, 8177, 1 << 20, (5 << 20) + 1]
        assert_equal_to_lmdb(write_lmdb(tmp_path / "f", [{b"%d" % size: b"v" * size for size in sizes}]))

    def test_with_keys_of_any_length(self, tmp_path: Path) -> None:
        assert_equal_to_lmdb(write_lmdb(tmp_path / "f", [{b"\0" * size: b"" for size in range(1, 512)}]))
        assert_equal_to_lmdb(write_lmdb(tmp_path / "g", [{b"\xff" * size: b"" for size in range(1, 512)}]))

    def test_with_a_deep_tree(self, tmp_path: Path) -> None:
        keys = numbered(4000, 1, "{:0>511}")
        path = write_lmdb(tmp_path / "f", [keys])
        assert_equal_to_lmdb(path)
        assert len(list(pages_of(path.read_bytes(), BRANCH))) > 100, "seven keys a branch: that is five levels"

    @pytest.mark.parametrize("transactions", [1, 2, 3, 4, 7])
    def test_of_several_transactions_the_newest(self, tmp_path: Path, transactions: int) -> None:
        changes = [{b"number": b"%d" % number, b"k%d" % number: b""} for number in range(transactions)]
        file = assert_equal_to_lmdb(write_lmdb(tmp_path / "f", changes))
        assert file.find(b"number") == b"%d" % (transactions - 1)

    def test_with_pages_freed_and_used_again(self, tmp_path: Path) -> None:
        chance = random.Random(2)
        values = [None, b"", b"x" * 50, b"y" * 3000, b"z" * 10_000]
        changes = [{b"%d" % chance.randrange(500): chance.choice(values) for _ in range(200)} for _ in range(20)]
        assert_equal_to_lmdb(write_lmdb(tmp_path / "f", changes))

    def test_of_which_all_was_deleted(self, tmp_path: Path) -> None:
        file = assert_equal_to_lmdb(write_lmdb(tmp_path / "f", [numbered(500), dict.fromkeys(numbered(500))]))
        assert (file.records, list(file.items())) == (0, [])

    def test_with_more_behind_its_last_page(self, tmp_path: Path) -> None:
        assert_equal_to_lmdb(write_lmdb(tmp_path / "f", [numbered(500)], spare_pages=5))

    def test_that_the_builder_wrote(self, tmp_path: Path) -> None:
        content = {f"{number:05}": b"value %d of many" % number * (1 + number % 400) for number in range(3000)}
        dictionary = b"value of many" * 500
        files, _ = write(tmp_path, in_batches(records(content)), shards=2, dictionary=dictionary)
        for entry in files:
            file = assert_equal_to_lmdb(tmp_path / entry.file)
            assert (file.records, file.dictionary) == (entry.records, dictionary)
            with ShardReader(tmp_path / entry.file) as shard:
                assert all(file.expand(stored) == shard.expand(stored) for _, stored in shard.items())

    def test_that_the_builder_wrote_in_many_transactions(self, tmp_path: Path) -> None:
        writer = ShardWriter(tmp_path / "f", transaction_bytes=5000)
        items = [(key, shardfile.frame(value)) for key, value in numbered(3000).items()]
        writer.append(items, sum_items(items, []))
        writer.finish(ShardMeta("default/things", 0, 1, 3000, (), "raw", "none", "content"), b"")
        file = assert_equal_to_lmdb(tmp_path / "f")
        assert (file.records, file.dictionary) == (3000, b"")


KEYS = st.one_of(
    st.binary(min_size=1, max_size=511),
    st.text("ab", min_size=1, max_size=12).map(str.encode),
    st.builds(lambda head, count: head + b"k" * count, st.binary(max_size=2), st.integers(1, 500)),
)
VALUES = st.one_of(st.none(), st.binary(max_size=40), st.integers(0, 9000).map(lambda size: b"v" * size))
HISTORIES = st.lists(st.dictionaries(KEYS, VALUES, max_size=120), max_size=4)


@settings(SAME, max_examples=50)
@given(history=HISTORIES, absent=st.lists(KEYS, max_size=40))
def test_random_histories_read_as_lmdb_reads_them(
    tmp_path_factory: pytest.TempPathFactory, history: list[Changes], absent: list[bytes]
) -> None:
    path = write_lmdb(tmp_path_factory.mktemp("history") / "f", history)
    file = assert_equal_to_lmdb(path)
    assert file.find_many(absent) == read_lmdb(path, absent)[1]


class TestRefusedFiles:
    """The caller then opens the file with LMDB, which reads more formats and reports damage itself."""

    @pytest.mark.parametrize(
        ("place", "data", "message"),
        [
            (16, b"\0\0\0\0", r"expected LMDB's magic number 3203383518, found 0"),
            (PAGE + 16, b"\0", r"magic number"),
            (20, b"\2\0\0\0", r"expected LMDB's data version 1, found 2"),
            (10, b"\2", r"expected a meta page 8, found 2"),
            (40, struct.pack("<I", 16384), r"expected pages of bytes 4096, found 16384"),
            (92, b"\4", r"expected flags of the database of databases 0, found 4"),
            (94, b"\41\0", r"expected a sound description of the database of databases"),
            (136, b"\xff" * 8, r"expected the number of the last page"),
            (136, struct.pack("<Q", 1 << 40), r"expected 1099511627777 pages, found a file of \d+"),
        ],
    )
    def test_say_what_was_expected_and_found(self, tmp_path: Path, place: int, data: bytes, message: str) -> None:
        path = write_lmdb(tmp_path / "f", [numbered(10)])
        content = bytearray(path.read_bytes())
        content[place : place + len(data)] = data
        # The transaction of the damaged one is made the newest, for the other is not read further.
        struct.pack_into("<Q", content, place // PAGE * PAGE + 144, 1 << 50)
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            ShardFile(path)

    @pytest.mark.parametrize("pages", [0, 1, 1.5, 2, 3, -0.001, -1])
    def test_are_those_cut_short(self, tmp_path: Path, pages: float) -> None:
        path = write_lmdb(tmp_path / "f", [numbered(2000)])
        size = int(pages * PAGE) if pages >= 0 else int(path.stat().st_size + pages * PAGE)
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match=r"expected .*, found"):
            ShardFile(path)

    def test_are_databases_of_other_kinds(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="expected flags of records 0, found 4"):
            ShardFile(write_lmdb(tmp_path / "f", [numbered(10)], dupsort=True))

    @pytest.mark.parametrize("name", [shardfile.RECORDS, shardfile.META])
    def test_are_those_without_a_database(self, tmp_path: Path, name: bytes) -> None:
        path = write_lmdb(tmp_path / "f", [numbered(10)])
        path.write_bytes(path.read_bytes().replace(name, name.upper()))
        with pytest.raises(ValueError, match=r"expected a database .*, found none"):
            ShardFile(path)

    @pytest.mark.parametrize("content", [b"", b"text", b"\0" * 4 * PAGE, b"\xff" * 4 * PAGE])
    def test_are_files_of_anything_else(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(ValueError, match="expected"):
            ShardFile(tmp_path / "f")

    def test_are_absent_ones_by_the_systems_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            ShardFile(tmp_path / "f")
        with pytest.raises(OSError, match=r"directory|No such device"):
            ShardFile(tmp_path)


CONTENT = {**numbered(1500), **{b"large-%d" % number: b"%d" % number * 6000 for number in range(5)}}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of CONTENT."""
    return write_lmdb(tmp_path_factory.mktemp("sound") / "f", [CONTENT]).read_bytes()


class TestDamage:
    """A damaged page is an error for the keys that need it, and for no other."""

    def check(self, path: Path, content: bytearray, affected: set[bytes], message: str) -> None:
        path.write_bytes(content)
        file = ShardFile(path)
        keys = [*CONTENT, b"absent"]
        found: dict[bytes, Any] = dict(zip(keys, file.find_many(keys), strict=True))
        assert {key for key in keys if isinstance(found[key], Damaged)} == affected
        assert all(found[key] == CONTENT.get(key) for key in keys if key not in affected)
        for key in affected:
            assert message in str(found[key])
            with pytest.raises(Damaged, match=message):
                file.find(key)
        with pytest.raises(Damaged):
            list(file.items())

    @pytest.mark.parametrize(
        ("place", "data", "message"),
        [
            (0, b"\xff", "another number than its place"),
            (10, b"\1", "not the leaf"),
            (10, b"\4", "not the leaf"),
            (12, b"\x10\0", "no nodes, or more than it can have"),
            (12, b"\xff\xff", "no nodes, or more than it can have"),
        ],
    )
    def test_of_a_leafs_header(self, tmp_path: Path, sound: bytes, place: int, data: bytes, message: str) -> None:
        leaf = next(page for page in pages_of(sound, LEAF) if b"key-000900" in keys_on(sound, page))
        content = bytearray(sound)
        content[leaf * PAGE + place : leaf * PAGE + place + len(data)] = data
        self.check(tmp_path / "f", content, set(keys_on(sound, leaf)), message)

    @pytest.mark.parametrize(
        ("place", "data", "message"),
        [
            (0, b"\xff\xff\xff\x7f", "a value reaches beyond its page's end"),
            (4, b"\2", "flags that it cannot have here"),
            (4, b"\4", "flags that it cannot have here"),
        ],
    )
    def test_of_a_node(self, tmp_path: Path, sound: bytes, place: int, data: bytes, message: str) -> None:
        node = sound.index(b"key-000900" + CONTENT[b"key-000900"]) - 8
        content = bytearray(sound)
        content[node + place : node + place + len(data)] = data
        self.check(tmp_path / "f", content, {b"key-000900"}, message)

    @pytest.mark.parametrize(
        ("place", "data", "message"),
        [
            (0, b"\xff", "another number than its place"),
            (10, b"\2", "not the overflow page"),
            (12, b"\1\0\0\0", "more bytes than its overflow pages"),
        ],
    )
    def test_of_an_overflow_page(self, tmp_path: Path, sound: bytes, place: int, data: bytes, message: str) -> None:
        page = next(page for page in pages_of(sound, OVERFLOW) if sound[page * PAGE + 16 :].startswith(b"3" * 6000))
        content = bytearray(sound)
        content[page * PAGE + place : page * PAGE + place + len(data)] = data
        self.check(tmp_path / "f", content, {b"large-3"}, message)

    @pytest.mark.parametrize("number", [1 << 40, 0, 1])
    def test_of_the_number_of_an_overflow_page(self, tmp_path: Path, sound: bytes, number: int) -> None:
        content = bytearray(sound)
        struct.pack_into("<Q", content, sound.index(b"large-3") + 7, number)
        message = "beyond the last page" if number > 1 else "not the overflow page"
        self.check(tmp_path / "f", content, {b"large-3"}, message)

    @pytest.mark.parametrize("target", ["beyond", "loop"])
    def test_of_a_branchs_child(self, tmp_path: Path, sound: bytes, target: str) -> None:
        (root,) = pages_of(sound, BRANCH)
        leaf = next(page for page in pages_of(sound, LEAF) if b"key-000900" in keys_on(sound, page))
        content = bytearray(sound)
        child = content.index(struct.pack("<Q", leaf)[:6], root * PAGE + 16, (root + 1) * PAGE)
        number = root if target == "loop" else 1 << 40
        content[child : child + 6] = struct.pack("<Q", number)[:6]
        affected = set(keys_on(sound, leaf))
        self.check(tmp_path / "f", content, affected, "not the leaf" if target == "loop" else "beyond the last page")

    def test_of_the_root(self, tmp_path: Path, sound: bytes) -> None:
        (root,) = pages_of(sound, BRANCH)
        content = bytearray(sound)
        content[root * PAGE + 10] = LEAF
        self.check(tmp_path / "f", content, {*CONTENT, b"absent"}, "not the branch")

    def test_keys_out_of_order_end_an_iteration(self, tmp_path: Path, sound: bytes) -> None:
        path = tmp_path / "f"
        path.write_bytes(sound.replace(b"key-000900", b"key-000000"))
        items = ShardFile(path).items()
        with pytest.raises(Damaged, match="keys are not in order"):
            list(items)
        assert list(items) == []


@pytest.mark.parametrize("sweep", damage_sweep.SWEEPS)
def test_no_damage_ends_the_process_or_gives_bytes_from_elsewhere(tmp_path: Path, sweep: str) -> None:
    result = subprocess.run(
        [sys.executable, damage_sweep.__file__, sweep, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{sweep}: {result.returncode}\n{result.stdout}{result.stderr}"
