"""A bucket behind a network that loses, repeats, delays and forges answers: at every request of a build, a fetch and a
sweep, one by one. Whatever it does, a reported success is real, and another run ends whole and right.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.buckets import read_object
from support.faults import Fault, Request, is_read, telling_numbers
from support.sites import Site, attempt, site, site_servers

from lookupdb.dataset.spec import DatasetSpec
from lookupdb.manifest import FILE_NAME
from lookupdb.shardfile import ShardReader, unframe
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import CLAIM
from lookupdb.store.generations import fetch_shard
from lookupdb.store.sweep import MARK_NOTE, LiveDataset, Sweep

pytestmark = pytest.mark.long

__all__ = ["site", "site_servers"]

GIB = 1 << 30


def count_requests(site: Site, action: Callable[[], object]) -> list[Request]:
    site.proxy.reset()
    action()
    return list(site.proxy.requests)


@pytest.mark.parametrize("fault", Fault)
class TestEveryRequest:
    def test_of_a_build(self, site: Site, fault: Fault) -> None:
        content, front = site.source("first"), site.front()
        spec = site.next()
        requests = count_requests(site, lambda: site.build(spec, front))
        assert [is_read(request) for request in requests].count(False) >= 6, (
            "claim, shards, decision, manifest, release"
        )
        for number in telling_numbers(requests, fault):
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
            fetch_shard(dataset, site.folder / folder, "g1", 1, rate=GIB, patience=0)

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
            with ShardReader(site.folder / folder / entry.file) as shard:
                assert {key: unframe(value) for key, value in shard.items()}.items() < content.items()


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.LOSE, Fault.TWICE, Fault.DELAY, Fault.LATE])
@pytest.mark.parametrize("scene", ["living", "dead", "remains"])
class TestEveryRequestOfASweep:
    """Faults of requests that delete: a late or partial response is the same as a lost one."""

    def test_one_by_one(self, site: Site, fault: Fault, scene: str) -> None:
        content, front = site.source("first"), site.front()
        spec = site.next()
        objects = arrange(site, spec, scene)
        requests = count_requests(site, lambda: sweep(site, spec, scene, front))
        assert left(site, spec) == EXPECTED[scene]
        for number in telling_numbers(requests, fault):
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
"""The generations that a sweep keeps."""


def arrange(site: Site, spec: DatasetSpec, scene: str) -> dict[str, bytes]:
    """Put what is to be swept into the bucket: the objects."""
    dataset = site.dataset(spec)
    path = dataset.address.path
    site.build(spec, site.direct, "g2")
    if scene == "living":
        site.build(spec, site.direct, "g1")
        site.direct.objects.put(f"{path}/{MARK_NOTE}", MARKED)
    elif scene == "dead":
        site.direct.objects.put(f"{path}/{MARK_NOTE}", MARKED)
    else:
        for name in (CLAIM, "shard-00000-of-00002-3f2b9c1e77aa.lmdb"):
            site.direct.objects.put(f"{path}/g1/{name}", b"{}")
    return {f"{path}/{name}": read_object(site.direct, f"{path}/{name}") for name in site.direct.files(path)}


MARKED = b'{"formatVersion":1,"notLivingSince":"2020-01-01T00:00:00Z"}'


def restore(site: Site, objects: dict[str, bytes]) -> None:
    for path, content in objects.items():
        site.direct.objects.put(path, content)


def sweep(site: Site, spec: DatasetSpec, scene: str, bucket: Bucket) -> None:
    dataset = site.dataset(spec, bucket)
    living = {} if scene == "dead" else {dataset.address: LiveDataset(dataset.address, 1, frozenset({"g2"}))}
    for _ in Sweep(living, grace=10, now=time.time() + 60, dry=False).run(iter([dataset])):
        pass


def left(site: Site, spec: DatasetSpec) -> tuple[str, ...]:
    """The names directly below the dataset."""
    return tuple(sorted(site.direct.entries(site.dataset(spec).address.path)))
