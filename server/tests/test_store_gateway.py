"""A store behind a gateway: how its client treats answers that are good, bad, late, lost or forged."""

from __future__ import annotations

import io
import itertools
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
from support.faults import Fault, Proxy, Request, faulty_proxy
from support.gateways import TOKEN, FakeGateway, Refusal, fake_gateway, gateway_bucket, use_token

from lookupdb.errors import StoreDenied, StoreError, StoreUnreachable, UsageError
from lookupdb.store import StoreAddress, open_store
from lookupdb.store import gateway as gateway_client
from lookupdb.store.bucket import Bucket
from lookupdb.store.bucket_dataset import BucketDataset, BucketStore
from lookupdb.store.gateway import GatewayAnswer
from lookupdb.store.objects import (
    CA_FILE_VARIABLE,
    MAX_CONDITIONAL_BYTES,
    MAX_DELETED_PATHS,
    TOKEN_FILE_VARIABLE,
    TransientFailure,
)

FOLDER = "local/default/things-local"
PATH = f"{FOLDER}/g1/manifest.json"


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[tuple[FakeGateway, str, Proxy]]:
    with fake_gateway() as gateway, faulty_proxy(gateway.url) as (front, proxy):
        yield gateway, front, proxy


@pytest.fixture
def gateway(
    shared_gateway: tuple[FakeGateway, str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeGateway:
    use_token(tmp_path, monkeypatch)
    shared_gateway[0].reset()
    return shared_gateway[0]


@pytest.fixture
def network(gateway: FakeGateway, shared_gateway: tuple[FakeGateway, str, Proxy]) -> tuple[str, Proxy]:
    """The URL of a proxy before the gateway, and the proxy."""
    shared_gateway[2].reset()
    return shared_gateway[1:]


def first(_number: int, _request: Request) -> bool:
    return _number == 0


class TestConditionalPuts:
    def test_one_of_two_creates_it_and_the_other_learns_what_stands(self, gateway: FakeGateway) -> None:
        bucket = gateway_bucket(gateway.url)
        made = bucket.put_if(PATH, b"mine", "create")
        assert (made.body, made.error) == (b"mine", None)
        refused = bucket.put_if(PATH, b"theirs", "create")
        assert (refused.body, refused.version) == (b"mine", made.version)
        assert "is there" in str(refused.error)

    def test_a_version_is_replaced_once(self, gateway: FakeGateway) -> None:
        bucket = gateway_bucket(gateway.url)
        version = bucket.put_if(PATH, b"1", "create").version
        assert bucket.put_if(PATH, b"2", version).error is None
        assert bucket.put_if(PATH, b"3", version).body == b"2"
        assert bucket.read(PATH).body == b"2"

    @pytest.mark.parametrize("fault", [Fault.LOSE, Fault.ERROR, Fault.UNAVAILABLE, Fault.TWICE, Fault.TRUNCATE])
    @pytest.mark.parametrize("retries", [0, 2])
    def test_that_took_effect_though_their_answer_says_otherwise_are_seen(
        self, network: tuple[str, Proxy], fault: Fault, retries: int
    ) -> None:
        front, proxy = network
        proxy.fail(fault, first)
        assert gateway_bucket(front, retries=retries).put_if(PATH, b"mine", "create").body == b"mine"

    @pytest.mark.parametrize("fault", [Fault.DROP, Fault.REFUSE])
    def test_that_did_not_take_effect_are_repeated(self, network: tuple[str, Proxy], fault: Fault) -> None:
        front, proxy = network
        proxy.fail(fault, first)
        made = gateway_bucket(front, retries=2).put_if(PATH, b"mine", "create")
        assert (made.body, made.error) == (b"mine", None)


class TestFailures:
    @pytest.mark.parametrize("status", [500, 502, 503])
    def test_that_pass_are_waited_out(self, gateway: FakeGateway, status: int) -> None:
        gateway.put(PATH, b"1")
        gateway.refusals = [Refusal(503, "busy", headers={"Retry-After": "0"}), Refusal(status)]
        assert gateway_bucket(gateway.url, retries=2).read(PATH).body == b"1"
        assert len(gateway.requests) == 3

    @pytest.mark.parametrize("kind", ["busy", "store-unreachable"])
    def test_that_do_not_pass_are_told_word_for_word(self, gateway: FakeGateway, kind: str) -> None:
        gateway.refusals = [Refusal(503, kind, "cannot read s3://lookups: no\nroute")] * 2
        with pytest.raises(StoreUnreachable) as caught:
            gateway_bucket(gateway.url, retries=1).read(PATH)
        assert caught.value.message == f"cannot read {gateway.url}: cannot read s3://lookups: no route"
        assert len(gateway.requests) == 2

    @pytest.mark.parametrize(("status", "kind"), [(401, "unauthenticated"), (403, "forbidden"), (502, "store-denied")])
    def test_denials_are_final(self, gateway: FakeGateway, status: int, kind: str) -> None:
        gateway.refusals = [Refusal(status, kind, "not you")]
        with pytest.raises(StoreDenied, match=r"cannot list http://\S+: not you"):
            gateway_bucket(gateway.url).files(FOLDER)
        assert len(gateway.requests) == 1

    @pytest.mark.parametrize(("status", "kind"), [(400, "invalid"), (413, "too-large"), (502, "store-failed")])
    def test_others_are_errors_of_the_store(self, gateway: FakeGateway, status: int, kind: str) -> None:
        gateway.refusals = [Refusal(status, kind, "no bucket")]
        with pytest.raises(StoreError, match=r"cannot remove objects from \S+: no bucket") as caught:
            gateway_bucket(gateway.url).objects.delete([PATH])
        assert not isinstance(caught.value, StoreDenied | StoreUnreachable)

    def test_another_namespace_is_denied(self, gateway: FakeGateway) -> None:
        gateway.put("local/other/things-local/g1/manifest.json", b"secret")
        bucket = gateway_bucket(gateway.url)
        with pytest.raises(StoreDenied):
            bucket.read("local/other/things-local/g1/manifest.json")
        with pytest.raises(StoreDenied):
            bucket.files("local/other/things-local")
        assert BucketStore(bucket.url, "local", bucket).namespaces() == ()

    def test_a_gateway_that_is_not_there(self, gateway: FakeGateway) -> None:
        with pytest.raises(StoreUnreachable, match=r"cannot read http://127.0.0.1:1: 127.0.0.1:1 refuses connections"):
            gateway_bucket("http://127.0.0.1:1", retries=0).read(PATH)

    def test_a_server_without_tls_is_no_reason_to_wait(self, gateway: FakeGateway) -> None:
        url = gateway.url.replace("http:", "https:")
        with pytest.raises(StoreError, match="does not speak TLS") as caught:
            gateway_bucket(url).read(PATH)
        assert not isinstance(caught.value, StoreUnreachable)


def test_a_replica_that_is_gone_without_a_word_is_left_for_another(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a replica on a lost node: the cluster sends connections there until it notices the loss."""
    monkeypatch.setattr(gateway_client, "REQUEST_TIMEOUT", urllib3.Timeout(connect=1, read=0.2))
    gateway.put(PATH, b"1")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        ports = itertools.chain([gone.getsockname()[1]], itertools.repeat(urlsplit(gateway.url).port))
        connect = urllib3.util.connection.create_connection

        def connect_next(address: tuple[str, int], *rest: Any, **options: Any) -> socket.socket:
            return connect((address[0], next(ports)), *rest, **options)

        monkeypatch.setattr(urllib3.util.connection, "create_connection", connect_next)
        bucket = gateway_bucket(gateway.url, retries=3)
        assert bucket.read(PATH).body == b"1"
        assert bucket.put_if(PATH, b"2", bucket.read(PATH).version).body == b"2"
    assert gateway_client.CONNECT_SECONDS * 8 < gateway_client.RETRY_SECONDS, "there is time for each retry"


class TestAnotherServer:
    @pytest.mark.parametrize("status", [200, 301, 307, 403, 404])
    def test_is_no_gateway_and_never_says_that_something_is_missing(self, gateway: FakeGateway, status: int) -> None:
        bucket = gateway_bucket(gateway.url, retries=0)
        for request in (
            lambda: bucket.read(PATH),
            lambda: bucket.files(FOLDER),
            lambda: bucket.folders(FOLDER),
            lambda: bucket.objects.delete([PATH]),
            lambda: bucket.objects.put(PATH, b"1"),
            lambda: bucket.objects.size(PATH),
            lambda: bucket.objects.stream(PATH),
        ):
            gateway.refusals = [Refusal(status, headers={"Location": gateway.url})]
            with pytest.raises(StoreError, match="that is not a lookupdb gateway"):
                request()


class TestObjects:
    def test_are_put_measured_and_deleted_however_many(self, gateway: FakeGateway) -> None:
        bucket = gateway_bucket(gateway.url)
        paths = [f"{FOLDER}/g1/{number}" for number in range(MAX_DELETED_PATHS + 1)]
        for path in (paths[0], paths[-1]):
            bucket.objects.put(path, b"12345")
        assert (bucket.objects.size(paths[0]), bucket.objects.size(paths[1])) == (5, None)
        gateway.requests.clear()
        bucket.objects.delete(paths)
        assert (gateway.objects, gateway.methods()) == ({}, ["POST", "POST"])
        bucket.objects.delete([])
        assert gateway.methods() == ["POST", "POST"]

    def test_that_are_too_large_for_memory_are_not_read_at_once(self, gateway: FakeGateway) -> None:
        gateway.put(PATH, bytes(MAX_CONDITIONAL_BYTES + 1))
        with pytest.raises(StoreError, match=f"expected at most {MAX_CONDITIONAL_BYTES}"):
            gateway_bucket(gateway.url).read(PATH)

    @pytest.mark.parametrize("fault", [Fault.DROP, Fault.REFUSE, Fault.LOSE, Fault.TWICE])
    def test_are_uploaded_from_the_beginning_at_a_retry(
        self, gateway: FakeGateway, network: tuple[str, Proxy], tmp_path: Path, fault: Fault
    ) -> None:
        front, proxy = network
        content = b"0123456789abcdef" * (3 << 16)
        (tmp_path / "shard").write_bytes(content)
        proxy.fail(fault, first)
        gateway_bucket(front, retries=2).objects.upload(f"{FOLDER}/g1/shard.lmdb", tmp_path / "shard")
        assert gateway.objects[f"{FOLDER}/g1/shard.lmdb"].body == content

    def test_whose_upload_is_refused_before_its_end_say_why(self, gateway: FakeGateway, tmp_path: Path) -> None:
        (tmp_path / "shard").write_bytes(bytes(16 << 20))
        gateway.refusals = [Refusal(403, "forbidden", "not yours", is_early=True)]
        with pytest.raises(StoreDenied, match=r"cannot put shard into \S+: not yours"):
            gateway_bucket(gateway.url).objects.upload(f"{FOLDER}/g1/shard.lmdb", tmp_path / "shard")

    def test_that_break_off_are_resumed_by_whoever_reads_them(
        self, gateway: FakeGateway, network: tuple[str, Proxy]
    ) -> None:
        front, proxy = network
        content = bytes(range(256)) * (5 << 12)
        gateway.put(f"{FOLDER}/g1/shard.lmdb", content)
        objects = gateway_bucket(front, retries=0).objects
        proxy.fail(Fault.TRUNCATE, first)
        chunks = objects.stream(f"{FOLDER}/g1/shard.lmdb")
        assert chunks
        arrived: list[bytes] = []
        with pytest.raises(StoreUnreachable, match="ended its answer early"):
            arrived.extend(chunks)
        received = b"".join(arrived)
        assert 0 < len(received) < len(content)
        chunks = objects.stream(f"{FOLDER}/g1/shard.lmdb", len(received))
        assert chunks
        assert received + b"".join(chunks) == content
        assert objects.stream(f"{FOLDER}/g1/none.lmdb") is None


class TestListings:
    def test_have_what_a_bucket_lists(self, gateway: FakeGateway) -> None:
        gateway.put(PATH, b"1234")
        bucket = gateway_bucket(gateway.url)
        ((name, entry),) = bucket.entries(FOLDER)["g1"].items()
        assert (f"{FOLDER}/g1/{name}", entry["size"], entry["e_tag"]) == (
            PATH,
            4,
            gateway.objects[PATH].version["e_tag"],
        )
        assert entry["last_modified"] == gateway.objects[PATH].changed
        assert (BucketStore(bucket.url, "local", bucket).namespaces(), bucket.folders(FOLDER)) == (("default",), {"g1"})

    def test_may_have_the_marker_of_the_folder_itself(self, gateway: FakeGateway) -> None:
        """Consoles of stores create such markers. A generation can be removed all the same."""
        bucket = gateway_bucket(gateway.url)
        bucket.objects.put(PATH, b"{}")
        for path in (f"{FOLDER}/", f"{FOLDER}/g1/"):
            gateway.objects[path] = replace(gateway.objects[PATH], body=b"")
        dataset = BucketDataset(bucket, StoreAddress("local", "default", "things", "local"))
        assert bucket.files(f"{FOLDER}/g1").keys() == {"manifest.json"}
        dataset.remove("g1")
        assert (dataset.published_generations(), dataset.unfinished_generations()) == ((), {})

    @pytest.mark.parametrize("end", [b"", b'{"end":true}', b'{"end":tr'])
    def test_without_their_last_line_are_an_error_and_no_shorter_list(self, gateway: FakeGateway, end: bytes) -> None:
        gateway.put(PATH, b"1")
        gateway.listing_end = end
        bucket = gateway_bucket(gateway.url, retries=1)
        for look in (bucket.files, bucket.folders):
            with pytest.raises(StoreError, match="the listing ended before its last line"):
                look(FOLDER)
        assert len(gateway.requests) == 4

    def test_may_have_empty_lines_while_a_gateway_is_at_work(self, gateway: FakeGateway) -> None:
        gateway.put(PATH, b"1")
        gateway.listing_end = b'\n\n{"end":true}\n\n'
        bucket = gateway_bucket(gateway.url, retries=0)
        assert (list(bucket.files(FOLDER)), bucket.folders(FOLDER)) == (["g1/manifest.json"], {"g1"})

    def test_that_break_off_are_made_again(self, gateway: FakeGateway, network: tuple[str, Proxy]) -> None:
        front, proxy = network
        for number in range(1000):
            gateway.put(f"{FOLDER}/g1/{number}", b"")
        proxy.fail(Fault.TRUNCATE, first)
        assert len(gateway_bucket(front, retries=1).files(FOLDER)) == 1000
        assert len(proxy.requests) == 2

    def test_whose_connection_ends_before_they_do_are_made_again(self, gateway: FakeGateway) -> None:
        gateway.put(PATH, b"1")
        gateway.cuts_listings = 1
        assert list(gateway_bucket(gateway.url, retries=1).files(FOLDER)) == ["g1/manifest.json"]
        gateway.cuts_listings = 2
        with pytest.raises(StoreUnreachable, match=r"cannot list http://\S+: \S+ ended its answer early"):
            gateway_bucket(gateway.url, retries=1).files(FOLDER)

    @pytest.mark.parametrize(
        "end",
        [
            b'{"end":true}\n{"end":true}\n',
            b"no json\n",
            b"[]\n",
            b'{"path":"local/other/x","size":1,"last_modified":"2026-01-01T00:00:00Z"}\n{"end":true}\n',
            b'{"path":"local/default/things-local/../x","size":1}\n{"end":true}\n',
            b'{"path":"local/default/things-local/x","size":-1}\n{"end":true}\n',
            b'{"path":"local/default/things-local/x","size":1}\n{"end":true}\n',
            b'"' + b"x" * 20_000 + b'"\n{"end":true}\n',
        ],
    )
    def test_that_are_none_of_a_gateway(self, gateway: FakeGateway, end: bytes) -> None:
        gateway.listing_end = end
        with pytest.raises(StoreError, match="that is not a lookupdb gateway"):
            gateway_bucket(gateway.url, retries=0).files(FOLDER)


def test_objects_and_answers_that_break_off_are_not_taken_for_whole(gateway: FakeGateway) -> None:
    """A claim that is cut off would look like another's."""
    gateway.put(PATH, b'{"owner": "me"}')
    gateway.cuts_answers = 2
    assert gateway_bucket(gateway.url, retries=2).read(PATH).body == b'{"owner": "me"}'
    gateway.cuts_answers = 2
    with pytest.raises(StoreUnreachable, match=r"cannot read http://\S+: \S+ ended its answer early"):
        gateway_bucket(gateway.url, retries=1).read(PATH)
    gateway.cuts_answers = 1
    standing = gateway_bucket(gateway.url, retries=0).put_if(PATH, b"mine", gateway.objects[PATH].version)
    assert (standing.body, type(standing.error)) == (b"mine", StoreUnreachable), "it was put all the same"


def test_a_body_that_is_not_as_long_as_its_answer_says_is_not_taken_for_whole() -> None:
    """urllib3 holds an answer to its length, but not one that has a transfer coding as well."""
    headers = {"Content-Length": "4", "Transfer-Encoding": "chunked"}
    for text in (b"abc", b""):
        response = urllib3.HTTPResponse(io.BytesIO(text), headers, 200, preload_content=False)
        with pytest.raises(TransientFailure) as caught:
            GatewayAnswer(response, "cannot read", "h").body(100)
        assert "h ended its answer early" in caught.value.error.message


class TestToken:
    def test_is_read_at_each_request(self, gateway: FakeGateway, tmp_path: Path) -> None:
        bucket = gateway_bucket(gateway.url)
        bucket.read(PATH)
        gateway.tokens = {"second": "default"}
        with pytest.raises(StoreDenied, match="none of ours"):
            bucket.read(PATH)
        (tmp_path / "token").write_text("second\n")
        bucket.read(PATH)
        shown = [headers["Authorization"] for _method, _path, headers in gateway.requests]
        assert shown == [f"Bearer {TOKEN}"] * 2 + ["Bearer second"]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [("", "is empty"), ("  \n", "is empty"), ("a\r\nHost: b", "holds no token"), ("x" * 20_000, "holds no token")],
    )
    def test_that_cannot_be_one_is_never_sent(
        self, gateway: FakeGateway, tmp_path: Path, content: str, reason: str
    ) -> None:
        bucket = gateway_bucket(gateway.url)
        (tmp_path / "token").write_text(content)
        with pytest.raises(StoreDenied, match=reason) as caught:
            bucket.read(PATH)
        assert str(tmp_path / "token") in caught.value.message
        assert TOKEN_FILE_VARIABLE in str(caught.value)
        (tmp_path / "token").unlink()
        with pytest.raises(StoreDenied, match="No such file"):
            bucket.wait(60)
        assert gateway.requests == []

    def test_that_the_environment_does_not_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(TOKEN_FILE_VARIABLE, raising=False)
        with pytest.raises(
            UsageError, match=rf"http://gateway:7071 is a gateway, but {TOKEN_FILE_VARIABLE} is not set"
        ):
            open_store("http://gateway:7071")


class TestUrl:
    @pytest.mark.parametrize("url", ["http://gateway:7071", "https://gateway", "http://[::1]:7071/"])
    def test_is_that_of_a_gateway(self, gateway: FakeGateway, url: str) -> None:
        assert open_store(url).url == url

    @pytest.mark.parametrize(
        "url",
        ["http://host/path", "http://", "http:host", "http://host:x", "http://host:0", "https://host?a=1"]
        + ["https://user:secret@host", "http://host#x"],
    )
    def test_is_none(self, gateway: FakeGateway, url: str) -> None:
        with pytest.raises(UsageError, match="is not a store") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)

    def test_of_a_certificate_whose_authority_cannot_be_read(
        self, gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CA_FILE_VARIABLE, str(tmp_path / "none.pem"))
        with pytest.raises(UsageError, match=rf"{CA_FILE_VARIABLE} names \S+none.pem, which cannot be used"):
            Bucket("https://gateway:7071")
