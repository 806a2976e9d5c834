"""A gateway that sends readers of shard files to the store: they show it no token, and come back when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gateways import FakeGateway, PresignedStore, fake_gateway, gateway_bucket, presigned_store, use_token

from lookupdb.errors import StoreUnreachable
from lookupdb.store.bucket import Bucket
from lookupdb.store.objects import STREAM_HEADER

FOLDER = "local/default/things-local/g1"
SHARD, MANIFEST = f"{FOLDER}/shard.lmdb", f"{FOLDER}/manifest.json"
CONTENT = bytes(range(256)) * 100


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    use_token(tmp_path, monkeypatch)
    with fake_gateway() as gateway:
        gateway.put(SHARD, CONTENT)
        gateway.put(MANIFEST, b"{}")
        yield gateway


@pytest.fixture
def target(gateway: FakeGateway) -> Iterator[PresignedStore]:
    with presigned_store() as target:
        target.bodies[SHARD] = CONTENT
        gateway.redirect = target.url
        yield target


def read(bucket: Bucket, start: int = 0) -> bytes:
    chunks = bucket.objects.stream(SHARD, start)
    assert chunks
    return b"".join(chunks)


def test_the_bytes_come_from_there_and_the_token_does_not_go_there(
    gateway: FakeGateway, target: PresignedStore
) -> None:
    bucket = gateway_bucket(gateway.url)
    assert read(bucket) == CONTENT
    assert read(bucket, 1000) == CONTENT[1000:]
    assert [headers.get("Range") for headers in target.headers] == [None, "bytes=1000-"]
    names = {name.lower() for headers in target.headers for name in headers}
    assert "authorization" not in names
    assert len(gateway.requests) == 2
    assert bucket.read(MANIFEST).body == b"{}"
    assert len(target.headers) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 500, 302])
def test_what_cannot_be_read_there_is_asked_of_the_gateway_itself(
    gateway: FakeGateway, target: PresignedStore, status: int
) -> None:
    target.status = status
    bucket = gateway_bucket(gateway.url, retries=1)
    assert read(bucket) == CONTENT
    assert read(bucket, 1000) == CONTENT[1000:]
    assert [STREAM_HEADER in headers for _method, _path, headers in gateway.requests] == [False, True, True]
    assert len(target.headers) == 1, "a pod that cannot reach the store does not try for each file"


@pytest.mark.parametrize("status", [400, 403, 404, 500, 302])
def test_one_that_fails_again_and_again_is_unreachable(
    gateway: FakeGateway, target: PresignedStore, status: int
) -> None:
    target.status = status
    gateway.always_redirects = True
    bucket = gateway_bucket(gateway.url, retries=1)
    with pytest.raises(StoreUnreachable, match=rf"it redirects to \S+, which answers with status {status}") as caught:
        read(bucket)
    assert (len(gateway.requests), len(target.headers)) == (2, 2)
    assert "Signature" not in str(caught.value) + repr(caught.value.__cause__)
    gateway.redirect = None
    assert read(bucket) == CONTENT


@pytest.mark.parametrize("place", ["http://127.0.0.1:1", "ftp://127.0.0.1", "http://[", "", "http://%zz:x"])
def test_one_that_leads_nowhere_is_no_answer(gateway: FakeGateway, place: str) -> None:
    gateway.redirect = place or " "
    with pytest.raises(StoreUnreachable, match="it redirects to") as caught:
        read(gateway_bucket(gateway.url, retries=0))
    assert "secret" not in str(caught.value)


def test_the_whole_object_is_not_taken_for_its_end(gateway: FakeGateway, target: PresignedStore) -> None:
    target.ignores_ranges = True
    with pytest.raises(StoreUnreachable):
        read(gateway_bucket(gateway.url, retries=0), 1000)
