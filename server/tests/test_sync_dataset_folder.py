"""The folder of a dataset: a generation is there whole or not at all, and `current` names one that is."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.shards import write_generation
from support.syncing import names

from lookupdb import disk
from lookupdb.errors import StoreError, UsageError
from lookupdb.manifest import FILE_NAME
from lookupdb.sync.folder import DatasetFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DatasetFolder]:
    folder = DatasetFolder(tmp_path, "team", "people")
    folder.lock()
    yield folder
    folder.unlock()


def put(folder: DatasetFolder, generation: str, value: str, uid: str = "a") -> None:
    """Publish ``generation``, as a fetch would have put it together."""
    partial = folder.open_partial(generation)
    partial.rmdir()
    made = write_generation(
        folder.path / ".made", {"k": value.encode()}, generation=generation, namespace="team", name="people", uid=uid
    )
    made.rename(partial)
    (folder.path / ".made").rmdir()
    folder.publish(generation)


@contextmanager
def mapped_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the shared lock that a reader holds."""
    reading, writing = os.pipe()
    held, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)
        os.write(told, b"!")
        os.read(reading, 1)
        os._exit(0)
    os.read(held, 1)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        for descriptor in (reading, held, told):
            os.close(descriptor)


class TestCurrent:
    def test_is_none_at_first(self, folder: DatasetFolder) -> None:
        assert folder.current() is None
        assert folder.generations() == ()

    def test_names_what_was_pointed_to(self, folder: DatasetFolder) -> None:
        for generation in ("g1", "g2"):
            put(folder, generation, generation)
            folder.point(generation)
            current = folder.current()
            assert current is not None
            assert current.generation == generation
        assert (folder.path / "current").readlink() == Path("g2")
        assert names(folder.path) == ["current", "g1", "g2"]

    @pytest.mark.parametrize("name", ["g3", "../elsewhere", ".g1.partial"])
    def test_of_what_is_not_there_or_no_generation_is_none(self, folder: DatasetFolder, name: str) -> None:
        put(folder, "g1", "v")
        (folder.path / "current").symlink_to(name)
        assert folder.current() is None

    def test_of_what_is_not_whole_is_none(self, folder: DatasetFolder) -> None:
        put(folder, "g1", "v")
        folder.point("g1")
        (shard,) = (folder.path / "g1").glob("*.lmdb")
        shard.chmod(0o644)
        os.truncate(shard, 10)
        assert folder.current() is None

    def test_that_is_no_link_is_told(self, folder: DatasetFolder) -> None:
        (folder.path / "current").mkdir()
        with pytest.raises(StoreError, match="current is not a link"):
            folder.current()

    def test_a_reader_never_finds_it_gone(self, folder: DatasetFolder) -> None:
        for generation in ("g1", "g2"):
            put(folder, generation, generation)
        folder.point("g1")
        ended = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            while not ended.wait(0.0002):
                try:
                    (folder.path / "current" / FILE_NAME).read_bytes()
                except OSError as error:
                    failures.append(error)
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(200):
            folder.point(f"g{1 + number % 2}")
        ended.set()
        reader.join()
        assert failures == []


class TestAnotherGenerationOfThatName:
    @pytest.fixture(params=["exchanged", "one after the other"])
    def way(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        if request.param != "exchanged":

            def refuse(path: Path, _other: Path) -> None:
                raise OSError(errno.EINVAL, "no", str(path))

            monkeypatch.setattr(disk, "exchange", refuse)
        return str(request.param)

    @pytest.mark.usefixtures("way")
    def test_makes_way(self, folder: DatasetFolder) -> None:
        put(folder, "g1", "old", uid="a")
        folder.point("g1")
        put(folder, "g1", "new", uid="b")
        current = folder.current()
        assert current is not None
        assert current.uid == "b"
        assert names(folder.path) == ["current", "g1"]

    def test_at_once(self, folder: DatasetFolder) -> None:
        """If the file system supports exchanges, the name never disappears."""
        put(folder, "g1", "0", uid="a")
        folder.point("g1")
        ended = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            while not ended.wait(0.0002):
                try:
                    (folder.path / "current" / FILE_NAME).read_bytes()
                except OSError as error:
                    failures.append(error)
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(20):
            put(folder, "g1", str(number), uid=f"u{number}")
        ended.set()
        reader.join()
        assert failures == []


# The generations in the order of their arrival, the current one, the number to keep, and those removed, in order.
# ``b:`` marks another dataset's, ``!`` one without a manifest.
CASES = {
    "the last ones stay": ("g1 g2 g10", "g10", 2, "g1"),
    "to make room": ("g1 g2", "g2", 0, "g1"),
    "after a rollback": ("g1 g2 g3 g4", "g1", 2, "g2"),
    "after a rollback to what was fetched again": ("g6 g7 g5", "g5", 2, "g6"),
    "damaged ones go": ("g1 g2!", "g1", 2, "g2"),
    "nothing is known of what is current": ("g1 g2!", "g2", 1, ""),
    "another dataset's go first": ("g1 g2 b:g9 g3", "g3", 1, "g9 g1 g2"),
    "numbers have restarted": ("g49 g50 g1", "g1", 2, "g49"),
    "numbers have restarted, and reached those of before": ("g1 g2 g3 g1 g2", "g2", 2, "g3"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_superseded(folder: DatasetFolder, case: str) -> None:
    history, current, keep, superseded = CASES[case]
    for word in history.split():
        generation = word.strip("b:!")
        put(folder, generation, generation, "b" if word.startswith("b:") else "a")
        if word.endswith("!"):
            (folder.path / generation / FILE_NAME).unlink()
    (folder.path / "current").symlink_to(current)
    assert folder.find_superseded(keep) == tuple(superseded.split())


def test_what_arrives_is_the_newest_even_if_the_clock_was_set_back(folder: DatasetFolder) -> None:
    put(folder, "g9", "v")
    ahead = time.time() + 86400
    os.utime(folder.path / "g9" / FILE_NAME, (ahead, ahead))
    put(folder, "g1", "v")
    put(folder, "g2", "v")
    folder.point("g2")
    assert folder.find_superseded(keep=1) == ("g9", "g1")


class TestRemoval:
    def test_of_what_somebody_has_mapped_waits(self, folder: DatasetFolder) -> None:
        put(folder, "g1", "v")
        with mapped_elsewhere(folder.path / "g1" / FILE_NAME):
            assert not folder.remove("g1")
            assert folder.find_whole("g1") is not None
        assert folder.remove("g1")
        assert names(folder.path) == []

    def test_of_what_has_no_manifest_is_not_held_up(self, folder: DatasetFolder) -> None:
        (folder.path / "g1").mkdir(parents=True)
        assert folder.remove("g1")
        assert names(folder.path) == []

    def test_that_was_interrupted_is_ended_later(self, folder: DatasetFolder) -> None:
        put(folder, "g1", "v")
        (folder.path / "g1").rename(folder.path / ".g1.removed")
        (folder.path / ".current.new").symlink_to("g1")
        folder.recover()
        assert names(folder.path) == []


class TestPartial:
    def test_of_the_same_generation_stays_and_others_go(self, folder: DatasetFolder) -> None:
        (folder.open_partial("g1") / "shard").write_bytes(b"1")
        assert names(folder.open_partial("g1")) == ["shard"]
        folder.open_partial("g2")
        assert names(folder.path) == [".g2.partial"]
        folder.remove_partials()
        assert names(folder.path) == []

    def test_all_may_look_into_folders_whatever_the_umask(self, tmp_path: Path) -> None:
        folder = DatasetFolder(tmp_path, "other", "people")
        before = os.umask(0o077)
        try:
            folder.lock()
            put(folder, "g1", "v")
            partial = folder.open_partial("g2")
        finally:
            os.umask(before)
        folder.unlock()
        for path in (folder.path.parent, folder.path, partial):
            assert path.stat().st_mode & 0o777 == 0o755


class TestLock:
    def test_is_one_holders(self, folder: DatasetFolder) -> None:
        other = DatasetFolder(folder.path.parents[1], "team", "people")
        with pytest.raises(UsageError, match="another `lookupdb sync` keeps"):
            other.lock()
        DatasetFolder(folder.path.parents[1], "team", "places").lock()
        folder.unlock()
        other.lock()
        other.lock()
        other.unlock()
