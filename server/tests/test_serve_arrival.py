"""A server of a volume that somebody else fills: it waits for its file, serves it where it lies, and says what is not
there."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from support.launching import stop
from support.shards import serving, write_generation
from support.waiting import until

from lookupdb.errors import CorruptFile, NotOnVolume, StoreError, UsageError
from lookupdb.shard.server import Verification, await_shard, find_shard, locate_shard
from support import launching

RECORDS = {f"key {number}": b"value %d" % number for number in range(500)}
FILE = "shard-00001-of-00002.lmdb"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A whole generation of two shards."""
    return write_generation(tmp_path / "written", RECORDS, shards=2)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The path at which it is to appear; only the volume exists."""
    volume = tmp_path / "volume"
    volume.mkdir()
    return volume / "c1" / "default" / "people-8d3f6b1a" / "g1"


def _end(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a server that cannot serve, and its termination log."""
    log = Path(words[0]).parents[3] / "termination-log"
    process = launching.start(
        "serve", [*words, "--port", "0", "--admin-port", "0", "--termination-log", str(log)], by_command_line=False
    )
    return process.wait(60), orjson.loads(log.read_bytes())


def test_a_generation_that_appears_is_served_where_it_lies_and_a_volume_that_goes_is_reported(
    written: Path, place: Path
) -> None:
    def publish() -> None:
        time.sleep(0.5)
        place.mkdir(parents=True)
        shutil.copy(written / FILE, place / FILE)
        shutil.copy(written / "manifest.json", place / "manifest.json")

    publisher = threading.Thread(target=publish)
    publisher.start()
    with serving(place, "--wait", "60", shard=1) as server:
        publisher.join()
        maps = Path(f"/proc/{_worker(server.pid)}/maps").read_text()
        assert str(place / FILE) in maps, "it is mapped from there"
        with redis.Redis(port=server.ports[0], socket_timeout=60) as client:
            found = [key for key in RECORDS if client.get(key) == RECORDS[key]]
        assert len(found) == locate_shard(written, 1).entry.records
        place.rename(place.with_name("moved"))
        os.kill(_worker(server.pid), signal.SIGKILL)
        until(lambda: _told(server.admin), "the supervisor reports why the worker does not start")
        place.with_name("moved").rename(place)


def _worker(supervisor: int) -> int:
    return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0])


def test_what_does_not_appear_ends_the_server_with_a_reason(place: Path) -> None:
    code, told = _end(str(place), "--shard", "1", "--wait", "0.1")
    assert (code, told["exitCode"], told["reason"], told["outcome"]) == (5, 5, "NotOnVolume", "failed")
    volume = place.parents[3]
    assert told["message"].startswith(f"{volume} holds no c1, expected c1/default/people-8d3f6b1a/g1/manifest.json")


def test_the_first_folder_that_is_missing_is_named(place: Path) -> None:
    place.parent.mkdir(parents=True)
    with pytest.raises(NotOnVolume, match=r"people-8d3f6b1a holds no g1, expected g1/manifest\.json"):
        find_shard(place, 1)


@pytest.mark.parametrize("bytes_there", [0, 4096])
def test_a_file_that_is_being_copied_is_waited_for(written: Path, place: Path, bytes_there: int) -> None:
    place.mkdir(parents=True)
    shutil.copy(written / "manifest.json", place / "manifest.json")
    if bytes_there:
        (place / FILE).write_bytes((written / FILE).read_bytes()[:bytes_there])
    with pytest.raises(NotOnVolume, match="has 4096 bytes" if bytes_there else f"holds no {FILE}"):
        await_shard(place, 1, 0)
    (place / FILE).unlink(missing_ok=True)
    shutil.copy(written / FILE, place / FILE)
    assert await_shard(place, 1, 0).path == place / FILE


def test_a_manifest_that_is_being_written_is_waited_for_and_a_broken_one_told(written: Path, place: Path) -> None:
    shutil.copytree(written, place)
    manifest = place / "manifest.json"
    whole = manifest.read_bytes()
    manifest.chmod(0o644)
    manifest.write_bytes(whole[:100])
    with pytest.raises(CorruptFile):
        await_shard(place, 1, 0)
    writer = threading.Timer(0.5, manifest.write_bytes, [whole])
    writer.start()
    assert await_shard(place, 1, 60).shard == 1
    writer.join()


def test_a_shard_that_the_generation_lacks_is_not_waited_for(written: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="no shard 2"):
        await_shard(written, 2, 60)
    assert time.monotonic() - began < 30


def test_a_folder_that_may_not_be_read_is_told_as_such(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotOnVolume, match=r"manifest\.json cannot be read: Input/output error"):
        await_shard(place, 1, 0)


def test_a_volume_that_fails_while_it_is_read_is_an_error_with_its_place(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(116, os.strerror(116))

    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(StoreError, match=rf"cannot read .*{FILE} from byte 0 on: Stale file handle"):
        Verification(locate_shard(written, 1), "auto", 1 << 40).run()


def test_damage_ends_the_server_with_its_own_reason(written: Path, place: Path) -> None:
    shutil.copytree(written, place)
    content = bytearray((place / FILE).read_bytes())
    content[-1] ^= 1
    (place / FILE).chmod(0o644)
    (place / FILE).write_bytes(content)
    code, told = _end(str(place), "--shard", "1", "--wait", "30")
    assert (code, told["reason"]) == (5, "CorruptFile")
    assert "sha256" in told["message"]


def test_sigterm_ends_the_wait_at_once(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [str(place), "--shard", "0", "--wait", "600", "--port", "0", "--admin-port", "0"]
    process = launching.start("serve", words)
    until(lambda: "waiting for the generation to serve" in capfd.readouterr().err, "it waits")
    assert stop(process) == 128 + signal.SIGTERM


def _told(admin: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=60).close()
    except urllib.error.HTTPError as error:
        with error:
            return b"No such file or directory" in error.read()
    return False
