"""The shard file's format: framing, self-description, refusal of anything else."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
import zstandard

from lookupdb import keys, shardfile
from lookupdb.errors import CorruptFile, LookupdbError, NotEnoughRoom, StoreError
from lookupdb.shardfile import ShardMeta, ShardReader

META = ShardMeta("default/people", 0, 1, 2, ("strip",), "raw", "zstd", "0" * 32)


def write(path: Path, *, version: bytes = b"1", meta: bytes = META.to_json(), dictionary: bytes = b"") -> Path:
    """A shard file of one plain and one compressed record, written straight through LMDB."""
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 20) as env:
        records, about = env.open_db(shardfile.RECORDS), env.open_db(shardfile.META)
        with env.begin(write=True) as txn:
            txn.put(b"plain", shardfile.frame(b"as it is"), db=records)
            txn.put(b"small", compress(shardfile.frame(b"x" * 1000), dictionary), db=records)
            txn.put(shardfile.META_FORMAT, version, db=about)
            txn.put(shardfile.META_MANIFEST, meta, db=about)
            if dictionary:
                txn.put(shardfile.META_DICTIONARY, dictionary, db=about)
    return path


def compress(framed: bytes, dictionary: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=False, write_dict_id=False
    )
    dict_data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=dict_data).compress(framed)


@pytest.mark.parametrize("value", [b"", b"x", b"\r\n", b"$3\r\nabc\r\n", b"\x00" * 5000])
def test_framing_is_undone_exactly(value: bytes) -> None:
    assert shardfile.unframe(shardfile.frame(value)) == value


def test_a_frame_is_the_redis_protocols_bulk_string() -> None:
    assert shardfile.frame(b"value") == b"$5\r\nvalue\r\n"


@pytest.mark.parametrize("dictionary", [b"", b"x" * 2000], ids=["no dictionary", "dictionary"])
def test_plain_and_compressed_records_are_found_alike(tmp_path: Path, dictionary: bytes) -> None:
    with ShardReader(write(tmp_path / "s.lmdb", dictionary=dictionary)) as shard:
        assert shard.find(b"plain") == shardfile.frame(b"as it is")
        assert shard.find(b"small") == shardfile.frame(b"x" * 1000)
        assert shard.find(b"absent") is None
        assert shard.meta == META


def test_no_compressed_record_can_be_taken_for_a_plain_one() -> None:
    for size in (0, 1, 10, 100, 255, 256, 1000, 65_535, 65_536, 70_000, 1 << 20):
        assert compress(shardfile.frame(b"x" * size), b"")[0] != shardfile.FRAMED


def test_another_format_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=re.escape("format version b'2'; this lookupdb reads 1")):
        ShardReader(write(tmp_path / "s.lmdb", version=b"2"))


@pytest.mark.parametrize("meta", [b"", b"[]", b"{}", b"null"])
def test_a_file_that_does_not_describe_itself_is_refused(tmp_path: Path, meta: bytes) -> None:
    with pytest.raises(CorruptFile, match="is not a shard file"):
        ShardReader(write(tmp_path / "s.lmdb", meta=meta or b" "))


@pytest.mark.parametrize("content", [b"", b"junk" * 5000], ids=["empty", "junk"])
def test_what_is_no_lmdb_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.lmdb"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="is not a shard file"):
        ShardReader(path)


@pytest.mark.parametrize("keep", [4096, 8192, 8193, 12_288])
def test_a_file_that_is_cut_short_is_refused_before_it_is_mapped(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "s.lmdb")
    os.truncate(path, keep)
    with pytest.raises(CorruptFile, match=f"is cut short: it is {keep} bytes long, but its header says"):
        ShardReader(path)


def test_the_newer_meta_page_says_how_long_a_file_is(tmp_path: Path) -> None:
    path = write(tmp_path / "s.lmdb")
    for grown in range(3):  # transactions write the two meta pages in turn
        with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 20) as env:
            with env.begin(write=True, db=env.open_db(shardfile.RECORDS)) as txn:
                txn.put(b"more%d" % grown, shardfile.frame(b"x" * 20_000))
            whole = (env.info()["last_pgno"] + 1) * 4096
        with ShardReader(path) as shard:
            assert shard.find(b"more%d" % grown) is not None
        os.truncate(path, whole - 1)
        with pytest.raises(CorruptFile, match=f"its header says {whole}$|its header says {whole}\n"):
            ShardReader(path)
        os.truncate(path, whole)


class TestWhatCannotBeOpened:
    """Such a file is not called damaged: then users would fetch or build it again."""

    @pytest.fixture
    def no_descriptors(self, tmp_path: Path) -> Iterator[Path]:
        """The path of a shard file, while this process may open no file."""
        path, limits = write(tmp_path / "s.lmdb"), resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        yield path
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_without_descriptors_there_is_no_room(self, no_descriptors: Path) -> None:
        with pytest.raises(NotEnoughRoom, match=f"cannot open {no_descriptors}: Too many open files\n.*ulimit -Hn"):
            ShardReader(no_descriptors)

    def test_without_address_space_there_is_no_room(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.lmdb")
        script = (
            "import resource, sys\n"
            "from pathlib import Path\n"
            "from lookupdb.errors import NotEnoughRoom\n"
            "from lookupdb.shardfile import ShardReader\n"
            "taken = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 20), -1))\n"
            "try:\n"
            "    ShardReader(Path(sys.argv[1]))\n"
            "except NotEnoughRoom as error:\n"
            "    print(error.message)\n"
        )
        child = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
        assert child.stdout.strip() == f"cannot open {path}: Cannot allocate memory"

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.EMFILE, NotEnoughRoom),
            (errno.ENFILE, NotEnoughRoom),
            (errno.ENOMEM, NotEnoughRoom),
            (errno.EACCES, StoreError),
            (errno.EPERM, StoreError),
            (errno.EIO, CorruptFile),
        ],
        ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
    )
    def test_an_error_of_lmdb_says_whether_the_file_is_to_blame(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[LookupdbError]
    ) -> None:
        path = write(tmp_path / "s.lmdb")

        def fail(*_: object, **__: object) -> None:
            raise lmdb.Error(f"{path}: {os.strerror(number)}")

        monkeypatch.setattr(lmdb, "open", fail)
        with pytest.raises(kind, match=os.strerror(number)) as caught:
            ShardReader(path)
        assert type(caught.value) is kind

    def test_a_file_that_is_not_there_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            ShardReader(tmp_path / "s.lmdb")


def test_members_of_a_later_revision_survive() -> None:
    text = META.to_json().replace(b'{"', b'{"later":[1],"', 1)
    assert ShardMeta.from_json(text).extra == {"later": [1]}


def test_names_sort_by_shard() -> None:
    names = [keys.file_name(shard, 11) for shard in range(11)]
    assert names == sorted(names)
    assert names[3] == "shard-00003-of-00011.lmdb"
