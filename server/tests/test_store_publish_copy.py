"""A generation that is published as a copy of another's files: whole or not at all, by the store itself where it can,
and by one of several builders, whatever the network does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.buckets import create_bucket, new_bucket, read_object, s3_server, use_server
from support.faults import Fault, Request, telling_numbers
from support.gateways import FakeGateway, Refusal, fake_gateway, gateway_bucket, use_token
from support.generations import publish
from support.sites import Site, attempt, site, site_servers
from support.waiting import until

from lookupdb.builder.build import build_generation
from lookupdb.builder.options import BuildOptions, EarlierDataset, SilentProgress
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import CorruptFile, LookupdbError, StoreError, StoreUnreachable
from lookupdb.manifest import FILE_NAME
from lookupdb.store import StoreAddress, StoredDataset, open_store
from lookupdb.store import bucket as bucket_objects
from lookupdb.store import gateway as gateway_client
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import CLAIM, BucketDataset, BucketStore

pytestmark = pytest.mark.long

__all__ = ["site", "site_servers"]

OLD, NEW = (StoreAddress("local", "default", "things", uid) for uid in ("old", "new"))
CONTENT = {f"key-{number}": b"%d" % number for number in range(100)}


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        yield gateway


def copy(source: StoredDataset, target: StoredDataset, scratch: Path) -> list[int]:
    """Publish g1 of ``source`` as g5 of ``target``. Return the reported bytes of each file."""
    copied: list[int] = []
    manifest = replace(source.manifest("g1"), uid="new", generation="g5")
    with target.claim("g5", scratch) as claim:
        claim.publish_copy(source, "g1", manifest, copied.append)
    return copied


def check(source: StoredDataset, target: StoredDataset, scratch: Path) -> None:
    original, manifest = source.manifest("g1"), target.manifest("g5")
    assert target.generations() == ("g5",)
    assert not target.unfinished_generations()
    assert [replace(shard, file="") for shard in manifest.shards] == [
        replace(shard, file="") for shard in original.shards
    ]
    for shard in manifest.shards:
        with target.verified_shard("g5", shard, scratch):
            pass


@pytest.mark.parametrize("to", ["directory", "s3", "gateway"])
@pytest.mark.parametrize("of", ["directory", "s3", "gateway", "same"])
def test_files_of_any_store_come_whole_into_any(
    of: str, to: str, tmp_path: Path, s3_url: str, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dataset(kind: str, address: StoreAddress) -> StoredDataset:
        if kind == "directory":
            return open_store(str(tmp_path / "store")).dataset_at(address)
        return BucketDataset(new_bucket(s3_url, monkeypatch) if kind == "s3" else gateway_bucket(gateway.url), address)

    source = dataset(to if of == "same" else of, OLD)
    target = dataset(to, NEW)
    if of == "same" and isinstance(source, BucketDataset):
        target = BucketDataset(source.bucket, NEW)
    (tmp_path / "a").mkdir()
    manifest = publish(source, "g1", CONTENT, tmp_path / "a")
    (tmp_path / "b").mkdir()
    assert copy(source, target, tmp_path / "b") == [shard.bytes for shard in manifest.shards]
    check(source, target, tmp_path)
    source.remove("g1")
    assert target.generations() == ("g5",)


def test_a_bucket_copies_by_itself_and_no_file_passes_through_here(site: Site) -> None:
    source, target = (BucketDataset(site.front(), address) for address in (OLD, NEW))
    publish(source, "g1", CONTENT, site.scratch())
    site.proxy.reset()
    copy(source, target, site.scratch())
    files = [request for request in site.proxy.requests if request.path.partition("?")[0].endswith(".lmdb")]
    assert [(request.method, request.body) for request in files] == [("PUT", b"")] * 3
    check(source, target, site.scratch())


def test_a_file_that_is_too_large_for_that_passes_through_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = (BucketDataset(site.front(), address) for address in (OLD, NEW))
    manifest = publish(source, "g1", CONTENT, site.scratch())
    largest = max(shard.bytes for shard in manifest.shards)
    monkeypatch.setattr(bucket_objects, "MAX_COPY_BYTES", largest - 1)
    site.proxy.reset()
    copy(source, target, site.scratch())
    got = [request for request in site.proxy.requests if request.method == "GET" and ".lmdb" in request.path]
    assert len(got) == sum(shard.bytes == largest for shard in manifest.shards)
    check(source, target, site.scratch())


def test_a_gateway_of_before_that_copies_nothing_is_asked_for_the_bytes(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.copies = False
    source, target = (BucketDataset(gateway_bucket(gateway.url), address) for address in (OLD, NEW))
    (tmp_path / "a").mkdir()
    publish(source, "g1", CONTENT, tmp_path / "a")
    copy(source, target, tmp_path)
    check(source, target, tmp_path)


def test_a_copy_whose_answer_is_lost_is_found_and_a_second_one_is_not_refused(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway copies nothing onto what is there: the copy of the first attempt."""
    source, target = (BucketDataset(gateway_bucket(gateway.url), address) for address in (OLD, NEW))
    (tmp_path / "a").mkdir()
    publish(source, "g1", CONTENT, tmp_path / "a")
    real, paths = target.bucket.objects.copy, []

    def lose_answer(path: str, to: str, size: int) -> bool:
        paths.append(path)
        assert real(path, to, size)
        return real(path, to, size)  # as the client does when it heard nothing

    monkeypatch.setattr(target.bucket.objects, "copy", lose_answer)
    copy(source, target, tmp_path)
    assert len(paths) == 3, "each is asked for once: 412 is no reason to wait"
    check(source, target, tmp_path)


def test_what_a_store_does_not_copy_in_time_passes_through_here(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy may take effect later, and changes nothing then. The store is not asked to copy the other files."""
    use_server(s3_url, monkeypatch)
    bucket = Bucket(create_bucket(s3_url), patience=0, heartbeat=3600)
    source, target = (BucketDataset(bucket, address) for address in (OLD, NEW))
    (tmp_path / "a").mkdir()
    publish(source, "g1", CONTENT, tmp_path / "a")
    real, asked = bucket.objects.copy, []

    def time_out(path: str, to: str, size: int) -> bool:
        asked.append((path, to, size))
        raise StoreUnreachable("did not answer in time")

    monkeypatch.setattr(bucket.objects, "copy", time_out)
    assert len(copy(source, target, tmp_path)) == 3
    check(source, target, tmp_path)
    assert len(asked) == 1
    before = set(bucket.files(NEW.path))
    assert real(*asked[0])
    assert set(bucket.files(NEW.path)) == before
    check(source, target, tmp_path)


def test_a_gateway_whose_store_does_not_copy_in_time_is_asked_once(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Each look at it is a minute later."""

        now = 0.0
        sleep = staticmethod(time.sleep)

        def monotonic(self) -> float:
            self.now += gateway_client.RETRY_SECONDS
            return self.now

    bucket = Bucket(gateway.url, patience=0, heartbeat=3600)
    source, target = (BucketDataset(bucket, address) for address in (OLD, NEW))
    (tmp_path / "a").mkdir()
    publish(source, "g1", CONTENT, tmp_path / "a")
    real, asked = bucket.objects.copy, []

    def time_out(path: str, to: str, size: int) -> bool:
        asked.append(path)
        gateway.refusals += [Refusal(503, "unreachable")] * 2
        with monkeypatch.context() as patch:
            patch.setattr(gateway_client, "time", Clock())
            try:
                return real(path, to, size)
            finally:
                assert len(gateway.refusals) == 1, "it is not asked again"
                gateway.refusals.clear()

    monkeypatch.setattr(bucket.objects, "copy", time_out)
    copy(source, target, tmp_path)
    assert len(asked) == 1
    check(source, target, tmp_path)


@pytest.mark.parametrize("is_there", [False, True])
def test_where_nobody_knows_whether_it_was_copied_nothing_is_put(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """The store does not say, or has something of another size there."""
    use_server(s3_url, monkeypatch)
    bucket = Bucket(create_bucket(s3_url), patience=0, heartbeat=3600)
    source, target = (BucketDataset(bucket, address) for address in (OLD, NEW))
    (tmp_path / "a").mkdir()
    publish(source, "g1", CONTENT, tmp_path / "a")

    def fail(*_arguments: object) -> bool:
        raise StoreUnreachable("is away")

    monkeypatch.setattr(bucket.objects, "copy", fail)
    monkeypatch.setattr(bucket.objects, "size", (lambda _path: 1) if is_there else fail)
    with pytest.raises(StoreUnreachable, match="is away"):
        copy(source, target, tmp_path)
    assert not target.published_generations()


@pytest.mark.parametrize("damage", ["missing", "changed", "shorter"])
def test_a_damaged_file_is_not_published_where_its_bytes_are_read(damage: str, tmp_path: Path) -> None:
    source, target = (open_store(str(tmp_path / "store")).dataset_at(address) for address in (OLD, NEW))
    manifest = publish(source, "g1", CONTENT, tmp_path)
    path = tmp_path / "store" / OLD.path / "g1" / manifest.shards[1].file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-1] if damage == "shorter" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptFile):
        copy(source, target, tmp_path)
    assert not target.published_generations()
    assert not target.unfinished_generations()


def test_a_file_of_another_length_is_not_published_though_the_store_copies_it(site: Site) -> None:
    source, target = (BucketDataset(site.direct, address) for address in (OLD, NEW))
    manifest = publish(source, "g1", CONTENT, site.scratch())
    site.direct.objects.put(f"{OLD.path}/g1/{manifest.shards[1].file}", b"shorter")
    with pytest.raises(StoreError):
        copy(source, target, site.scratch())
    assert not target.published_generations()
    assert not site.direct.files(NEW.path)


def adopt(site: Site, spec: DatasetSpec, bucket: Bucket) -> str:
    """Adopt g1 of the dataset ``old`` as g1 of ``spec``, whose uid is ``new``; the outcome."""
    options = BuildOptions(site.scratch(), generation="g1", adopt=EarlierDataset("old"))
    store = BucketStore(bucket.url, "local", bucket)
    return build_generation(replace(spec, uid="new"), store, options, SilentProgress()).outcome


Objects = dict[str, bytes]


def left_by_old(site: Site) -> tuple[dict[bytes, bytes], Objects]:
    """The records and objects of the dataset ``old``, which is built once and restored for each test."""
    content, spec = site.source("first"), replace(site.next(), uid="old")
    site.build(spec, site.direct)
    path = f"{site.dataset(spec).address.path}/g1"
    objects = {name: read_object(site.direct, f"{path}/{name}") for name in site.direct.files(path)}
    manifest = objects[FILE_NAME].decode()
    assert manifest.count(f'"{spec.name}"') == 1
    return content, {**objects, FILE_NAME: manifest.replace(f'"{spec.name}"', '"NAME"').encode()}


def leave(site: Site, spec: DatasetSpec, objects: Objects) -> None:
    """Put there what the dataset ``old`` of this name would have left."""
    path = f"{site.dataset(replace(spec, uid='old')).address.path}/g1"
    for name, body in objects.items():
        site.direct.objects.put(f"{path}/{name}", body.replace(b'"NAME"', f'"{spec.name}"'.encode()))


class TestEveryRequestOfAnAdoption:
    @pytest.mark.parametrize("fault", Fault)
    def test_may_go_wrong_and_running_it_again_ends_whole(self, site: Site, fault: Fault) -> None:
        front = site.front()
        content, objects = left_by_old(site)
        spec = site.next()
        leave(site, spec, objects)
        site.proxy.reset()
        adopt(site, spec, front)
        requests = list(site.proxy.requests)
        assert len(requests) >= 8, "claim, two shards, decision, manifest, release, and listings"
        for number in telling_numbers(requests, fault):
            spec = site.next()
            leave(site, spec, objects)
            new = replace(spec, uid="new")
            site.proxy.fail(fault, lambda at, _request, number=number: at == number)  # type: ignore[misc]
            if attempt(lambda spec=spec: adopt(site, spec, front)):  # type: ignore[misc]
                site.check(new, "g1", content)
            site.proxy.calm()
            assert adopt(site, spec, front) == "adopted"
            site.proxy.reset()  # what was late has come
            site.check(new, "g1", content)
            site.check(replace(spec, uid="old"), "g1", content)

    @pytest.mark.parametrize("is_done", [False, True], ids=["before its effect", "after its effect"])
    def test_may_be_where_one_stands_still_while_another_takes_over(self, site: Site, is_done: bool) -> None:
        front = site.front()
        content, objects = left_by_old(site)
        spec = site.next()
        leave(site, spec, objects)
        site.proxy.reset()
        adopt(site, spec, front)
        for number in range(len(site.proxy.requests)):
            spec = site.next()
            leave(site, spec, objects)
            new = replace(spec, uid="new")
            with _standing_still(site, spec, number, is_done=is_done):
                assert adopt(site, spec, site.direct) == "adopted"
                site.check(new, "g1", content)
            site.check(new, "g1", content)
            path = f"{site.dataset(new).address.path}/g1"
            shards = {shard.file for shard in site.dataset(new).manifest("g1").shards}
            assert set(site.direct.files(path)) - {CLAIM} == {FILE_NAME, *shards}, "nothing else is left"


@contextlib.contextmanager
def _standing_still(site: Site, spec: DatasetSpec, number: int, *, is_done: bool) -> Iterator[None]:
    """While an adoption stands still at a request, before or after its effect."""
    reached, go = threading.Event(), threading.Event()

    def pause(at: int, _request: Request) -> None:
        if at == number:
            reached.set()
            assert go.wait(60)

    def run() -> None:
        with contextlib.suppress(LookupdbError):
            adopt(site, spec, front)

    front = site.front()
    site.proxy.reset()
    site.proxy.set_hooks(before=None if is_done else pause, after=pause if is_done else None)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: reached.is_set() or not thread.is_alive(), "the first stands still")
        assert reached.is_set()
        yield
    finally:
        go.set()
        thread.join(60)
    assert not thread.is_alive()
