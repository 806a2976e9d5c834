"""A store with datasets, a list of live datasets, a clock that can be set ahead, and a sweep."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lookupdb import store
from lookupdb.cli import stores
from lookupdb.store import Store, StoreAddress, StoredDataset
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketStore
from support.generations import publish

HOUR = 3600.0

in_each_store = pytest.mark.parametrize("place", ["directory", "s3"], indirect=True)
"""Use it for tests of what differs between kinds of stores."""


class Place:
    """A store with datasets, a list of live datasets, and a clock."""

    def __init__(self, folder: Path, url: str, bucket: Bucket | None) -> None:
        self.folder = folder
        self.url = url
        self.bucket = bucket
        self.list = folder / "living.json"
        self.number = 0

    def open(self, cluster: str = "c1") -> Store:
        return BucketStore(self.url, cluster, self.bucket) if self.bucket else store.open_store(self.url, cluster)

    def dataset(self, name: str, uid: str = "3f2b9c1e", cluster: str = "c1") -> StoredDataset:
        return self.open(cluster).dataset_at(StoreAddress(cluster, "team", name, uid))

    def inbox(self, name: str) -> StoredDataset:
        return self.open().dataset_at(StoreAddress("c1", "team", name, "3f2b9c1e", is_inbox=True))

    def publish(self, dataset: StoredDataset, *generations: str) -> StoredDataset:
        for generation in generations:
            publish(dataset, generation, {"a": b"1"}, self.scratch(), shards=1)
        return dataset

    def scratch(self) -> Path:
        self.number += 1
        path = self.folder / f"scratch-{self.number}"
        path.mkdir()
        return path

    def put(self, path: str, content: bytes = b"{}") -> None:
        if self.bucket:
            self.bucket.objects.put(path, content)
        else:
            (Path(self.url) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(self.url) / path).write_bytes(content)

    def damage(self, dataset: StoredDataset, generation: str) -> None:
        """Its only shard is gone."""
        (shard,) = dataset.manifest(generation).shards
        path = f"{dataset.address.path}/{generation}/{shard.file}"
        if self.bucket:
            self.bucket.objects.delete([path])
        else:
            (Path(self.url) / path).unlink()

    def living(
        self,
        *datasets: StoredDataset,
        keep: int = 3,
        protect: tuple[str, ...] = (),
        retain: bool = False,
        adopt: str | None = None,
        **changes: Any,
    ) -> None:
        entries = [
            {
                "namespace": one.address.namespace,
                "name": one.address.name,
                "uid": f"{one.address.uid}-77aa-4bcd",
                "keep": keep,
                "protect": list(protect),
                "retain": retain,
                **({} if adopt is None else {"adopt": adopt}),
            }
            for one in datasets
        ]
        now = datetime.datetime.now(datetime.UTC).isoformat()
        members = {"formatVersion": 1, "cluster": "c1", "writtenAt": now, "datasets": entries, **changes}
        self.list.write_text(json.dumps(members))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import time

        self.ahead = 0.0
        real = time.time

        class Moved:
            @staticmethod
            def time() -> float:
                return real() + self.ahead

        monkeypatch.setattr(stores, "time", Moved)


def run(place: Place, *more: str, cluster: str = "c1") -> Result:
    words = ["--store", place.url, "--cluster-id", cluster, "--living", str(place.list), "--grace", "24h"]
    words += ["--max-age", "1000h", *more]  # the tests' clock is days ahead
    return CliRunner().invoke(stores.sweep, words, standalone_mode=False)


def swept(place: Place, *more: str) -> tuple[list[str], dict[str, Any]]:
    """The sentences and the sums."""
    result = run(place, "--json", *more)
    assert result.exception is None, result.exception
    *lines, sums = map(json.loads, result.stdout.splitlines())
    return [line["message"] for line in lines], sums
