"""A damaged record is an error for its key, and never missing; an incomplete generation is rejected."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from support.lmdb_files import LEAF, PAGE, keys_on, pages_of
from support.mapped import run_python
from support.shards import write_generation

from lookupdb import manifest, native, shardfile
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.mapped import open_dataset

RECORDS = {f"key-{number:04}": b"value %d" % number * 5 for number in range(2000)}


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)


def damage_value(folder: Path, old: bytes, new: bytes) -> None:
    """Replace stored bytes by as many others."""
    (path,) = folder.glob("*.lmdb")
    content = path.read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    overwrite(path, content.replace(old, new))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_generation(tmp_path, RECORDS)


def test_a_damaged_value_is_an_error_for_its_key_alone(folder: Path) -> None:
    stored = shardfile.frame(RECORDS["key-0007"])
    damage_value(folder, stored, b"!" + stored[1:])
    mapping = open_dataset(folder)
    for use in (
        lambda: mapping["key-0007"],
        lambda: mapping.get("key-0007"),
        lambda: mapping.raw("key-0007"),
        lambda: mapping.get_many(["key-0006", "key-0007", "key-0008"]),
        lambda: dict(mapping.items()),
    ):
        with pytest.raises(CorruptFile, match=r"shard-.*lmdb: what is stored under 'key-0007' is damaged: .*\n.*again"):
            use()
    assert "key-0007" in mapping, "there is such a record"
    assert mapping["key-0006"] == RECORDS["key-0006"]
    assert list(mapping) == list(RECORDS)


def test_a_value_that_is_no_json(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, {"a": b"[1", "b": b"[1]"}, value_format="json")
    mapping = open_dataset(folder)
    for use in (lambda: mapping["a"], lambda: mapping.get_many(["b", "a"]), lambda: list(mapping.values())):
        with pytest.raises(CorruptFile, match="what is stored under 'a' is damaged: it is not JSON: "):
            use()
    assert mapping.raw("a") == b"[1"
    assert mapping["b"] == [1]


def test_a_compressed_value_that_does_not_decompress(tmp_path: Path) -> None:
    records = {f"k{number}": b"some text that compresses well " * 9 + b"%d" % number for number in range(100)}
    folder = write_generation(tmp_path, records, compression="zstd")
    (path,) = folder.glob("*.lmdb")
    with shardfile.ShardReader(path) as reader:
        stored = dict(reader.items())[b"k42"]
    assert stored[:1] != b"$"
    damage_value(folder, stored, bytes([stored[0] & 0xFC | 0x20]) + b"\xff" * (len(stored) - 1))
    mapping = open_dataset(folder)
    with pytest.raises(CorruptFile, match="what is stored under 'k42' is damaged"):
        mapping["k42"]
    assert mapping["k41"] == records["k41"]


def test_a_damaged_page_is_an_error_for_the_keys_on_it(folder: Path) -> None:
    (path,) = folder.glob("*.lmdb")
    content = bytearray(path.read_bytes())
    page = next(number for number in pages_of(content, LEAF) if b"key-1000" in keys_on(content, number))
    affected = {key.decode() for key in keys_on(content, page)}
    content[page * PAGE + 10] = 1 | 4  # neither a branch nor a leaf
    overwrite(path, bytes(content))
    mapping = open_dataset(folder)
    for key in sorted(affected):
        with pytest.raises(CorruptFile, match=f"what is stored under '{key}' is damaged: "):
            mapping[key]
        with pytest.raises(CorruptFile):
            key in mapping  # noqa: B015
        with pytest.raises(CorruptFile):
            mapping.get_many([key])
    rest = [key for key in RECORDS if key not in affected]
    assert mapping.get_many(rest) == {key: RECORDS[key] for key in rest}
    if native.kind() == "native":  # LMDB itself ends the process: an assertion of its cursor fails
        with pytest.raises(CorruptFile, match="a record is damaged"):
            list(mapping)


def test_a_missing_or_shortened_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, RECORDS, shards=3)
    path = sorted(folder.glob("*.lmdb"))[1]
    content = path.read_bytes()
    overwrite(path, content[:-PAGE])
    with pytest.raises(CorruptFile, match=rf"{path.name} is {len(content) - PAGE} bytes long, .* says {len(content)}"):
        open_dataset(folder)
    path.unlink()
    with pytest.raises(CorruptFile, match=rf"{path.name} is missing, although its index names it"):
        open_dataset(folder)


def test_checksums_are_proven_on_request(folder: Path) -> None:
    stored = shardfile.frame(RECORDS["key-0007"])
    open_dataset(folder, verify=True).close()
    damage_value(folder, stored, stored.replace(b"value", b"VALUE"))
    assert open_dataset(folder)["key-0007"] == RECORDS["key-0007"].replace(b"value", b"VALUE")
    with pytest.raises(CorruptFile, match=r"has checksum .*, its index says"):
        open_dataset(folder, verify=True)


def edit_manifest(folder: Path, **members: object) -> None:
    path = folder / manifest.FILE_NAME
    overwrite(path, orjson.dumps({**orjson.loads(path.read_bytes()), **members}))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"normalize": ["strip"]}, r"are \(0, 1, 2000, \(\), 'raw'\), expected \(0, 1, 2000, \('strip',\), 'raw'\)"),
        ({"value_format": "json"}, "'raw'.*expected.*'json'"),
        ({"formatVersion": 9}, "format version 9"),
        ({"shards": []}, "names no shards"),
    ],
)
def test_a_manifest_of_something_else_is_refused(folder: Path, members: dict[str, object], message: str) -> None:
    edit_manifest(folder, **members)
    with pytest.raises(CorruptFile, match=message):
        open_dataset(folder)


def test_files_of_other_shards_are_refused(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, RECORDS, shards=2)
    first, second = sorted(folder.glob("*.lmdb"))
    overwrite(second, first.read_bytes())
    described = orjson.loads((folder / manifest.FILE_NAME).read_bytes())
    described["shards"][1] = {**described["shards"][0], "file": second.name}
    edit_manifest(folder, shards=described["shards"])
    with pytest.raises(CorruptFile, match=r"holds a file that is not one of its shards.*\(0, 2, .*expected \(1, 2, "):
        open_dataset(folder)


@pytest.mark.parametrize("name", ["../x.lmdb", "/etc/passwd", "shard-00001-of-00001.lmdb"])
def test_a_file_name_that_is_no_shards_is_refused(folder: Path, name: str) -> None:
    described = orjson.loads((folder / manifest.FILE_NAME).read_bytes())
    edit_manifest(folder, shards=[{**described["shards"][0], "file": name}])
    with pytest.raises(CorruptFile, match=f"shard 0 is misnamed: '{name}'"):
        open_dataset(folder)


def test_a_file_of_another_format_version_is_refused(folder: Path) -> None:
    (path,) = folder.glob("*.lmdb")
    content = path.read_bytes()
    at = content.index(b"format1")
    overwrite(path, content[:at] + b"format7" + content[at + 7 :])
    with pytest.raises(CorruptFile, match=r"format version b'7'|format b'7'"):
        open_dataset(folder)


def test_what_is_no_shard_file_is_refused(folder: Path) -> None:
    (path,) = folder.glob("*.lmdb")
    overwrite(path, bytes(path.stat().st_size))
    with pytest.raises(CorruptFile, match=r"is not a shard file|is not one of its shards"):
        open_dataset(folder)


def test_a_manifest_that_is_too_large_or_none_is_refused(folder: Path) -> None:
    path = folder / manifest.FILE_NAME
    overwrite(path, b"[" * 10)
    with pytest.raises(CorruptFile, match="is not a generation's index"):
        open_dataset(folder)
    path.unlink()
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), (16 << 20) + 1)
    with pytest.raises(CorruptFile, match="has more than 16777216 bytes"):
        open_dataset(folder)


def test_nothing_is_left_open_when_one_is_refused(folder: Path) -> None:
    edit_manifest(folder, normalize=["strip"])
    with pytest.raises(CorruptFile):
        open_dataset(folder)
    opened = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert not [path for path in opened if path.is_relative_to(folder)]


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(GenerationMissing, match="holds no generation"):
        open_dataset(tmp_path)


def test_damage_that_native_kernels_refuse_is_not_tried_by_lmdb(tmp_path: Path) -> None:
    """LMDB checks less before it opens a file, and ends the process when it meets the damage."""
    if native.kernels() is None:
        pytest.skip("it is about native kernels")
    folder = write_generation(tmp_path, {f"k{number}": b"v" * 100 for number in range(2000)}, generation="g1")
    (path,) = folder.glob("*.lmdb")
    content = bytearray(path.read_bytes())
    content[10] = 255  # the flags of the first meta page
    path.unlink()
    path.write_bytes(content)
    code = """
import sys, lookupdb
from lookupdb.errors import CorruptFile
try:
    print(len(list(lookupdb.open(sys.argv[1]))))
except CorruptFile as error:
    print(error.message)
"""
    assert run_python(code, folder).startswith(str(folder))
