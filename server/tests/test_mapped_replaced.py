"""Another generation comes to a name that is being opened, or was; and what is closed stays closed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.mapped import SyncedDataset
from support.shards import write_generation

from lookupdb import disk
from lookupdb.errors import CorruptFile, GenerationMissing
from lookupdb.mapped import MappedDataset, dataset, open_dataset
from lookupdb.mapped.generation import choose_make_files


def content(value: bytes) -> dict[str, bytes]:
    return {f"k{number}": value for number in range(50)}


@pytest.fixture
def synced(tmp_path: Path) -> SyncedDataset:
    synced = SyncedDataset(tmp_path)
    synced.publish("g1", content(b"old"), shards=3)
    return synced


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A generation of the same number, size and keys, as of a dataset that was made again."""
    return write_generation(
        tmp_path / "other", content(b"new"), generation="g1", name="people", shards=3, uid="another"
    )


def exchange_while_opening(monkeypatch: pytest.MonkeyPatch, path: Path, other: Path, times: int) -> Callable[[], int]:
    """Let the two folders trade names after the manifest is read and before the files are mapped. Return a function
    that says how often they did."""
    make, done = choose_make_files(), 0

    def make_late(*arguments: Any) -> Any:
        nonlocal done
        if done < times:
            done += 1
            disk.exchange(path, other)
        return make(*arguments)

    monkeypatch.setattr(dataset, "choose_make_files", lambda: make_late)
    return lambda: done


def test_a_manifest_and_the_files_of_another_are_never_taken_together(
    synced: SyncedDataset, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = exchange_while_opening(monkeypatch, synced.path / "g1", other, times=1)
    mapping = open_dataset(synced.path)
    assert count() == 1
    assert dict(mapping.items()) == content(b"new")
    assert mapping.manifest.uid == "another"


def test_what_is_replaced_again_and_again_is_no_generation(
    synced: SyncedDataset, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange_while_opening(monkeypatch, synced.path / "g1", other, times=1 << 30)
    with pytest.raises(GenerationMissing, match="was replaced, or removed, while it was opened"):
        open_dataset(synced.path)


def test_a_child_reads_what_its_parent_has_opened_or_nothing(
    synced: SyncedDataset, other: Path, tmp_path: Path
) -> None:
    mapping = open_dataset(synced.path, refresh_seconds=None)
    disk.exchange(synced.path / "g1", other)
    child = os.fork()
    if not child:
        try:
            (tmp_path / "said").write_bytes(mapping["k1"])
        except CorruptFile as error:
            (tmp_path / "said").write_text(error.message)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "said").read_text()
    assert said == "old" or "is another file than when it was opened" in said
    assert mapping["k1"] == b"old"


def test_a_pickled_snapshot_is_of_its_generation_or_an_error(synced: SyncedDataset, other: Path) -> None:
    with open_dataset(synced.path) as mapping, mapping.snapshot() as view:
        pickled = pickle.dumps(view)
    assert pickle.loads(pickled)["k1"] == b"old"
    disk.exchange(synced.path / "g1", other)
    with pytest.raises(GenerationMissing, match="a generation with the same number has replaced it"):
        pickle.loads(pickled)


class _ClosedBehindTheLook:
    """A view that another thread closes between the follower's last look at it and what it puts there."""

    def __init__(self, mapping: MappedDataset) -> None:
        self._mapping = mapping
        self._looks = 0

    def newest(self) -> Any:
        found, self._looks = self._mapping.newest(), self._looks + 1
        if self._looks == 2:
            self._mapping.close()
        return found

    def put(self, generation: Any) -> None:
        self._mapping.put(generation)


def test_what_is_closed_while_it_changes_over_stays_closed(synced: SyncedDataset) -> None:
    mapping = open_dataset(synced.path, refresh_seconds=0)
    synced.publish("g2", content(b"g2"))
    assert mapping.follower is not None
    mapping.follower.look(_ClosedBehindTheLook(mapping))
    with pytest.raises(ValueError, match="the mapping is closed"):
        mapping["k1"]
    assert mapping.newest() is None


def test_a_descriptor_that_is_another_files_by_now_is_not_closed(synced: SyncedDataset) -> None:
    """A program that becomes a daemon closes all descriptors, and opens others."""
    mapping = open_dataset(synced.path / "g1")
    descriptor = mapping.facts._descriptor
    with Path(os.devnull).open("rb") as file:
        os.dup2(file.fileno(), descriptor)
    try:
        mapping.close()
        del mapping
        os.fstat(descriptor)
    finally:
        os.close(descriptor)


def test_an_announcement_without_end_is_read_no_further(tmp_path: Path) -> None:
    write_generation(tmp_path, content(b"g1"), generation="g1")
    with (tmp_path / "active.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptFile, match="it has 4097 bytes, expected at most 4096"):
        open_dataset(tmp_path)


def test_of_a_key_that_cannot_be_no_copy_is_made(synced: SyncedDataset) -> None:
    """Without native kernels no copy is ever made."""
    import resource

    with open_dataset(synced.path) as mapping:
        long = "x" * (64 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert mapping.get_many([long] * 32) == {}
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB: a copy of each is 2 GiB"
