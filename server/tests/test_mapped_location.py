"""Names of datasets on this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.mapped import SyncedDataset
from support.shards import write_generation

from lookupdb.errors import CorruptFile, GenerationMissing, StoreError, UsageError
from lookupdb.manifest import Announcement
from lookupdb.mapped import open_dataset
from lookupdb.mapped.generation import GenerationFolder, StoreFolder, SyncedFolder, locate

RECORDS = {"a": b"1"}


def test_a_generations_folder_stays(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, RECORDS)
    assert locate(folder) == locate(str(folder)) == GenerationFolder(folder)
    assert open_dataset(folder).follower is None


def test_a_folder_with_a_link_follows_it(tmp_path: Path) -> None:
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", RECORDS)
    for place in (dataset.path, dataset.path / "current", f"{dataset.path}/"):
        assert locate(place) == SyncedFolder(dataset.path)
    assert locate(dataset.path / "g1") == GenerationFolder(dataset.path / "g1")


def test_a_link_that_names_a_path(tmp_path: Path) -> None:
    folder = write_generation(tmp_path / "elsewhere", RECORDS)
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "current").symlink_to(folder)
    assert open_dataset(tmp_path / "people")["a"] == b"1"


def test_a_stores_folder(tmp_path: Path) -> None:
    write_generation(tmp_path, RECORDS)
    assert locate(tmp_path) == StoreFolder(tmp_path)
    (tmp_path / "g1" / "manifest.json").unlink()
    with pytest.raises(GenerationMissing, match=r"has no whole generation that passed its gates\n.*g1"):
        open_dataset(tmp_path)


def test_a_relative_path_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SyncedDataset(tmp_path).publish("g1", RECORDS)
    monkeypatch.chdir(tmp_path)
    with open_dataset("default/people", refresh_seconds=0) as mapping:
        monkeypatch.chdir("/")
        assert mapping.reload() is False
        assert mapping["a"] == b"1"


def test_a_name_is_looked_up_in_the_synced_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SyncedDataset(tmp_path).publish("g1", RECORDS)
    SyncedDataset(tmp_path, "routes", "team").publish("g1", {"a": b"2"})
    monkeypatch.setenv("LOOKUPDB_SYNC_DIR", str(tmp_path))
    assert open_dataset("people")["a"] == b"1"
    assert open_dataset("default/people")["a"] == b"1"
    assert open_dataset("team/routes")["a"] == b"2"
    with pytest.raises(GenerationMissing, match=rf"there is no folder {tmp_path}/default/routes .*by their names in"):
        open_dataset("routes")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GenerationMissing, match="no folder"):
        open_dataset(Path("people"))
    assert open_dataset("./default/people")["a"] == b"1", "a path"
    assert open_dataset(Path("default/people"))["a"] == b"1"


def test_without_that_folder_a_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOKUPDB_SYNC_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GenerationMissing, match=rf"no folder {tmp_path}/people \(LOOKUPDB_SYNC_DIR is not set\)"):
        open_dataset("people")


def test_what_lookupdb_up_has_built_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("default/people-local", "team/routes-local"):
        (tmp_path / ".lookupdb/store/local" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for root in (None, tmp_path / "synced"):
        if root is not None:
            monkeypatch.setenv("LOOKUPDB_SYNC_DIR", str(root))
        for name, folder in (("people", "default/people-local"), ("team/routes", "team/routes-local")):
            with pytest.raises(GenerationMissing, match=rf"has built one in \.lookupdb/store/local/{folder}$"):
                open_dataset(name)
        with pytest.raises(GenerationMissing, match=r"has fetched it$"):
            open_dataset("routes")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://127.0.0.1:8080", "lookupdb.client"),
        ("HTTPS://user:secret@router", "lookupdb.client"),
        ("s3://secret/eu", "lookupdb sync"),
        ("file:///data/secret", "the folder's path"),
    ],
)
def test_a_url_is_no_folder(url: str, hint: str) -> None:
    with pytest.raises(UsageError, match="maps folders of this machine, found a URL of ") as told:
        open_dataset(url)
    assert hint in str(told.value)
    assert "secret" not in str(told.value)


def test_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(GenerationMissing, match=r"holds no generation: expected manifest\.json, current, "):
        open_dataset(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        open_dataset(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot open"):
        open_dataset(tmp_path / ("x" * 300))
    with pytest.raises(TypeError):
        open_dataset(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_that_is_none(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match=r"refresh_seconds is .*, expected 0 or more, or None"):
        open_dataset(write_generation(tmp_path, RECORDS), refresh_seconds=seconds)


class TestAnnouncements:
    """active.json in a store's folder says which generation answers."""

    def announce(self, folder: Path, generation: str, version: int = 1) -> None:
        (folder / "active.json.new").write_text(
            '{"formatVersion": 1, "dataset": {"namespace": "default", "name": "sample", "uid": "local"},'
            f' "generation": "{generation}", "version": {version}, "announcedAt": "2026-11-20T02:04:00Z"}}'
        )
        (folder / "active.json.new").rename(folder / "active.json")

    def test_the_announced_one_answers_and_no_newer_one(self, tmp_path: Path) -> None:
        for number in (1, 2, 3):
            write_generation(tmp_path, {"a": b"%d" % number}, generation=f"g{number}")
        self.announce(tmp_path, "g2")
        with open_dataset(tmp_path, refresh_seconds=0) as mapping:
            assert mapping["a"] == b"2"
            self.announce(tmp_path, "g3", 2)
            assert mapping["a"] == b"3"
            self.announce(tmp_path, "g1", 3)
            assert mapping["a"] == b"1"
            self.announce(tmp_path, "g9", 4)
            assert mapping["a"] == b"1"
            with pytest.raises(GenerationMissing, match=r"active\.json announces g9, but there is no g9") as caught:
                mapping.reload()
            assert "remove active.json" in str(caught.value.hint)

    def test_one_that_is_gone_gives_way_to_a_newer_one(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for number in (1, 2, 4):
            write_generation(tmp_path, {"a": b"%d" % number}, generation=f"g{number}")
        self.announce(tmp_path, "g3")
        with open_dataset(tmp_path, refresh_seconds=0) as mapping:
            assert (mapping["a"], mapping.generation, mapping.reload()) == (b"4", "g4", False)
            (told,) = [record.getMessage() for record in caplog.records if "active.json" in record.getMessage()]
            assert "announces g3, which is gone: using the newest one, g4" in told
            write_generation(tmp_path, {"a": b"3"}, generation="g3")
            assert mapping["a"] == b"3", "it was not gone, but still to come"

    def test_one_that_is_gone_does_not_give_way_to_an_older_one(self, tmp_path: Path) -> None:
        write_generation(tmp_path, RECORDS)
        self.announce(tmp_path, "g2")
        with pytest.raises(GenerationMissing, match=r"active\.json announces g2, but there is no g2"):
            open_dataset(tmp_path)

    def test_one_that_is_damaged_does_not_give_way(self, tmp_path: Path) -> None:
        write_generation(tmp_path, RECORDS, generation="g2")
        damaged = write_generation(tmp_path, RECORDS, generation="g1")
        next(damaged.glob("shard-*")).unlink()
        self.announce(tmp_path, "g1")
        with pytest.raises(CorruptFile, match="g1"):
            open_dataset(tmp_path)

    def test_one_that_cannot_be_read_is_an_error(self, tmp_path: Path) -> None:
        write_generation(tmp_path, RECORDS)
        (tmp_path / "active.json").write_text("{}")
        with pytest.raises(CorruptFile, match=r"active\.json"):
            open_dataset(tmp_path)

    def test_a_path_in_it_is_refused(self, tmp_path: Path) -> None:
        write_generation(tmp_path / "other", RECORDS)
        write_generation(tmp_path, RECORDS)
        self.announce(tmp_path, "other/g1")
        with pytest.raises(CorruptFile, match=r"active\.json"):
            open_dataset(tmp_path)


def test_a_refused_generation_answers_only_who_names_it(tmp_path: Path) -> None:
    import orjson

    write_generation(tmp_path, {"a": b"1"}, generation="g1")
    refused = write_generation(tmp_path, {"a": b"2"}, generation="g2")
    path = refused / "manifest.json"
    members = orjson.loads(path.read_bytes())
    members |= {"formatVersion": 2, "refused": {"reasons": ["r"], "gates": "x", "active": "", "unjudged": []}}
    path.write_bytes(orjson.dumps(members))
    assert open_dataset(tmp_path)["a"] == b"1"
    with open_dataset(refused) as mapping:
        assert mapping["a"] == b"2"
        assert mapping.manifest.refused is not None


def test_an_announced_generation_that_may_not_be_looked_at_is_named_and_not_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Path.stat

    def look_but_not_into_g1(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "g1":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **options)

    write_generation(tmp_path, RECORDS, generation="g1")
    write_generation(tmp_path, RECORDS, generation="g2")
    announcement = Announcement("default", "sample", "local", "g1", 1, "2026-01-01T00:00:00Z")
    (tmp_path / "active.json").write_bytes(announcement.to_json())
    monkeypatch.setattr(Path, "stat", look_but_not_into_g1)
    manifest = tmp_path / "g1" / "manifest.json"
    with pytest.raises(StoreError, match=f"cannot open {manifest}: Permission denied\n.*grant this user read access"):
        open_dataset(tmp_path)
    with pytest.raises(StoreError, match=f"cannot open {manifest}: "):
        open_dataset(tmp_path / "g1")


def test_a_dataset_that_up_has_built_is_named_by_its_folder(tmp_path: Path) -> None:
    write_generation(tmp_path / "wines-local", RECORDS, generation="g1")
    for place in (tmp_path / "wines", f"{tmp_path}/wines/"):
        with pytest.raises(GenerationMissing, match=rf"lookupdb up has built one in {tmp_path}/wines-local$"):
            locate(place)
    for place in (tmp_path / "wine", "/nowhere at all"):
        with pytest.raises(GenerationMissing) as told:
            locate(place)
        assert "wines" not in str(told.value).replace(str(tmp_path), "")


def test_a_name_that_no_file_can_have_is_reported_as_missing(tmp_path: Path) -> None:
    for name in ("a\0b", "half of a pair \ud800"):
        with pytest.raises(GenerationMissing, match="there is no folder"):
            locate(tmp_path / name)


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read all")
    folder = write_generation(tmp_path, RECORDS)
    (folder / "manifest.json").chmod(0)
    with pytest.raises(StoreError, match=r"cannot open .*\n.*grant this user read access"):
        open_dataset(folder)


@pytest.mark.parametrize("named", [False, True])
def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    SyncedDataset(tmp_path).publish("g1", RECORDS)
    monkeypatch.chdir(tmp_path / "default" / "people")
    if named:
        monkeypatch.setenv("LOOKUPDB_SYNC_DIR", str(tmp_path))
    with pytest.raises(UsageError, match="is empty"):
        locate("")
    assert locate(".") == SyncedFolder(tmp_path / "default" / "people")
