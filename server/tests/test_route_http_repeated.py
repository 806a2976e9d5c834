"""Requests that repeat with another key: recognised by their bytes, and answered as if each were the first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.http import Client, ScriptedLookups, Server, generation, request, serving

from lookupdb.route.http.exchanges import ClientConnection, LookupExchange
from lookupdb.route.http.repeated import RepeatedRequest

PLAIN = request("/v1/lookup/k1")
HOST = b"Host: lookups.example\r\n"
HEADS = {
    "plain": PLAIN,
    "as browsers ask": request("/v1/lookup/k1", "Accept: application/json", "Connection: keep-alive", "User-Agent: x"),
    "of a candidate": request("/v1/lookup/k1", "Lookupdb-Generation: g2"),
    "of one who waits for less": request("/v1/lookup/k1", "Lookupdb-Deadline-Ms: 400"),
    "not acceptable": request("/v1/lookup/k1", "Accept: text/html"),
    "HTTP/1.0 that stays": b"GET /v1/lookup/k1 HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
}
TARGETS = {
    "another key": b"k2",
    "a missing key": b"k404",
    "no key": b"",
    "a slash": b"a/b",
    "an escape": b"%6b1",
    "a broken escape": b"%6",
    "a query": b"k1?x=1",
    "a fragment": b"k1#x",
    "a space": b"k 1",
    "the end of a request line": b"k1 HTTP/1.1\r\nX: ",
    "a whole head": b"k1 HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/lookup/k2",
    "a bare line feed": b"k1\nX: ",
    "a NUL": b"k\x00",
    "not ASCII": "ž".encode(),
    "too long a key": b"k" * 512,
    "too long a target": b"k" * 9000,
}


@pytest.fixture(scope="module")
def server(transport: str) -> Iterator[Server]:
    values = {"k1": b"1", "k2": b"2", "a/b": b"3"}
    with serving(ScriptedLookups(values=values, candidates=(generation("g2"),))) as server:
        yield server


def ending(client: Client, data: bytes) -> bytes:
    """All that comes back when ``data`` is the last thing sent, without the dates."""
    client.send(data).half_close()
    answers = b""
    while piece := client.raw.recv(65536):
        answers += piece
    assert answers
    return b"\r\n".join(line for line in answers.split(b"\r\n") if not line.startswith(b"Date: "))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_the_answer_is_that_of_a_connection_that_asks_for_the_first_time(
    server: Server, head: bytes, target: bytes
) -> None:
    data = head.replace(b"k1", target, 1)
    with server.connect() as new, server.connect() as old:
        for _ in range(2):
            old.send(head).response()
        assert ending(old, data) == ending(new, data)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_it_is_recognised_the_second_time(server: Server, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    recognised: list[bytes] = []

    class Noted(RepeatedRequest):
        def match(self, data: bytes, connection: ClientConnection) -> LookupExchange | None:
            found = super().match(data, connection)
            recognised.extend([data] if found else [])
            return found

    monkeypatch.setattr("lookupdb.route.http.repeated.RepeatedRequest", Noted)
    with server.connect() as client:
        for _ in range(3):
            client.send(head).response()
    assert recognised == [head, head]


def test_repeats_have_the_deadline_of_the_first(server: Server) -> None:
    lookups = server.lookups
    before = len(lookups.deadlines)
    with server.connect() as client:
        for _ in range(3):
            client.send(request("/v1/lookup/k1", "Lookupdb-Deadline-Ms: 400")).response()
        client.send(PLAIN).response()
    assert lookups.deadlines[before:] == [400, 400, 400, None]


@pytest.mark.parametrize(
    "read",
    [
        request("/v1/lookup/k1", method="HEAD"),
        request("/v1/lookup/k1", "Content-Length: 4") + b"\r\n\r\n",
        request("/v1/lookup/k1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        request("/v1/lookup/k1", "Connection: upgrade", "Upgrade: h2c"),
        request("/v1/lookup/k1", "Expect: 100-continue"),
        PLAIN + request("/v1/lookup/k1"),
        b"\r\n" + PLAIN,
        request("/v1/lookup?key=k1"),
    ],
)
def test_what_is_more_than_one_get_is_always_read_in_full(
    server: Server, read: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RepeatedRequest, "__init__", None)  # none is made
    bodyless = read.startswith(b"HEAD")
    with server.connect() as client:
        for _ in range(2):
            assert client.send(read).response(bodyless=bodyless).status == 200


def test_pieces_of_a_request_do_not_pass_for_one(server: Server) -> None:
    with server.connect() as client:
        client.send(PLAIN).response()
        client.send(b"POST /v1/lookup HTTP/1.1\r\n", HOST, b"Content-Length: %d\r\n\r\n" % len(PLAIN)).silent()
        assert client.send(PLAIN).response().status == 400


def test_a_whole_request_behind_the_first_bytes_of_another_is_no_repeat(server: Server) -> None:
    with server.connect() as client:
        assert client.send(PLAIN).response().status == 200
        assert client.send(PLAIN + b"GET").response().status == 200
        assert client.send(PLAIN).response().status == 400
