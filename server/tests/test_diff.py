"""`lookupdb diff`: what changed between two generations."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.generations import publish

from lookupdb import store
from lookupdb.builder import existing
from lookupdb.cli.stores import diff as command
from lookupdb.errors import CorruptFile, StoreError, UsageError
from lookupdb.store import StoreAddress, StoredDataset
from lookupdb.store.generations import StoredGeneration
from lookupdb.up.run_state import object_file
from support import dictionaries

OLD = {f"key-{number:05d}": b'{"n":%d,"text":"some text that many have"}' % number for number in range(3000)}
NEW = {
    **{key: value for key, value in OLD.items() if not key.endswith("7")},
    **{f"new-{number}": b"{}" for number in range(12)},
    "key-00001": b'{"n":"changed"}',
    "key-02999": b'{"n":"changed too"}',
}


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    (tmp_path / "scratch").mkdir()
    return store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", "local"))


def diff(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(command, [*arguments, "--store", str(tmp_path / "store")], standalone_mode=False)


def counted(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = diff(tmp_path, *arguments, "--json")
    assert result.exception is None, result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("train", [False, True], ids=["no dictionary", "dictionaries of their own"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (2, 5), (4, 1)])
def test_counts_and_samples_whatever_the_numbers_of_shards(
    dataset: StoredDataset, tmp_path: Path, before: int, after: int, train: bool
) -> None:
    publish(dataset, "g1", OLD, tmp_path / "scratch", shards=before, train=train)
    publish(dataset, "g2", NEW, tmp_path / "scratch", shards=after, train=train)
    found = counted(tmp_path, "g1", "g2")
    assert {name: found[name] for name in ("added", "removed", "changed", "same")} == {
        "added": 12,
        "removed": 300,
        "changed": 2,
        "same": 2698,
    }
    assert found["samples"]["removed"][0] == {"key": "key-00007", "before": OLD["key-00007"].decode(), "after": None}
    assert found["samples"]["changed"][0]["after"] == '{"n":"changed"}'
    assert [change["key"] for change in found["samples"]["added"]] == ["new-0", "new-1", "new-10", "new-11", "new-2"]


@pytest.mark.parametrize("options", [[], ["--sampled"]], ids=["exact", "sampled"])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3)])
def test_a_key_has_changed_if_its_value_has_whatever_is_stored(
    dataset: StoredDataset, tmp_path: Path, before: int, after: int, options: list[str]
) -> None:
    for name, content, shards, dictionary in (
        ("g1", dictionaries.BEFORE, before, dictionaries.OLD_DICTIONARY),
        ("g2", dictionaries.AFTER, after, dictionaries.NEW_DICTIONARY),
    ):
        publish(dataset, name, content, tmp_path / "scratch", shards=shards, dictionary=dictionary)
    found = counted(tmp_path, "g1", "g2", *options)
    assert (found["added"], found["removed"], found["same"]) == (0, 0, dictionaries.SAME)
    assert sorted(change["key"] for change in found["samples"]["changed"]) == dictionaries.CHANGED


def test_random_generations_against_dicts(dataset: StoredDataset, tmp_path: Path) -> None:
    chance = random.Random(5)
    contents = [{f"{chance.randrange(400)}": b"%d" % chance.randrange(3) for _ in range(300)} for _ in range(4)]
    for number, content in enumerate(contents, 1):
        publish(dataset, f"g{number}", content, tmp_path / "scratch", shards=chance.randrange(1, 4))
    for number, (old, new) in enumerate(itertools.pairwise(contents), 1):
        found = counted(tmp_path, f"g{number}", f"g{number + 1}")
        both = old.keys() & new.keys()
        assert found["added"] == len(new.keys() - old.keys())
        assert found["removed"] == len(old.keys() - new.keys())
        assert found["same"] == sum(old[key] == new[key] for key in both)
        assert found["changed"] == len(both) - found["same"]


def test_for_people(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"a": b"1", "b": b"2"}, tmp_path / "scratch")
    publish(dataset, "g2", {"b": b"3"}, tmp_path / "scratch")
    lines = diff(tmp_path, "g1", "g2").stdout.splitlines()
    assert lines[2:] == [
        "same     0",
        "added    0",
        "removed  1",
        "    a",
        "      - 1",
        "changed  1",
        "    b",
        "      - 2",
        "      + 3",
    ]


@pytest.mark.parametrize(("content", "code"), [({"a": b"1"}, 0), ({"a": b"2"}, 1)])
def test_the_exit_code_tells_only_when_asked_to(
    dataset: StoredDataset, tmp_path: Path, content: dict[str, bytes], code: int
) -> None:
    publish(dataset, "g1", {"a": b"1"}, tmp_path / "scratch")
    publish(dataset, "g2", content, tmp_path / "scratch")
    assert diff(tmp_path, "g1", "g2").exit_code == 0
    assert diff(tmp_path, "g1", "g2", "--exit-code").exit_code == code


def test_the_dataset_comes_first_and_its_up_knows_what_is_compared(dataset: StoredDataset, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        publish(dataset, f"g{number}", {"a": b"%d" % number}, tmp_path / "scratch")
    assert both(counted(tmp_path, "things", "g1", "g3")) == ("g1", "g3")
    data = tmp_path / "data"
    (data / "store").parent.mkdir()
    (data / "store").symlink_to(tmp_path / "store")
    file = object_file(data, "default", "things")
    file.parent.mkdir(parents=True)
    status: dict[str, Any] = {"generation": "g2"}
    file.write_text(json.dumps({"status": status}))
    assert both(of_data(data, "things", "g1")) == ("g2", "g1")
    with pytest.raises(UsageError, match="things has no candidate"):
        of_data(data, "things")
    file.write_text(json.dumps({"status": status | {"candidate": {"generation": "g3"}}}))
    assert both(of_data(data, "default/things")) == ("g2", "g3")
    with pytest.raises(UsageError, match="expected DATASET"):
        of_data(data, "things", "g1", "g2", "g3")


def of_data(data: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*arguments, "--data", str(data), "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def both(document: dict[str, Any]) -> tuple[str, str]:
    return document["before"]["generation"], document["after"]["generation"]


def test_generations_may_be_given_as_folders(dataset: StoredDataset, tmp_path: Path) -> None:
    for name in ("g1", "g2"):
        publish(dataset, name, {"a": b"1"}, tmp_path / "scratch")
    assert counted(tmp_path, str(dataset.local_path("g1")), str(dataset.local_path("g2")))["same"] == 1


def test_what_cannot_be_compared_says_why(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"a": b"1"}, tmp_path / "scratch")
    for arguments, kind, message in (
        (("g1", "g2"), StoreError, "has no generation g2"),
        (("g1", "g1"), UsageError, "are the same generation"),
        (("g1", str(tmp_path / "nothing")), UsageError, "neither a folder nor a generation"),
        (("g1", str(tmp_path)), StoreError, "holds no whole generation"),
        (("g1", "g2", "--dataset", "other"), StoreError, "has no dataset other"),
        (("g1", "g2", "--cluster-id", "c2"), StoreError, "it has: none; --cluster-id names another part of it than c2"),
    ):
        error = diff(tmp_path, *arguments).exception
        assert isinstance(error, kind)
        assert message in str(error)


def test_a_file_that_is_cut_short_is_said_to_be_and_never_mapped(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {str(number): b"a" * 100 for number in range(1000)}, tmp_path / "scratch")
    manifest = publish(dataset, "g2", {str(number): b"b" * 100 for number in range(1000)}, tmp_path / "scratch")
    folder = dataset.local_path("g2")
    assert folder
    path = folder / manifest.shards[0].file
    path.chmod(0o644)
    os.truncate(path, 30_000)
    for names in (["g1", "g2"], ["g2", "g1"], ["g1", "g2", "--sampled"]):
        command = [sys.executable, "-m", "lookupdb", "diff", *names, "--store", str(tmp_path / "store")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 5, ended
        assert f"{path.name} is 30000 bytes long instead of {manifest.shards[0].bytes}" in ended.stderr


@pytest.mark.parametrize("options", [[], ["--sampled"]], ids=["exact", "sampled"])
def test_a_missing_or_short_file_is_damage_though_both_manifests_have_its_checksum(
    dataset: StoredDataset, tmp_path: Path, options: list[str]
) -> None:
    publish(dataset, "g1", OLD, tmp_path / "scratch", shards=4)
    manifest = publish(dataset, "g2", OLD, tmp_path / "scratch", shards=4)
    folder = dataset.local_path("g2")
    assert folder
    path = folder / manifest.shards[3].file
    path.chmod(0o644)
    os.truncate(path, 100)
    for names in (("g1", "g2"), ("g2", "g1"), ("g1", str(folder))):
        error = diff(tmp_path, *names, *options).exception
        assert isinstance(error, CorruptFile)
        assert f"{path.name} is 100 bytes long" in error.message
    path.unlink()
    error = diff(tmp_path, "g1", "g2", *options).exception
    assert isinstance(error, CorruptFile)
    assert error.message == f"g2 in {dataset.url} is damaged: {path.name} is missing"


def test_one_is_counted_in_the_singular(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"a": b"1"}, tmp_path / "scratch")
    publish(dataset, "g2", {"a": b"1", "b": b"2"}, tmp_path / "scratch")
    lines = diff(tmp_path, "g1", "g2").stdout.splitlines()
    assert lines[0].startswith("before   g1, 1 record, ")
    assert lines[1].startswith("after    g2, 2 records, ")


def test_of_several_datasets_one_must_be_chosen(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"a": b"1"}, tmp_path / "scratch")
    publish(
        store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "team", "others", "local")),
        "g1",
        {},
        tmp_path / "scratch",
    )
    error = diff(tmp_path, "g1", "g2").exception
    assert isinstance(error, UsageError)
    assert "choose one with --dataset" in str(error)
    assert "has no generation g2" in str(diff(tmp_path, "g1", "g2", "--dataset", "team/others").exception)


def test_a_sample_counts_what_was_compared_and_shows_keys_alone(dataset: StoredDataset, tmp_path: Path) -> None:
    """A sample of so few keys has all of them: the counts are those of the exact difference."""
    publish(dataset, "g1", OLD, tmp_path / "scratch", shards=2)
    publish(dataset, "g2", NEW, tmp_path / "scratch", shards=3)
    found = counted(tmp_path, "g1", "g2", "--sampled", "--samples", "2")
    exact = counted(tmp_path, "g1", "g2")
    assert {name: found[name] for name in ("added", "removed", "changed", "same", "isWhole")} == {
        name: exact[name] for name in ("added", "removed", "changed", "same", "isWhole")
    }
    assert {kind: len(keys) for kind, keys in found["samples"].items()} == {"added": 2, "removed": 2, "changed": 2}
    assert found["samples"]["removed"][0]["before"] is None


def test_a_sample_of_more_says_that_it_is_one(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "MAX_KEYS", 300)
    publish(dataset, "g1", OLD, tmp_path / "scratch", shards=4)
    publish(dataset, "g2", NEW, tmp_path / "scratch", shards=4)
    found = counted(tmp_path, "g1", "g2", "--sampled")
    assert not found["isWhole"]
    assert 300 <= found["same"] + found["removed"] + found["changed"] < 1200
    assert "not all keys were compared: the counts are of a sample" in diff(tmp_path, "g1", "g2", "--sampled").stdout


def test_samples_and_values_are_bounded(dataset: StoredDataset, tmp_path: Path) -> None:
    large = {f"k{number}": b'"' + b"x" * 20_000 + b'"' for number in range(50)}
    publish(dataset, "g1", {"k": b"1"}, tmp_path / "scratch")
    publish(dataset, "g2", large, tmp_path / "scratch")
    result = diff(tmp_path, "g1", "g2", "--json", "--samples", "20")
    assert len(json.loads(result.stdout)["samples"]["added"]) == 20
    assert len(result.stdout) < 20 * 4200 + 2000


def test_of_two_equal_shard_files_neither_is_fetched(
    dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(dataset, "g1", OLD, tmp_path / "scratch", shards=2)
    publish(dataset, "g2", OLD, tmp_path / "scratch", shards=2)
    monkeypatch.setattr(StoredGeneration, "file", lambda *_: pytest.fail("a shard file is fetched"))
    assert counted(tmp_path, "g1", "g2")["same"] == 3000


@pytest.mark.parametrize("uid", ["0bf39031", "0bf39031-6f3c-4e0a-9a57-3d1f0a0c7f11"], ids=["as in the store", "whole"])
def test_a_dataset_that_was_made_again_is_distinguished_by_its_uid(
    dataset: StoredDataset, tmp_path: Path, uid: str
) -> None:
    again = store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", uid))
    for made in (dataset, again):
        publish(made, "g1", OLD, tmp_path / "scratch")
        publish(made, "g2", NEW, tmp_path / "scratch")
    assert isinstance(diff(tmp_path, "g1", "g2", "--dataset", "things").exception, UsageError)
    assert counted(tmp_path, "g1", "g2", "--dataset", "default/things", "--uid", uid)["added"] == 12


def test_what_is_not_text_is_shown_as_python_writes_bytes(dataset: StoredDataset, tmp_path: Path) -> None:
    publish(dataset, "g1", {"picture": "Päge\n".encode()}, tmp_path / "scratch", shards=1)
    publish(dataset, "g2", {"picture": b"\x89PNG\r\n"}, tmp_path / "scratch", shards=1)
    shown = diff(tmp_path, "g1", "g2").stdout
    assert "      - Päge\\n\n      + '\\x89PNG\\r\\n'\n" in shown
