"""A bucket that is reached directly and through a proxy that causes faults, and a source to build there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lookupdb.builder import build as pipeline
from lookupdb.builder.options import BuildOptions, open_progress
from lookupdb.dataset.spec import DatasetSpec, read_manifest
from lookupdb.errors import LookupdbError
from lookupdb.manifest import FILE_NAME
from lookupdb.shardfile import ShardReader, unframe
from lookupdb.store import StoreAddress
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset, BucketStore
from support.buckets import create_bucket, read_object, s3_server, use_server
from support.faults import Proxy, faulty_proxy

LEASE = 0.01
"""Even in such a short lease, a watcher of the claim sends one or two requests."""


@pytest.fixture(scope="module")
def site_servers() -> Iterator[tuple[str, str, Proxy]]:
    """The URLs of an S3 server and of the proxy in front of it."""
    with s3_server() as server, faulty_proxy(server) as (front, proxy):
        yield server, front, proxy


class Site:
    """A bucket that is reached directly and through the proxy, and a source to build from."""

    def __init__(self, folder: Path, direct: Bucket, front: Callable[..., Bucket], proxy: Proxy) -> None:
        self.folder = folder
        self.direct = direct
        self.front = front
        self.proxy = proxy
        self.counter = 0
        self._read: dict[str, dict[bytes, bytes]] = {}
        self.spec = self._spec()

    def _spec(self) -> DatasetSpec:
        manifest = self.folder / "people.yaml"
        spec = {
            "source": {"url": "people.csv"},
            "key": {"columns": ["id"]},
            "value": {"column": "text", "format": "raw", "compression": "none"},
            "shards": 2,
        }
        head = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "people"}}
        manifest.write_text(yaml.safe_dump({**head, "spec": spec}))
        self.source("first")
        return read_manifest(manifest)

    def source(self, version: str) -> dict[bytes, bytes]:
        """Another content, as a lookup will answer it."""
        content = {b"%d" % number: b"%d of %s" % (number, version.encode()) for number in range(20)}
        lines = [f"{key.decode()},{value.decode()}\n" for key, value in content.items()]
        (self.folder / "people.csv").write_text("id,text\n" + "".join(lines))
        return content

    def next(self) -> DatasetSpec:
        """Return a new dataset, which has nothing in the store."""
        self.counter += 1
        self.proxy.reset()
        return replace(self.spec, name=f"people-{self.counter}")

    def build(self, spec: DatasetSpec, bucket: Bucket, generation: str | None = "g1") -> str:
        """The outcome. Raises LookupdbError."""
        with open_progress("none") as progress:
            options = BuildOptions(scratch=self.scratch(), threads=1, generation=generation)
            return pipeline.build_generation(spec, BucketStore(bucket.url, "local", bucket), options, progress).outcome

    def scratch(self) -> Path:
        path = self.folder / f"scratch-{time.monotonic_ns()}"
        path.mkdir()
        return path

    def dataset(self, spec: DatasetSpec, bucket: Bucket | None = None) -> BucketDataset:
        return BucketDataset(bucket or self.direct, StoreAddress("local", spec.namespace, spec.name, spec.uid))

    def _records(self, path: str, entry: dict[str, Any]) -> dict[bytes, bytes]:
        """Read the records of the shard file at ``path``, listed as ``entry``. Each content is read
        once, because its ETag is its MD5.
        """
        known = self._read.get(entry["e_tag"])
        if known is None:
            file = self.scratch() / "shard.lmdb"
            file.write_bytes(read_object(self.direct, path))
            with ShardReader(file) as shard:
                known = self._read[entry["e_tag"]] = {key: unframe(value) for key, value in shard.items()}
        return known

    def _look(self, dataset: BucketDataset) -> tuple[tuple[str, ...], dict[str, dict[str, dict[str, Any]]]]:
        """The generations, and all objects. A request that is late may have its effect between the two lists, so they
        are made once more when they differ."""
        for _ in range(2):
            whole, found = dataset.generations(), self.direct.entries(dataset.address.path)
            if {name for name, files in found.items() if FILE_NAME in files} == set(whole):
                break
        return whole, found

    def check(self, spec: DatasetSpec, generation: str, content: dict[bytes, bytes]) -> None:
        """Check that ``generation`` is whole and right, and that nothing of the dataset is incomplete."""
        dataset = self.dataset(spec)
        whole, found = self._look(dataset)
        assert generation in whole
        assert {name for name, files in found.items() if FILE_NAME in files} == set(whole)
        shards = dataset.manifest(generation).shards
        assert len(shards) == 2
        folder = f"{dataset.address.path}/{generation}"
        records = (self._records(f"{folder}/{shard.file}", found[generation][shard.file]) for shard in shards)
        assert {key: value for part in records for key, value in part.items()} == content


@pytest.fixture
def site(site_servers: tuple[str, str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    server, front, proxy = site_servers
    proxy.reset()
    url = create_bucket(server)

    def bucket(at: str, **choice: Any) -> Bucket:
        use_server(at, monkeypatch)
        return Bucket(url, lease=LEASE, **{"heartbeat": 3600.0, "patience": 0.0, "retries": 0, **choice})

    return Site(tmp_path, bucket(server), lambda **choice: bucket(front, **choice), proxy)


def attempt(action: Callable[[], object]) -> bool:
    """Return whether ``action`` reported success."""
    try:
        action()
    except LookupdbError:
        return False
    return True
