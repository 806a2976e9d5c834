"""A folder with a manifest and its source, and `lookupdb build` run in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from lookupdb import store
from lookupdb.cli.build import command
from lookupdb.errors import (
    LookupdbError,
)
from lookupdb.store import StoreAddress, StoredDataset


class Project:
    """A folder with a source and a manifest, as a user has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "people.yaml"
        self.store = folder / "store"
        (folder / "scratch").mkdir()
        self.rows(1000)
        self.describe()

    def rows(self, count: int, extra: str = "") -> None:
        lines = [f"p{number},name {number},team {number % 7}\n" for number in range(count)]
        (self.folder / "people.csv").write_text("id,name,team\n" + "".join(lines) + extra)

    def describe(self, **spec: Any) -> None:
        full = {"source": {"url": "people.csv"}, "key": {"columns": ["id"]}, "shards": 2} | spec
        resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "people"}}
        self.manifest.write_text(yaml.safe_dump({**resource, "spec": full}))

    def build(self, *arguments: str, **environment: str) -> Any:
        fixed = [
            "-f",
            str(self.manifest),
            "--store",
            str(self.store),
            "--scratch",
            str(self.folder / "scratch"),
            "--json",
        ]
        runner = CliRunner()
        return runner.invoke(
            command, [*fixed, "--progress", "none", *arguments], env=environment, standalone_mode=False
        )

    def built(self, *arguments: str) -> dict[str, Any]:
        result = self.build(*arguments)
        assert result.exception is None, result.exception
        (line,) = result.stdout.splitlines()
        parsed: dict[str, Any] = json.loads(line)
        return parsed

    def refused(self, *arguments: str) -> LookupdbError:
        error = self.build(*arguments).exception
        assert isinstance(error, LookupdbError), error
        assert list((self.folder / "scratch").iterdir()) == []
        return error

    def damage(self, generation: str) -> None:
        """Its manifest cannot be read any more."""
        path = Path(self.dataset.url) / generation / "manifest.json"
        path.chmod(0o644)
        path.write_bytes(b"{")

    @property
    def dataset(self) -> StoredDataset:
        return store.open_store(str(self.store)).dataset_at(StoreAddress("local", "default", "people", "local"))
