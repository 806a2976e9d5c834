"""`lookupdb prune`: generations that nothing needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.generations import publish

from lookupdb import store
from lookupdb.cli.stores import prune as command
from lookupdb.errors import UsageError
from lookupdb.store import StoreAddress, StoredDataset
from lookupdb.up.run_state import object_file


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    (tmp_path / "scratch").mkdir()
    opened = store.open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "default", "things", "local"))
    for number in range(1, 7):
        publish(opened, f"g{number}", {"a": b"1"}, tmp_path / "scratch")
    return opened


def prune(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["things", "--json", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_newest_and_the_protected_stay(dataset: StoredDataset, tmp_path: Path) -> None:
    words = ("--store", str(tmp_path / "store"), "--keep", "2", "--protect", "g2")
    assert prune(*words, "--dry-run") == {"dataset": "things", "dryRun": True, "removed": ["g1", "g3", "g4"]}
    assert len(dataset.published_generations()) == 6
    assert prune(*words)["removed"] == ["g1", "g3", "g4"]
    assert prune(*words)["removed"] == []
    assert set(dataset.published_generations()) == {"g2", "g5", "g6"}
    with pytest.raises(UsageError, match="how many generations of things to keep"):
        prune("--store", str(tmp_path / "store"))


def test_an_up_knows_how_many_and_which_are_needed(dataset: StoredDataset, tmp_path: Path) -> None:
    file = object_file(tmp_path, "default", "things")
    file.parent.mkdir(parents=True)
    spec = {"source": {"url": "a.csv"}, "key": {"columns": ["a"]}, "keepGenerations": 1}
    resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "spec": spec}
    about = {"namespace": "default", "name": "things", "uid": "local", "resourceVersion": "7"}
    status: dict[str, Any] = {"generation": "g4", "refused": {"generation": "g2"}, "builds": [{"generation": "g1"}]}
    status |= {"candidate": {"generation": "g3"}, "generations": [{"generation": "g5"}]}
    file.write_text(json.dumps({**resource, "metadata": about, "status": status}))
    assert prune("--data", str(tmp_path))["removed"] == ["g1"]
