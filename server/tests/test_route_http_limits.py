"""The bounds of the router's HTTP: each is met as its own status, and what is within it is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.http import Client, Response, ScriptedLookups, Server, eventually, request, serving

from lookupdb.router import clients
from lookupdb.router.budget import MAX_ANSWER_BYTES
from lookupdb.router.clients import MAX_LINGERING_REFUSED
from lookupdb.router.http.problems import MAX_CHUNK_OVERHEAD_BYTES, MAX_HEAD_BYTES, MAX_TARGET_BYTES, SLICE_BYTES

MAX_BODY = 50_000
MEBIBYTE = b'"' + b"x" * ((1 << 20) - 2) + b'"'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    values = {"a": b"1", **{f"big{number}": MEBIBYTE for number in range(65)}}
    with serving(ScriptedLookups(values=values), max_keys=100, max_body_bytes=MAX_BODY) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


def kind(response: Response) -> str:
    return str(json.loads(response.body)["type"].rpartition("/")[2])


def assert_refused(client: Client, status: int, name: str) -> None:
    response = client.response()
    assert (response.status, kind(response)) == (status, name)
    assert response.fields["connection"] == "close"
    assert client.ended()


def post(*fields: str) -> bytes:
    return request("/v1/lookup", *fields, method="POST")


class TestTargets:
    def test_the_longest(self, client: Client) -> None:
        assert client.get("/v1/lookup/" + "x" * (MAX_TARGET_BYTES - 11)).status == 404

    @pytest.mark.parametrize("size", [MAX_TARGET_BYTES + 1, MAX_HEAD_BYTES + SLICE_BYTES, 1_000_000])
    def test_a_longer_one_is_414(self, client: Client, size: int) -> None:
        client.send(b"GET /" + b"x" * (size - 1))
        if size <= MAX_HEAD_BYTES:
            client.send(b" HTTP/1.1\r\nHost: router\r\n\r\n")
        assert_refused(client, 414, "target-too-long")


class TestHeads:
    def test_the_largest(self, client: Client) -> None:
        assert client.get("/v1/lookup/a", "X: " + "y" * (MAX_HEAD_BYTES - 100)).status == 200

    @pytest.mark.parametrize(
        "fields",
        [b"X: " + b"y" * 1_000_000, b"y" * 1_000_000, b"X: y\r\n" * 200_000],
        ids=["a large value", "a large name", "many fields"],
    )
    def test_a_larger_one_is_431(self, client: Client, fields: bytes) -> None:
        client.send(request("/v1/lookup/a")[:-2] + fields)
        assert_refused(client, 431, "head-too-large")

    def test_one_that_comes_in_small_pieces_is_431_too(self, client: Client) -> None:
        client.send(request("/v1/lookup/a")[:-2] + b"X: ")
        for _ in range(MAX_HEAD_BYTES // 1000 + 1):
            client.send(b"y" * 1000)
        assert_refused(client, 431, "head-too-large")

    def test_heads_are_counted_one_by_one(self, client: Client) -> None:
        message = request("/v1/lookup/a", "X: " + "y" * 20_000)
        client.send(message * 10)
        assert [client.response().status for _ in range(10)] == [200] * 10


class TestBodies:
    def test_the_largest(self, client: Client) -> None:
        body = b'{"keys": ["a"]}'.ljust(MAX_BODY)
        assert client.post(body).status == 200
        client.send(post("Transfer-Encoding: chunked"), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert client.response().status == 200

    @pytest.mark.parametrize("length", [MAX_BODY + 1, 2**64 - 1])
    def test_a_larger_one_is_413_before_it_is_sent(self, client: Client, length: int) -> None:
        client.send(post(f"Content-Length: {length}", "Expect: 100-continue"))
        assert_refused(client, 413, "body-too-large")

    def test_a_client_that_sends_it_nevertheless_can_read_why_not(self, client: Client) -> None:
        client.send(post(f"Content-Length: {5_000_000}"), b" " * 5_000_000)
        assert_refused(client, 413, "body-too-large")

    def test_chunks_are_counted_as_they_come(self, client: Client) -> None:
        client.send(post("Transfer-Encoding: chunked"), b"3e8\r\n%b\r\n" % (b" " * 1000) * 51)
        assert_refused(client, 413, "body-too-large")

    def test_a_chunk_that_says_it_is_huge_is_not_waited_for(self, client: Client) -> None:
        client.send(post("Transfer-Encoding: chunked"), b"FFFFFFFFFFFFFFF\r\n", b" " * (MAX_BODY + 1))
        assert_refused(client, 413, "body-too-large")

    def test_small_chunks_are_within_bounds(self, client: Client) -> None:
        body = b'{"keys": ["a"]}'.ljust(10_000)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        assert client.send(post("Transfer-Encoding: chunked"), chunks, b"0\r\n\r\n").response().status == 200

    @pytest.mark.parametrize("endless", [b"1;" + b"x" * 100_000, b"1;x\r\n \r\n0\r\n" + b"X: y\r\n" * 20_000])
    def test_endless_extensions_and_trailers_are_431(self, client: Client, endless: bytes) -> None:
        assert len(endless) > MAX_CHUNK_OVERHEAD_BYTES + MAX_HEAD_BYTES + SLICE_BYTES
        client.send(post("Transfer-Encoding: chunked"), endless)
        assert_refused(client, 431, "head-too-large")


class TestBatches:
    def test_the_most_keys(self, client: Client) -> None:
        assert client.post(json.dumps({"keys": [str(number) for number in range(100)]}).encode()).status == 200

    def test_more_are_413_and_the_connection_stays(self, client: Client) -> None:
        response = client.post(json.dumps({"keys": ["a"] * 101}).encode())
        assert (response.status, kind(response)) == (413, "too-many-keys")
        assert client.get("/v1/lookup/a").status == 200

    @pytest.mark.parametrize("element", ["{}", "[]", "1", '"a\\""', '"\\\\"', '","'])
    def test_more_of_whatever_kind_are_413_before_they_are_parsed(self, client: Client, element: str) -> None:
        response = client.post(f'{{"keys": [{",".join([element] * 200)}]}}'.encode())
        assert (response.status, kind(response)) == (413, "too-many-keys")

    def test_commas_within_keys_do_not_count(self, client: Client) -> None:
        keys = [f'{number}",,,,\\' + "," * 300 for number in range(100)]
        response = client.post(json.dumps({"keys": keys}).encode())
        assert (response.status, json.loads(response.body)["missing"]) == (200, keys)

    def test_values_that_are_too_large_together_are_413(self, client: Client) -> None:
        keys = [f"big{number}" for number in range(65)]
        assert len(keys) * len(MEBIBYTE) > MAX_ANSWER_BYTES
        response = client.post(json.dumps({"keys": keys}).encode())
        assert (response.status, kind(response)) == (413, "answer-too-large")
        assert client.post(json.dumps({"keys": keys[:2]}).encode()).status == 200


class TestConnections:
    def test_one_too_many_is_503_and_closed(self) -> None:
        with serving(ScriptedLookups(values={"a": b"1"}), max_connections=3) as server, ExitStack() as stack:
            clients = [stack.enter_context(server.connect()) for _ in range(3)]
            assert [client.get("/v1/lookup/a").status for client in clients] == [200] * 3
            with server.connect() as refused:
                refused.send(request("/v1/lookup/a"))
                response = refused.response()
                assert (response.status, kind(response)) == (503, "too-many-connections")
                assert (response.fields["connection"], response.fields["retry-after"]) == ("close", "1")
                assert refused.ended()
            assert server.count("connections_refused") == 1
            assert server.count("connections") == 3
            clients[0].close()
            eventually(lambda: server.count("connections") == 2)
            with server.connect() as admitted:
                assert admitted.get("/v1/lookup/a").status == 200

    def test_far_too_many_are_reset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clients, "LINGER_SECONDS", 60.0)  # none goes by itself
        with serving(max_connections=1) as server, ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(server.connect())
            eventually(lambda: server.count("connections_refused") == 299)
            eventually(lambda: server.call(lambda: len(server.front._refused)) <= MAX_LINGERING_REFUSED)


def test_answers_are_counted_by_status(server: Server, client: Client) -> None:
    names = ("requests_200", "requests_404", "requests_503")
    before = [server.count(name) for name in names]
    server.lookups.unavailable.add("lost")
    for target in ("/v1/lookup/a", "/v1/dataset", "/v1/lookup/none", "/nothing", "/v1/lookup/lost"):
        client.get(target)
    assert [server.count(name) - count for name, count in zip(names, before, strict=True)] == [2, 2, 1]
