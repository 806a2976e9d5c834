"""A bucket behind a network that loses, repeats, delays and forges answers: at every request of a build, a fetch and a
sweep, one by one. Whatever it does, what says that it succeeded did, and running it again ends whole and right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
import yaml
from support.buckets import create_bucket, s3_server, use_server
from support.faults import Fault, Proxy, Request, faulty_proxy

from lookupdb.build import run
from lookupdb.build.display import shown
from lookupdb.errors import LookupdbError
from lookupdb.manifest import FILE_NAME
from lookupdb.shardfile import Shard, unframe
from lookupdb.spec import DatasetSpec, read_manifest
from lookupdb.store import Address, Store
from lookupdb.store.bucket import Bucket
from lookupdb.store.fetching import Fetch
from lookupdb.store.generation import in_store
from lookupdb.store.lease import CLAIM
from lookupdb.store.living import Living
from lookupdb.store.objects import ObjectDataset
from lookupdb.store.sweeping import MARK, Sweep

GIB = 1 << 30
LEASE = 0.05
READS = (Fault.DROP, Fault.TRUNCATE)
"""What is different for a request that changes nothing."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str, Proxy]]:
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
        """A dataset of which there is nothing yet."""
        self.counter += 1
        self.proxy.reset()
        return replace(self.spec, name=f"people-{self.counter}")

    def build(self, spec: DatasetSpec, bucket: Bucket, generation: str | None = "g1") -> str:
        """The outcome. Raises LookupdbError."""
        with shown("none") as progress:
            options = run.Options(scratch=self.scratch(), threads=1, generation=generation)
            return run.build(spec, Store(bucket.url, "local", bucket), options, progress).outcome

    def scratch(self) -> Path:
        path = self.folder / f"scratch-{time.monotonic_ns()}"
        path.mkdir()
        return path

    def dataset(self, spec: DatasetSpec, bucket: Bucket | None = None) -> ObjectDataset:
        return ObjectDataset(bucket or self.direct, Address("local", spec.namespace, spec.name, spec.uid))

    def content(self, spec: DatasetSpec, generation: str) -> dict[bytes, bytes]:
        """Every record of ``generation``, from every shard."""
        with in_store(self.dataset(spec), generation).shards(self.scratch()) as shards:
            assert len(shards) == 2
            return {key: unframe(value) for shard in shards for key, value in shard.items()}

    def check(self, spec: DatasetSpec, generation: str, content: dict[bytes, bytes]) -> None:
        """``generation`` is whole and right, and nothing of the dataset is only half there."""
        dataset = self.dataset(spec)
        assert generation in dataset.generations()
        assert dataset.damaged() == ()
        assert self.content(spec, generation) == content


@pytest.fixture
def site(servers: tuple[str, str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    server, front, proxy = servers
    proxy.reset()
    url = create_bucket(server)

    def bucket(at: str, **choice: Any) -> Bucket:
        use_server(at, monkeypatch)
        return Bucket(url, lease=LEASE, **{"heartbeat": 3600.0, "patience": 0.0, "retries": 0, **choice})

    return Site(tmp_path, bucket(server), lambda **choice: bucket(front, **choice), proxy)


def count_requests(site: Site, action: Callable[[], object]) -> list[Request]:
    site.proxy.reset()
    action()
    return list(site.proxy.requests)


def is_read(request: Request) -> bool:
    return request.method in ("GET", "HEAD")


def numbers(requests: list[Request], fault: Fault) -> list[int]:
    """Of the requests at which ``fault`` makes a difference."""
    return [number for number, request in enumerate(requests) if not is_read(request) or fault in READS]


def attempt(action: Callable[[], object]) -> bool:
    """Whether it said that it succeeded."""
    try:
        action()
    except LookupdbError:
        return False
    return True


@pytest.mark.parametrize("fault", Fault)
class TestEveryRequest:
    def test_of_a_build(self, site: Site, fault: Fault) -> None:
        content, front = site.source("first"), site.front()
        spec = site.next()
        requests = count_requests(site, lambda: site.build(spec, front))
        assert [is_read(request) for request in requests].count(False) >= 6, (
            "claim, shards, decision, manifest, release"
        )
        for number in numbers(requests, fault):
            spec = site.next()
            site.proxy.fail(fault, at(number))
            if attempt(lambda spec=spec: site.build(spec, front)):  # type: ignore[misc]
                site.check(spec, "g1", content)
            site.proxy.calm()
            assert site.build(spec, front) in ("built", "adopted"), number
            site.proxy.reset()  # what was late has come
            site.check(spec, "g1", content)
        assert site.build(spec, front, None) == "built"
        site.check(spec, "g2", content)

    def test_of_a_fetch(self, site: Site, fault: Fault) -> None:
        content, front = site.source("first"), site.front()
        spec = site.next()
        site.build(spec, site.direct)
        dataset = site.dataset(spec, front)

        def fetch(folder: str) -> None:
            Fetch(dataset, site.folder / folder, rate=GIB, patience=0).run("g1", 1)

        requests = count_requests(site, lambda: fetch("counted"))
        assert len(requests) == 2
        for number in range(len(requests)):
            folder = f"{fault.name}-{number}"
            site.proxy.reset()
            site.proxy.fail(fault, at(number))
            is_done = attempt(lambda folder=folder: fetch(folder))  # type: ignore[misc]
            assert is_done == (site.folder / folder / FILE_NAME).exists()
            site.proxy.reset()
            fetch(folder)
            entry = dataset.manifest("g1").shards[1]
            assert sorted(path.name for path in (site.folder / folder).iterdir()) == [FILE_NAME, entry.file]
            with Shard(site.folder / folder / entry.file) as shard:
                assert {key: unframe(value) for key, value in shard.items()}.items() < content.items()

    @pytest.mark.parametrize("scene", ["living", "dead", "remains"])
    def test_of_a_sweep(self, site: Site, fault: Fault, scene: str) -> None:
        content, front = site.source("first"), site.front()
        spec = site.next()
        objects = arrange(site, spec, scene)
        requests = count_requests(site, lambda: sweep(site, spec, scene, front))
        assert left(site, spec) == EXPECTED[scene]
        for number in numbers(requests, fault):
            site.proxy.reset()
            restore(site, objects)
            site.proxy.fail(fault, at(number))
            sweep(site, spec, scene, front)
            if scene != "dead":
                site.check(spec, "g2", content)
            site.proxy.reset()  # what was late has come
            sweep(site, spec, scene, front)
            assert left(site, spec) == EXPECTED[scene], (number, requests[number])


def at(number: int) -> Callable[[int, Request], bool]:
    return lambda count, _request: count == number


EXPECTED: dict[str, tuple[str, ...]] = {"living": ("g2",), "dead": (), "remains": ("g2",)}
"""What a sweep leaves."""


def arrange(site: Site, spec: DatasetSpec, scene: str) -> dict[str, bytes]:
    """Put what is to be swept into the bucket: the objects."""
    dataset = site.dataset(spec)
    path = dataset.address.path
    site.build(spec, site.direct, "g2")
    if scene == "living":
        site.build(spec, site.direct, "g1")
        obstore.put(site.direct.store, f"{path}/{MARK}", MARKED)
    elif scene == "dead":
        obstore.put(site.direct.store, f"{path}/{MARK}", MARKED)
    else:
        for name in (CLAIM, "shard-00000-of-00002-3f2b9c1e77aa.lmdb"):
            obstore.put(site.direct.store, f"{path}/g1/{name}", b"{}")
    return {
        f"{path}/{name}": bytes(obstore.get(site.direct.store, f"{path}/{name}").bytes())
        for name in site.direct.files(path)
    }


MARKED = b'{"formatVersion":1,"notLivingSince":"2020-01-01T00:00:00Z"}'


def restore(site: Site, objects: dict[str, bytes]) -> None:
    for path, content in objects.items():
        obstore.put(site.direct.store, path, content)


def sweep(site: Site, spec: DatasetSpec, scene: str, bucket: Bucket) -> None:
    dataset = site.dataset(spec, bucket)
    living = {} if scene == "dead" else {dataset.address: Living(dataset.address, 1, frozenset({"g2"}))}
    for _ in Sweep(living, grace=10, now=time.time() + 60, dry=False).run(iter([dataset])):
        pass


def left(site: Site, spec: DatasetSpec) -> tuple[str, ...]:
    """The names directly below the dataset."""
    return tuple(sorted(site.direct.entries(site.dataset(spec).address.path)))
