"""A mapping changes over to the generation that is to answer, by itself, and no read mixes two."""

from __future__ import annotations

import fcntl
import gc
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mapped import SyncedDataset
from support.shards import write_generation
from support.waiting import until

from lookupdb.errors import CorruptFile, GenerationMissing, StoreError
from lookupdb.mapped import MappedDataset, open_dataset
from lookupdb.mapped import generation as follower
from lookupdb.mapped.generation import Opener

pytestmark = pytest.mark.long


def content(generation: str, records: int = 50) -> dict[str, bytes]:
    return {f"k{number}": generation.encode() for number in range(records)}


@pytest.fixture
def synced(tmp_path: Path) -> SyncedDataset:
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", content("g1"), shards=2)
    return dataset


@pytest.fixture
def mapping(synced: SyncedDataset) -> Iterator[MappedDataset]:
    """One that looks at each access."""
    with open_dataset(synced.path, refresh_seconds=0) as mapping:
        yield mapping


@pytest.mark.parametrize("seconds", [0, 0.05, 0.1])
def test_another_generation_answers_soon(synced: SyncedDataset, seconds: float) -> None:
    mapping = open_dataset(synced.path, refresh_seconds=seconds)
    assert mapping["k1"] == b"g1"
    synced.publish("g2", content("g2", 60), shards=3)
    until(lambda: mapping["k1"] == b"g2", "the second generation")
    assert (mapping.generation, len(mapping)) == ("g2", 60)
    synced.point("g1")
    until(lambda: mapping.get("k1") == b"g1", "the first again")


@pytest.mark.parametrize("use", ["get", "in", "len", "iterate", "get_many", "raw", "generation", "items", "snapshot"])
def test_any_use_looks(synced: SyncedDataset, mapping: MappedDataset, use: str) -> None:
    synced.publish("g2", {"k1": b"g2"})
    found: dict[str, Callable[[], bool]] = {
        "get": lambda: mapping.get("k1") == b"g2",
        "in": lambda: "k2" not in mapping,
        "len": lambda: len(mapping) == 1,
        "iterate": lambda: list(mapping) == ["k1"],
        "get_many": lambda: mapping.get_many(["k1", "k2"]) == {"k1": b"g2"},
        "raw": lambda: mapping.raw("k1") == b"g2",
        "generation": lambda: mapping.generation == "g2",
        "items": lambda: list(mapping.items()) == [("k1", b"g2")],
        "snapshot": lambda: mapping.snapshot()["k1"] == b"g2",
    }
    assert found[use]()


@pytest.mark.parametrize("seconds", [None, 3600, float("inf"), 1e300])
def test_it_looks_no_more_often_than_it_was_told(synced: SyncedDataset, seconds: float | None) -> None:
    mapping = open_dataset(synced.path, refresh_seconds=seconds)
    synced.publish("g2", content("g2"))
    assert {mapping["k1"] for _ in range(200)} == {b"g1"}
    assert mapping.reload() is True
    assert mapping["k1"] == b"g2"
    assert mapping.reload() is False


def test_a_snapshot_and_an_iterator_stay(synced: SyncedDataset, mapping: MappedDataset) -> None:
    iterator = iter(mapping.items())
    first = next(iterator)
    with mapping.snapshot() as view:
        synced.publish("g2", content("g2", 7))
        assert mapping["k1"] == b"g2"
        assert dict(view) == content("g1")
        assert view.generation == "g1"
        assert view.reload() is False
        with view.snapshot() as other:
            assert other["k1"] == b"g1"
    assert dict([first, *iterator]) == content("g1")
    assert dict(mapping.items()) == content("g2", 7)


def mapped_files(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/shard-")


def held_manifests(folder: Path) -> int:
    links = (str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(link.startswith(f"{folder}/manifest.json") for link in links)


def test_files_are_let_go_with_the_last_that_uses_them(synced: SyncedDataset, mapping: MappedDataset) -> None:
    old = synced.path / "g1"
    view, iterator = mapping.snapshot(), iter(mapping)
    next(iterator)
    new = synced.publish("g2", content("g2"), shards=2)
    assert mapping["k1"] == b"g2"
    assert (mapped_files(old), held_manifests(old)) == (2, 1)
    view.close()
    assert (mapped_files(old), held_manifests(old)) == (2, 1)
    del iterator
    gc.collect()
    assert (mapped_files(old), held_manifests(old)) == (0, 0)
    assert (mapped_files(new), held_manifests(new)) == (2, 1)
    mapping.close()
    gc.collect()
    assert (mapped_files(new), held_manifests(new)) == (0, 0)


def can_remove(folder: Path) -> bool:
    """Return whether nobody has mapped the generation, as ``lookupdb sync`` checks before it removes one."""
    with (folder / "manifest.json").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_what_is_mapped_is_locked(synced: SyncedDataset, mapping: MappedDataset) -> None:
    assert not can_remove(synced.path / "g1")
    with open_dataset(synced.path / "g1"):
        synced.publish("g2", content("g2"))
        assert mapping["k1"] == b"g2"
        assert not can_remove(synced.path / "g1")
    assert can_remove(synced.path / "g1")
    assert not can_remove(synced.path / "g2")


def test_a_removed_generation_goes_on_answering(synced: SyncedDataset, mapping: MappedDataset) -> None:
    shutil.rmtree(synced.path)
    assert dict(mapping.items()) == content("g1")


def test_what_is_being_removed_is_not_opened(synced: SyncedDataset) -> None:
    with (synced.path / "g1" / "manifest.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(GenerationMissing, match="is being removed"):
            open_dataset(synced.path)


def test_who_finds_the_target_gone_looks_again(synced: SyncedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is removed after the link is read and before its files are opened."""
    synced.add("g2", content("g2"))
    opens = Opener.open

    def open_late(self: Opener, folder: Path) -> object:
        if folder.name == "g1":
            synced.point("g2")
            shutil.rmtree(folder)
        return opens(self, folder)

    monkeypatch.setattr(Opener, "open", open_late)
    assert open_dataset(synced.path)["k1"] == b"g2"


class TestFailures:
    """A generation that cannot be opened is reported once; the current one goes on answering, and a retry follows."""

    @pytest.fixture(autouse=True)
    def _retries_are_quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(follower, "RETRY_SECONDS", (0.01, 0.02))

    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    def keeps(self, mapping: MappedDataset, caplog: pytest.LogCaptureFixture, message: str) -> None:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            assert mapping["k1"] == b"g1"
        (warning,) = self.warnings(caplog)
        assert "another generation cannot be opened, the current one keeps answering" in warning
        assert message in warning
        with pytest.raises(StoreError, match=message):
            mapping.reload()
        assert mapping["k1"] == b"g1"

    def test_a_link_that_leads_nowhere(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        synced.point("g2")
        self.keeps(mapping, caplog, "there is no generation in")
        synced.add("g2", content("g2"))
        until(lambda: mapping["k1"] == b"g2", "the generation that has come")
        assert len(self.warnings(caplog)) == 1

    def test_no_link_any_more(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        (synced.path / "current").unlink()
        self.keeps(mapping, caplog, "has lost its link current")
        synced.point("g1")
        assert mapping.reload() is False

    def test_a_synced_folder_that_is_gone(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        synced.path.rename(synced.path.with_name("gone"))
        with pytest.raises(GenerationMissing):
            mapping.reload()
        self.keeps(mapping, caplog, "has lost its link current")

    def test_a_stores_folder_that_is_gone(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = tmp_path / "people-local"
        write_generation(folder, content("g1"))
        with open_dataset(folder, refresh_seconds=0) as mapping:
            shutil.rmtree(folder)
            with pytest.raises(GenerationMissing, match="people-local is gone"):
                mapping.reload()
            self.keeps(mapping, caplog, "people-local is gone")

    def test_a_stores_folder_that_cannot_be_read(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = tmp_path / "people-local"
        write_generation(folder, content("g1"))
        with open_dataset(folder, refresh_seconds=0) as mapping:
            (folder / "active.json").mkdir()
            with pytest.raises(StoreError, match=r"cannot open .*people-local/active\.json: Is a directory"):
                mapping.reload()
            self.keeps(mapping, caplog, "Is a directory")

    def test_a_generation_that_is_not_whole(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = synced.add("g2", content("g2"))
        (path,) = folder.glob("*.lmdb")
        path.rename(folder / "away")
        synced.point("g2")
        self.keeps(mapping, caplog, "is missing, although its index names it")
        (folder / "away").rename(path)
        until(lambda: mapping["k1"] == b"g2", "the generation that is whole")

    def test_another_dataset(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        synced.publish("g2", content("g2"), uid="another")
        self.keeps(mapping, caplog, r"is a generation of default/people")
        assert "(another), expected one of default/people (local)" in self.warnings(caplog)[0]
        synced.publish("g3", content("g3"))
        assert mapping["k1"] == b"g3"

    def test_each_trouble_is_reported_once(
        self, synced: SyncedDataset, mapping: MappedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number, generation in enumerate(("g2", "g3", "g2"), 1):
            synced.point(generation)
            until(lambda: mapping["k1"] == b"g1" and generation in str(self.warnings(caplog)[-1:]), generation)  # noqa: B023
            for _ in range(100):
                assert mapping["k1"] == b"g1"
            assert len(self.warnings(caplog)) == number

    def test_a_damaged_one_is_refused_where_checksums_are_proven(
        self, synced: SyncedDataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        mapping = open_dataset(synced.path, refresh_seconds=0, verify=True)
        folder = synced.add("g2", content("g2"))
        (path,) = folder.glob("*.lmdb")
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"$2\r\ng2", b"$2\r\nXX", 1))
        synced.point("g2")
        self.keeps(mapping, caplog, "has checksum")


def test_a_sound_generation_replaces_a_damaged_one_of_its_name(synced: SyncedDataset, mapping: MappedDataset) -> None:
    assert mapping["k1"] == b"g1"
    new = SyncedDataset(synced.path.parent.parent / "other")
    new.add("g1", content("mended"))
    (synced.path / "g1").rename(synced.path / "gone")
    (new.path / "g1").rename(synced.path / "g1")
    assert mapping["k1"] == b"mended"


class TestStoreFolders:
    """A dataset's folder of a directory store."""

    def test_the_newest_generation_that_may_answer(self, tmp_path: Path) -> None:
        write_generation(tmp_path, content("g9"), generation="g9")
        write_generation(tmp_path, content("g10"), generation="g10")
        mapping = open_dataset(tmp_path, refresh_seconds=0)
        assert mapping["k1"] == b"g10"
        folder = write_generation(tmp_path, content("g11"), generation="g11")
        (path,) = folder.glob("*.lmdb")
        path.unlink()
        assert mapping["k1"] == b"g10", "g11 is damaged"
        write_generation(tmp_path / ".new", content("g12"), generation="g12")
        (tmp_path / ".new" / "g12").rename(tmp_path / "g12")
        assert mapping["k1"] == b"g12"
        shutil.rmtree(tmp_path / "g12")
        assert mapping["k1"] == b"g10"

    def test_two_that_come_within_a_tick_of_the_clock(self, tmp_path: Path) -> None:
        write_generation(tmp_path, content("g1"), generation="g1")
        mapping = open_dataset(tmp_path, refresh_seconds=0)
        for number in range(2, 30):
            name = f"g{number}"
            write_generation(tmp_path / ".new", content(name, 2), generation=name)
            (tmp_path / ".new" / name).rename(tmp_path / name)
            assert mapping["k1"] == name.encode()


def test_no_read_mixes_generations_while_they_change(synced: SyncedDataset) -> None:
    """Readers in threads, against a folder that changes as fast as it can."""
    rounds, readers = 120, 4
    errors: list[BaseException] = []
    seen: set[bytes] = set()
    ended = threading.Event()
    mapping = open_dataset(synced.path, refresh_seconds=0)
    keys = list(content("g1"))

    def read() -> None:
        try:
            while not ended.is_set():
                for values in (
                    mapping.get_many(keys),
                    dict(mapping.items()),
                ):
                    assert len(values) == 50
                    assert len(set(values.values())) == 1, "two generations in one answer"
                with mapping.snapshot() as view:
                    assert {view[key] for key in keys[::7]} == {view.generation.encode()}
                    seen.add(view["k1"])
                assert mapping["k3"].startswith(b"g")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for number in range(2, rounds):
        synced.publish(f"g{number}", content(f"g{number}"), shards=1 + number % 3)
        if number > 4 and can_remove(synced.path / f"g{number - 3}"):
            shutil.rmtree(synced.path / f"g{number - 3}")
        if errors:
            break
    until(lambda: bool(errors) or mapping["k1"] == b"g%d" % (rounds - 1), "the last one")
    ended.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert len(seen) > 5


def test_a_failure_that_is_no_trouble_of_files_reaches_the_caller(
    synced: SyncedDataset, mapping: MappedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    synced.publish("g2", content("g2"))
    monkeypatch.setattr(Opener, "open", fail)
    with pytest.raises(ZeroDivisionError):
        mapping["k1"]


def test_refused_files_of_a_fixed_generation(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, content("g1"))
    with open_dataset(folder, refresh_seconds=0) as mapping:
        (folder / "manifest.json").unlink()
        assert mapping["k1"] == b"g1", "it stays, whatever becomes of its folder"
    with pytest.raises((GenerationMissing, CorruptFile)):
        open_dataset(folder)
