"""A shard server proves its file before anything is answered, and says in one sentence what is wrong with it."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from support.shards import serving, write_generation
from support.waiting import until

from lookupdb.errors import CorruptFile, NotEnoughRoom, UsageError
from lookupdb.process import memory
from lookupdb.process.memory import private_bytes
from lookupdb.shard.limits import WarmPolicy
from lookupdb.shard.server import Verification, locate_shard
from support import launching

RECORDS = {f"key {number}": os.urandom(500) for number in range(5000)}


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    return write_generation(tmp_path, RECORDS)


def verify(generation: Path, warm: WarmPolicy = "auto", bytes_per_second: int = 1 << 40) -> Verification:
    verification = Verification(locate_shard(generation, None), warm, bytes_per_second)
    verification.run()
    return verification


def change(path: Path, edit: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    edit(content)
    path.chmod(0o644)
    path.write_bytes(content)


def shard_file(generation: Path) -> Path:
    return generation / "shard-00000-of-00001.lmdb"


def test_an_intact_file_is_read_through_and_stays_in_memory(generation: Path) -> None:
    verification = verify(generation)
    size = shard_file(generation).stat().st_size
    assert verification.keeps_pages
    assert verification.done_bytes == size

    def stays() -> bool:
        return verify(generation).keeps_pages and memory.resident_bytes(shard_file(generation)) == size

    until(stays, "all of it is in memory, of which a kernel may take some pages at any time")


def test_a_file_not_to_be_warmed_leaves_memory_as_it_was(generation: Path) -> None:
    file = shard_file(generation)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())  # a page that is not yet on disk cannot be dropped
    assert not verify(generation, warm="never").keeps_pages
    resident = memory.resident_bytes(file)
    assert resident is not None
    assert resident < file.stat().st_size / 2


def test_reading_keeps_to_the_rate(generation: Path) -> None:
    size = shard_file(generation).stat().st_size
    started = time.monotonic()
    verify(generation, bytes_per_second=size * 10)
    assert 0.1 <= time.monotonic() - started < 30


def test_one_changed_byte_is_found(generation: Path) -> None:
    change(shard_file(generation), lambda content: content.__setitem__(9000, content[9000] ^ 1))
    with pytest.raises(CorruptFile, match=r"its index says sha256 [0-9a-f]{64}, found"):
        verify(generation)


@pytest.mark.parametrize("keep", [0, 4096, 100_000])
def test_a_truncated_file_is_found(generation: Path, keep: int) -> None:
    size = shard_file(generation).stat().st_size
    change(shard_file(generation), lambda content: content.__delitem__(slice(keep, None)))
    with pytest.raises(CorruptFile, match=f"its index says bytes {size}, found {keep}\n"):
        verify(generation)


def test_a_truncated_file_is_never_mapped(generation: Path) -> None:
    size = shard_file(generation).stat().st_size
    change(shard_file(generation), lambda content: content.__delitem__(slice(4096, None)))
    code, said = launching.ended("serve", str(generation), "--port", "0", "--admin-port", "0")
    assert code == 5
    assert f"its index says bytes {size}, found 4096\n" in said
    assert "Traceback" not in said


def test_what_was_read_to_verify_is_not_kept_in_memory(tmp_path: Path) -> None:
    owned = []
    for name, size in (("small", 10), ("large", 8_000_000)):
        with serving(write_generation(tmp_path / name, {"key": os.urandom(size)})) as server:
            owned.append(private_bytes(server.pid) or 0)
    assert 0 < owned[1] < owned[0] + (1 << 20)


def test_a_manifest_of_another_format_is_refused(generation: Path) -> None:
    manifest = generation / "manifest.json"
    manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "formatVersion": 3}))
    with pytest.raises(CorruptFile, match="format version 3; this lookupdb reads 1"):
        locate_shard(generation, None)


def test_a_generation_without_a_manifest_is_not_whole(generation: Path) -> None:
    (generation / "manifest.json").unlink()
    with pytest.raises(CorruptFile, match=r"expected manifest\.json in it, found none"):
        locate_shard(generation, None)


def test_without_descriptors_nothing_is_said_to_be_damaged(generation: Path) -> None:
    located, limits = locate_shard(generation, None), resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(NotEnoughRoom, match=r"shard-00000-of-00001\.lmdb: Too many open files"):
            Verification(located, "auto", 1 << 40).run()
        with pytest.raises(NotEnoughRoom, match=r"manifest\.json: Too many open files"):
            locate_shard(generation, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_that_is_not_there_is_named(generation: Path) -> None:
    shard_file(generation).unlink()
    with pytest.raises(CorruptFile, match=r"shard-00000-of-00001\.lmdb: No such file"):
        verify(generation)
    with pytest.raises(UsageError, match="no such file or directory"):
        locate_shard(generation.parent / "g9", None)


def test_a_shard_is_chosen_by_number_or_by_its_file(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, RECORDS, shards=3)
    assert locate_shard(generation, 2).path.name == "shard-00002-of-00003.lmdb"
    assert locate_shard(generation / "shard-00001-of-00003.lmdb", None).shard == 1
    with pytest.raises(UsageError, match="holds 3 of 3 shards, and a server serves one") as raised:
        locate_shard(generation, None)
    assert raised.value.hint == "choose: --shard 0 … 2"
    with pytest.raises(UsageError, match="there is no shard 3"):
        locate_shard(generation, 3)
    with pytest.raises(UsageError, match="is not shard 2 of the generation"):
        locate_shard(generation / "shard-00001-of-00003.lmdb", 2)


def test_of_a_folder_that_holds_one_shard_alone_that_one_is_served(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, RECORDS, shards=4)
    (generation / "shard-00001-of-00004.lmdb").unlink()
    with pytest.raises(UsageError, match="holds 3 of 4 shards") as raised:
        locate_shard(generation, None)
    assert raised.value.hint == "choose: --shard 0, 2, 3"
    (generation / "shard-00000-of-00004.lmdb").unlink()
    (generation / "shard-00003-of-00004.lmdb").unlink()
    assert locate_shard(generation, None).shard == 2
    with pytest.raises(CorruptFile, match=r"shard-00003-of-00004\.lmdb: No such file"):
        Verification(locate_shard(generation, 3), "auto", 1 << 40).run()
    (generation / "shard-00002-of-00004.lmdb").unlink()
    with pytest.raises(UsageError, match="holds 0 of 4 shards") as raised:
        locate_shard(generation, None)
    assert "lookupdb fetch" in str(raised.value.hint)


def test_a_manifest_cannot_lead_out_of_its_directory(generation: Path) -> None:
    manifest = generation / "manifest.json"
    members = orjson.loads(manifest.read_bytes())
    members["shards"][0]["file"] = "../../etc/passwd"
    manifest.write_bytes(orjson.dumps(members))
    with pytest.raises(CorruptFile, match="shard 0 is called"):
        locate_shard(generation, None)


def test_a_file_of_another_dataset_under_a_fitting_manifest_is_refused(tmp_path: Path) -> None:
    """The checksum is right; what the file says of itself is not."""
    generation = write_generation(tmp_path, {"a": b"1"}, name="one")
    manifest = generation / "manifest.json"
    manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "name": "two"}))
    code, said = launching.ended("serve", str(generation), "--port", "0", "--admin-port", "0")
    assert code == 5
    assert "its index says dataset default/two, the file default/one" in said


def test_a_port_in_use_is_told_at_once(generation: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        code, said = launching.ended("serve", str(generation), "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said


@pytest.mark.parametrize("verb", ["serve", "route"])
def test_an_admin_port_in_use_is_told_with_its_flag(generation: Path, verb: launching.Verb) -> None:
    what = [str(generation)] if verb == "serve" else ["--table", str(generation / "table.json")]
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        code, said = launching.ended(verb, *what, "--port", "0", "--admin-port", str(port))
    assert code == 2
    assert f"port {port}: Address already in use (the admin port)" in said
    assert "--admin-port" in said
