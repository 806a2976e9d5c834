"""A generation whose keys were normalised by other character tables is served with a warning, and built again."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.generations import publish
from support.shards import write_generation

from lookupdb.builder import existing
from lookupdb.cli.build import command
from lookupdb.dataset.spec import Gates
from lookupdb.manifest import FILE_NAME, Manifest
from lookupdb.shard import server
from lookupdb.store import StoreAddress, open_store
from lookupdb.store.dataset import write_announcement
from lookupdb.store.directory import DirectoryDataset


def build(folder: Path, normalize: list[str], *options: str) -> dict[str, Any]:
    resource = {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "things"},
        "spec": {"source": {"url": "f.csv"}, "key": {"columns": ["k"], "normalize": normalize}},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(resource))
    (folder / "f.csv").write_text("k,v\na,1\n")
    words = ["-f", str(folder / "m.yaml"), "--store", str(folder / "store"), "--progress", "none", "--json", *options]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("normalize", "outcome"), [(["lowercase"], "built"), (["strip"], "unchanged"), ([], "unchanged")]
)
def test_what_other_tables_normalised_is_not_unchanged(
    tmp_path: Path, normalize: list[str], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprint = build(tmp_path, normalize)["fingerprint"]
    assert build(tmp_path, normalize, "--unless-fingerprint", fingerprint)["outcome"] == "unchanged"

    def built_long_ago(dataset: DirectoryDataset) -> dict[str, Manifest]:
        return {name: replace(found, unicode="9.0.0") for name, found in read_whole(dataset).items()}

    read_whole = DirectoryDataset.whole_manifests
    monkeypatch.setattr(DirectoryDataset, "whole_manifests", built_long_ago)
    assert build(tmp_path, normalize, "--unless-fingerprint", fingerprint)["outcome"] == outcome


def test_gates_compare_with_the_announced_generation(tmp_path: Path) -> None:
    dataset = open_store(str(tmp_path / "store")).dataset_at(StoreAddress("local", "team", "people", "local"))
    for number in (1, 2):
        (tmp_path / f"g{number}").mkdir()
        publish(dataset, f"g{number}", {f"k{key}": b"1" for key in range(number)}, tmp_path / f"g{number}")
    for announced, active in ((None, "g2"), ("g1", "g1")):
        if announced is not None:
            write_announcement(dataset, "local", announced, 1, "2026-11-20T02:04:00Z")
        found = existing.find_active(dataset, None, None, Gates())
        assert found is not None
        assert found.generation == active


@pytest.mark.parametrize(("normalize", "warnings"), [(["lowercase"], 1), (["strip"], 0)])
def test_a_shard_server_warns(
    tmp_path: Path, normalize: list[str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    generation = write_generation(tmp_path, {"a": b"1"}, normalize=normalize)
    manifest = Manifest.from_json((generation / FILE_NAME).read_bytes(), "m")
    with caplog.at_level(logging.WARNING):
        server._compare_tables(manifest)
        assert caplog.messages == []
        server._compare_tables(replace(manifest, unicode="9.0.0"))
    assert len(caplog.messages) == warnings
